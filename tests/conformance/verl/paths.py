"""Runs verl's own code paths on recorded batches, with the plugins that this process loads.

    python tests/conformance/verl/paths.py

Prints one line of JSON per path and number of rewards. `VERL_USE_EXTERNAL_PLUGINS=none` runs
verl's own gdpo without ours. Needs verl and TransferQueue, but no GPU and no Ray cluster.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto, __version__
from verl.experimental.separation.ray_trainer import SeparateRayPPOTrainer
from verl.trainer.ppo import metric_utils, ray_trainer
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.utils import need_critic
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

sys.path.append(str(Path(__file__).parents[1] / "others"))
sys.path.append(str(Path(__file__).parents[2] / "engines"))

import batches
from batches import LONGEST, result_of

try:
    from verl.trainer.ppo.v1 import trainer_base
except ImportError:  # verl 0.8
    from verl.trainer import main_ppo_sync as trainer_base

WITHOUT = "gdpo.integrations.verl._plugin" not in sys.modules
ESTIMATOR = "gdpo" if WITHOUT else "gdpo/gdpo"


def v1_trainer():
    """Return verl's default trainer without its workers."""
    of_modes = getattr(trainer_base, "get_trainer_cls", None)
    return object.__new__(of_modes("sync") if of_modes else trainer_base.PPOTrainer)


def configured(**algorithm):
    """Return the configuration fields that verl's trainers read here."""
    algorithm = {
        "adv_estimator": ESTIMATOR,
        "gamma": 1.0,
        "lam": 1.0,
        "use_kl_in_reward": False,
        "norm_adv_by_std_in_grpo": True,
        **algorithm,
    }
    rest = {
        "actor_rollout_ref": {"rollout": {"n": 4}},
        "critic": {"enable": None},
        "data": {"max_response_length": LONGEST},
        "trainer": {"experiment_name": "recorded"},
    }
    config = OmegaConf.create({"algorithm": algorithm, **rest})
    OmegaConf.set_struct(config, True)
    return config


class Batch(batches.Batch):
    """Stores a batch, with the fields of verl."""

    @property
    def uids(self):
        return [f"prompt-{prompt}" for prompt in self.prompts]

    def infos(self):
        totals = np.nansum(self.values, -1).tolist()
        return [
            {"score": total, **rewards}
            for total, rewards in zip(totals, self.rewards(), strict=True)
        ]

    def config(self, **more):
        keys = {"gdpo_reward_keys": self.names, "gdpo_reward_weights": self.weights}
        return configured(**keys | more)

    def proto(self):
        """Return the batch of the legacy trainers, shuffled."""
        rows, infos = len(self.values), self.infos()
        prompts = torch.ones(rows, 3, dtype=torch.long)
        mask = (torch.arange(LONGEST) < torch.tensor(self.lengths)[:, None]).long()
        scores = torch.zeros(mask.shape)
        scores[range(rows), self.lengths - 1] = torch.tensor([i["score"] for i in infos])
        tensors = {
            "prompts": prompts,
            "attention_mask": torch.cat([prompts, mask], 1),
            "response_mask": mask,
            "token_level_rewards": scores,
            "values": torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)),
        }
        columns = {key: np.array([info[key] for info in infos]) for key in infos[0]}
        columns["uid"] = np.array(self.uids, dtype=object)
        data = DataProto(batch=TensorDict(tensors, batch_size=rows), non_tensor_batch=columns)
        data.reorder(torch.tensor(self.order))
        return data


def legacy(batch, **more):
    config = batch.config(**more)
    need_critic(config)
    data = ray_trainer.compute_advantage(
        batch.proto(),
        adv_estimator=config.algorithm.adv_estimator,
        num_repeat=4,
        config=config.algorithm,
    )
    return data.batch["advantages"], data.batch["response_mask"], batch.order, len(batch.order)


def separation(batch, **more):
    trainer = object.__new__(SeparateRayPPOTrainer)
    trainer.config, trainer.metrics, trainer.timing_raw = batch.config(**more), {}, {}
    data = batch.proto()
    trainer.reward_tensor = data.batch.pop("token_level_rewards")
    names = ["score", *batch.names]
    trainer.reward_extra_infos_dict = {k: data.non_tensor_batch.pop(k) for k in names}
    data = trainer._fit_compute_advantage(data)
    return data.batch["advantages"], data.batch["response_mask"], batch.order, len(batch.order)


