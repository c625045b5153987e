"""Runs NeMo-RL's own code paths on recorded batches, with and without gdpo.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/paths.py

Prints one line of JSON per path and number of rewards. `NEMO_RL_WITHOUT_GDPO=1` runs NeMo-RL
without gdpo. It needs no GPU: generator and policy are stand-ins, and Ray runs on this machine's
CPUs.
"""

# ruff: noqa: E402  source makes the others importable

import json
import os
from functools import cache
from unittest.mock import MagicMock

import numpy as np
import torch
from source import configured, start

from gdpo.integrations.nemo_rl import install

OURS = not os.environ.get("NEMO_RL_WITHOUT_GDPO")

import batches
import gdpo_environment
import nemo_rl
from nemo_rl.algorithms import grpo, grpo_sync
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.utils import create_env

LONGEST = batches.LONGEST


class Batch(batches.Batch):
    """Stores a batch, with the fields of NeMo-RL."""

    @property
    def mask(self):
        return (torch.arange(LONGEST) < torch.tensor(self.lengths)[:, None]).float()

    def prompt_ids(self):
        """Return prompts of 1 to 12 tokens, padded with 0."""
        return torch.tensor([[9] * (1 + p) + [0] * (len(self.sizes) - p) for p in self.prompts])

    def columns(self):
        """Return the rewards as in NeMo-RL's batch, shuffled."""
        values = torch.tensor(self.values[self.order], dtype=torch.float32)
        columns = {f"reward/{name}": values[:, k] for k, name in enumerate(self.names)}
        return {"total_reward": values.sum(-1), **columns}

    def config(self, **more):
        theirs = {"reward_weights": self.weights}
        ours = {"gdpo_reward_keys": self.names, "gdpo_reward_weights": self.weights}
        return configured(**(ours if OURS else theirs), **more)


def called(batch, module, repeated_batch, **more):
    """Create and call an estimator as the trainer of this module does."""
    estimator = module._create_advantage_estimator(batch.config(**more))
    mask = batch.mask[batch.order]
    advantages = estimator.compute_advantage(
        prompt_ids=batch.prompt_ids()[batch.order],
        rewards=repeated_batch["total_reward"],
        mask=mask,
        repeated_batch=repeated_batch,
        logprobs_policy=torch.zeros_like(mask),
        logprobs_reference=torch.zeros_like(mask),
    )
    return advantages, mask, batch.order


def created(batch, **more):
    return called(batch, grpo, BatchedDataDict(batch.columns()), **more)


def created_sync(batch, **more):
    """Create and call an estimator as the trainer with TransferQueue does."""
    rewards = batch.columns()
    zeros = torch.zeros_like(rewards["total_reward"])
    kept = BatchedDataDict({**rewards, "baseline": zeros, "std": zeros})
    return called(batch, grpo_sync, kept, **more)


class Tokenizer:
    """Encodes one token per character; 0 is padding."""

    pad_token_id = 0

    def __call__(self, text, **_):
        return MagicMock(input_ids=torch.tensor([[ord(c) for c in text]], dtype=torch.long))

    def batch_decode(self, rows, **_):
        return ["".join(map(chr, row.tolist())) for row in rows]


def generated(texts):
    """Return a generator's output with these texts."""

    def generate(data, **_):
        ids = [list(map(ord, text)) for text in texts]
        width = data["input_ids"].shape[1] + max(map(len, ids))
        output = torch.zeros(len(texts), width, dtype=torch.long)
        lengths = data["input_lengths"]
        for row, (length, answer) in enumerate(zip(lengths.tolist(), ids, strict=True)):
            output[row, :length] = data["input_ids"][row, :length]
            output[row, length : length + len(answer)] = torch.tensor(answer)
        counts = torch.tensor([len(answer) for answer in ids])
        return BatchedDataDict(
            output_ids=output,
            generation_lengths=counts,
            unpadded_sequence_lengths=lengths + counts,
            logprobs=torch.zeros(output.shape),
        )

    return MagicMock(generate=generate, requires_kv_scale_sync=False)


class Trained(Exception):
    """Raised to end the loop before the policy trains."""


def policy():
    def train(data, *_, **__):
        raise Trained(data)

    def zeros(name):
        return lambda data, **_: {name: torch.zeros(data["input_ids"].shape)}

    return MagicMock(
        train=train,
        get_logprobs=zeros("logprobs"),
        get_reference_policy_logprobs=zeros("reference_logprobs"),
    )


@cache
def environment(count):
    """Return our environment, which reads the rewards from the completion."""
    return create_env("gdpo", {"rewards": f"listed_rewards:of_{count}"})


def questions(texts, ids):
    """Return a dataloader's batch for a step."""
    rows = len(ids)
    return BatchedDataDict(
        message_log=[
            [{"role": "user", "content": text, "token_ids": tokens}]
            for text, tokens in zip(texts, ids, strict=True)
        ],
        length=torch.tensor(list(map(len, ids))),
        loss_multiplier=torch.ones(rows),
        task_name=["task"] * rows,
        extra_env_info=[{"ground_truth": {}}] * rows,
        idx=list(range(rows)),
    )


def train(policy, generator, steps, environment, config, logger=None):
    """Run `grpo_train`, whose other parts are stand-ins."""
    config.grpo.num_generations_per_prompt = 1  # the groups are in the batch
    config.policy["generation"]["vllm_cfg"]["async_engine"] = False
    grpo.grpo_train(
        policy,
        generator,
        steps,
        None,
        Tokenizer(),
        MagicMock(),
        {"task": environment},
        None,
        logger or MagicMock(),
        MagicMock(),
        grpo._initial_grpo_save_state(),
        config,
    )


def whole_step(batch, **more):
    """Run `grpo_train` from the prompts to the data that the policy would train on."""
    texts = [
        json.dumps([None if np.isnan(v) else float(v) for v in row])
        for row in batch.values[batch.order]
    ]
    prompts = [ids[ids > 0] for ids in batch.prompt_ids()[batch.order]]
    config = batch.config(**more)
    asked = questions([""] * len(texts), prompts)
    try:
        train(policy(), generated(texts), [asked], environment(len(batch.names)), config)
    except Trained as stop:
        (data,) = stop.args
    return data["advantages"], data["token_mask"], batch.order


PATHS = {"grpo": created, "grpo_sync": created_sync, "grpo_train, a whole step": whole_step}


def worst_difference(batch, path, **more):
    """Return the largest difference from the formula, over all trained tokens."""
    advantages, mask, order = path(batch, **more)
    wanted = torch.tensor(batch.expected()[order])
    return float(((advantages - wanted[:, None]) * mask).abs().max())


def gdpo_metrics():
    """Return the metrics that the latest batch adds to the trainer's metrics."""
    metrics, ones = {}, torch.ones(2)
    grpo._log_mixed_rewards_and_advantages_information(
        logger=MagicMock(), total_steps=0, metrics=metrics, baseline=ones, advantages=ones
    )
    return sorted(key for key in metrics if key.startswith("gdpo/"))


def main():
    if OURS:
        install()
    gdpo_environment.register()
    start()
    batches.print_lines(
        "nemo_rl",
        PATHS,
        version=nemo_rl.__version__,
        made=Batch,
        compared=worst_difference,
        more=lambda: {"metrics": gdpo_metrics()},
    )


if __name__ == "__main__":
    main()
