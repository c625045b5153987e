"""Runs NeMo-RL's own code paths on recorded batches, with and without gdpo.

    NEMO_RL_SOURCE=... python tests/conformance/nemo_rl/paths.py

Prints one line of JSON per path and number of rewards. `NEMO_RL_WITHOUT_GDPO=1` runs NeMo-RL
without gdpo. It needs no GPU: generator and policy are stand-ins, and Ray runs on this machine's
CPUs.
"""

import json
import os
import sys
from functools import cache
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
from source import configured, result_of

from gdpo import gdpo
from gdpo.integrations.nemo_rl import install

OURS = not os.environ.get("NEMO_RL_WITHOUT_GDPO")

import gdpo_environment  # noqa: E402
import nemo_rl  # noqa: E402
import ray  # noqa: E402
from nemo_rl.algorithms import grpo, grpo_sync  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.environments.utils import create_env  # noqa: E402

PROMPTS, LONGEST = 12, 9


class Batch:
    """Stores rollouts with groups and lengths of different sizes, and the formula's advantages."""

    def __init__(self, count, *, sizes=(1, 5), missing=False, silent=False):
        rng = np.random.default_rng(0)
        self.sizes = rng.integers(sizes[0], sizes[1] + 1, PROMPTS)
        self.names = [f"reward_{k}" for k in range(count)]
        self.weights = [1.0, 0.5, 2.0, 1.5, 0.25][:count]
        rows = int(self.sizes.sum())
        scales = np.array([1.0, 0.1, 30.0, 7.0, 1e-3])[:count]
        self.values = rng.integers(0, 4, (rows, count)) * scales
        if silent:
            self.values[:] = np.repeat(rng.random((PROMPTS, count)), self.sizes, axis=0)
        if missing:
            self.values[5, 0] = np.nan
        self.order = rng.permutation(rows)
        lengths = torch.tensor(rng.integers(1, LONGEST + 1, rows))
        self.mask = (torch.arange(LONGEST) < lengths[:, None]).float()
        self.prompt = np.repeat(np.arange(PROMPTS), self.sizes)

    def expected(self):
        """Return the expected advantage of each row."""
        grid = np.full((PROMPTS, self.sizes.max(), len(self.names)), np.nan)
        sample = np.concatenate([np.arange(size) for size in self.sizes])
        grid[self.prompt, sample] = self.values
        return gdpo(grid, self.weights)[self.prompt, sample]

    def prompt_ids(self):
        """Return prompts of 1 to 12 tokens, padded with 0."""
        return torch.tensor([[9] * (1 + p) + [0] * (PROMPTS - p) for p in self.prompt])

    def rewards(self):
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
    return called(batch, grpo, BatchedDataDict(batch.rewards()), **more)


def created_sync(batch, **more):
    """Create and call an estimator as the trainer with TransferQueue does."""
    rewards = batch.rewards()
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


def whole_step(batch, **more):
    """Run `grpo_train` from the prompts to the data that the policy would train on."""
    texts = [
        json.dumps([None if np.isnan(v) else float(v) for v in row])
        for row in batch.values[batch.order]
    ]
    prompts = [ids[ids > 0] for ids in batch.prompt_ids()[batch.order]]
    config = batch.config(**more)
    config.grpo.num_generations_per_prompt = 1  # the groups are in the batch
    config.policy["generation"]["vllm_cfg"]["async_engine"] = False
    rows = len(texts)
    data = BatchedDataDict(
        message_log=[[{"role": "user", "content": "", "token_ids": ids}] for ids in prompts],
        length=torch.tensor([len(ids) for ids in prompts]),
        loss_multiplier=torch.ones(rows),
        task_name=["listed"] * rows,
        extra_env_info=[{"ground_truth": {}}] * rows,
        idx=list(range(rows)),
    )
    try:
        grpo.grpo_train(
            policy(),
            generated(texts),
            [data],
            None,
            Tokenizer(),
            MagicMock(),
            {"listed": environment(len(batch.names))},
            None,
            MagicMock(),
            MagicMock(),
            grpo._initial_grpo_save_state(),
            config,
        )
    except Trained as stop:
        (data,) = stop.args
    return data["advantages"], data["token_mask"], batch.order


PATHS = {"grpo": created, "grpo_sync": created_sync, "grpo_train, a whole step": whole_step}


def worst_difference(batch, path, **more):
    """Return the largest difference from the formula, over all trained tokens."""
    advantages, mask, order = path(batch, **more)
    wanted = torch.tensor(batch.expected()[order])
    return float(((advantages - wanted[:, None]) * mask).abs().max())


def largest(batch, path):
    advantages, mask, _ = path(batch)
    return float((advantages * mask).abs().max())


def report():
    for name, path in PATHS.items():
        for count in (2, 3, 5):
            yield {
                "framework": "nemo_rl",
                "version": nemo_rl.__version__,
                "path": name,
                "rewards": count,
                "difference": result_of(worst_difference, Batch(count), path),
                "with_missing": result_of(worst_difference, Batch(count, missing=True), path),
                "no_signal": result_of(largest, Batch(count, silent=True), path),
                "metrics": gdpo_metrics(),
            }


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
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    out, sys.stdout = sys.stdout, sys.stderr  # NeMo-RL prints
    for line in report():
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