class Queue:
    """Stands in for TransferQueue's `kv_batch_get` and `kv_batch_put`."""

    def __init__(self, keys, rows):
        self.rows = dict(zip(keys, rows, strict=True))

    def get(self, keys, partition_id, select_fields):
        rows = [self.rows[key] for key in keys]
        return list_of_dict_to_tensordict(
            [{f: row[f] for f in select_fields if f in row} for row in rows]
        )

    def put(self, keys, partition_id, fields):
        for i, key in enumerate(keys):
            for name in fields.keys():  # noqa: SIM118  a TensorDict is no dict
                self.rows[key][name] = fields[name][i]
        return trainer_base.KVBatchMeta(
            keys=keys, tags=[{} for _ in keys], partition_id=partition_id
        )


def padded(rows, padding):
    """Return rows `(key, row, tag, ...)` in another order, with padding rows at the end.

    The last entry of a padding row is None.
    """
    rows = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    for i in range(padding):
        template, tag = construct_minimal_padding_template(rows[0][1], {}, eos_token_id=0)
        row = {field: template[field] for field in rows[0][1]} | {"uid": "pad"}
        rows.append((f"pad_{i}_0", row, tag, None))
    return rows


def v1_rows(batch, turns, padding):
    """Return `(key, row, tag, of)`: some rollouts with several outputs, and padding rows."""
    rows, seen = [], {}
    for i, (uid, info, length) in enumerate(
        zip(batch.uids, batch.infos(), batch.lengths, strict=True)
    ):
        session = seen[uid] = seen.get(uid, -1) + 1
        outputs = 1 + (turns and i % 3)
        for output in range(outputs):
            mask = torch.ones(length if output == outputs - 1 else 2, dtype=torch.long)
            row = {"uid": uid, "response_mask": mask, "extra_fields": {"reward_extra_info": info}}
            row["rm_scores"] = torch.zeros(len(mask))
            row["values"] = torch.arange(len(mask)) / 7 + i % 3
            row["rm_scores"][-1] = info["score"]
            rows.append((f"{uid}_{session}_{output}", row, {}, i))
    return padded(rows, padding)


def computed_by_v1(config, keys, rows, tags):
    """Compute advantages with verl's V1 trainer. Return the queue that holds them."""
    queue = Queue(keys, rows)
    trainer_base.tq.kv_batch_get, trainer_base.tq.kv_batch_put = queue.get, queue.put
    trainer = v1_trainer()
    trainer.config = config
    meta = trainer_base.KVBatchMeta(keys=list(keys), tags=list(tags), partition_id="train")
    trainer._compute_advantage(meta, metrics={})
    return queue


def v1(batch, *, turns=False, padding=0, **more):
    keys, rows, tags, of = zip(*v1_rows(batch, turns, padding), strict=True)
    queue = computed_by_v1(batch.config(**more), keys, rows, tags)
    nested = queue.get(keys, "train", ["advantages", "response_mask"])
    advantages, mask = (nested[f].to_padded_tensor(0.0) for f in ("advantages", "response_mask"))
    return advantages, mask, list(of), len(of) - padding


def v1_turns(batch, **more):
    return v1(batch, turns=True, padding=3, **more)


PATHS = {"legacy": legacy, "separation": separation, "V1": v1, "V1, turns and padding": v1_turns}


def worst_difference(batch, path, **more):
    """Return the largest difference from the formula. Untrained tokens must have 0."""
    advantages, mask, of, count = path(batch, **more)
    wanted = torch.zeros(len(mask), dtype=torch.float64)
    wanted[:count] = torch.tensor(batch.expected()[of[:count]])
    return float((advantages - wanted[:, None] * mask).abs().max())


def gdpo_metrics():
    """Return the metrics that the latest batch adds to the trainer's metrics."""
    data = Batch(2).proto()
    data.batch["token_level_scores"] = data.batch["token_level_rewards"]
    data.batch["advantages"] = data.batch["returns"] = data.batch["token_level_rewards"]
    data.batch["responses"] = data.batch["response_mask"]
    metrics = metric_utils.compute_data_metrics(data, use_critic=False)
    return sorted(key for key in metrics if key.startswith("gdpo/"))


if __name__ == "__main__":
    batches.print_lines(
        "verl",
        PATHS,
        version=__version__,
        made=Batch,
        compared=worst_difference,
        more=lambda: {"metrics": result_of(gdpo_metrics)},
    )
