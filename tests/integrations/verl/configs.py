"""Stands in for verl's configuration, queue and trainer."""

from types import SimpleNamespace

import numpy as np
import torch

from gdpo.integrations.verl._run import VerlRun

COLUMNS = {"correct": [0.0, 1.0, 1.0, 0.0], "format": [1.0, 1.0, 0.0, 0.0]}
UIDS = np.array(["a", "a", "b", "b"], dtype=object)
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1]])


class Config(dict):
    """A mapping with attributes, like OmegaConf's."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class Queue:
    """Returns the fields of rows by their keys. Fields that it does not have are left out."""

    def __init__(self, keys, **fields):
        self.row, self.fields = {key: i for i, key in enumerate(keys)}, fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        there = [name for name in select_fields if name in self.fields]
        return {name: [self.fields[name][self.row[key]] for key in keys] for name in there}


class Tokenizer:
    def decode(self, ids, *, skip_special_tokens):
        assert skip_special_tokens
        return " ".join(str(int(i)) for i in ids)


class Trainer:
    """Stands in for verl's trainer, with the methods that are wrapped."""

    tokenizer, global_steps, dumped = Tokenizer(), 1, None

    def __init__(self, algorithm, mask, uids, *, run=None, longest=3):
        self.run, self.mask, self.uids = run or VerlRun(), mask, uids
        self.config = Config(
            algorithm=algorithm,
            trainer=Config(experiment_name="mine"),
            data=Config(max_response_length=longest),
        )

    def _compute_advantage(self, batch, metrics):
        zeros = torch.zeros(self.mask.shape)
        return self.run.compute_advantages(zeros, self.mask, self.config.algorithm, self.uids)[0]

    def _log_rollout_data(self, batch, timing_raw, rollout_data_dir):
        self._dump_generations(reward_extra_infos_dict={"uid": sorted(batch.keys)})

    def _dump_generations(self, reward_extra_infos_dict):
        self.dumped = reward_extra_infos_dict

    def _val_metrics_update(self, sources, uids, infos, turns):
        return infos


KEYS = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
"""Of the rows of UIDS: prompt, sample, output."""


def batch_of(keys, padding=()):
    tags = [{"is_padding": True} if key in padding else {} for key in keys]
    return SimpleNamespace(keys=keys, tags=tags, partition_id="train")


def scored(**columns):
    """Return the rows of the queue with what the reward function returned."""
    rows = zip(*columns.values(), strict=True)
    return [{"reward_extra_info": dict(zip(columns, row, strict=True))} for row in rows]
