"""Runs prime-rl's own code from episodes to training samples, with our algorithm class.

    PYTHONPATH=<checkout of prime-rl>/src python tests/conformance/others/prime_rl_paths.py

The episodes are objects of verifiers with recorded rewards. Prints one line of JSON per path and
number of rewards. `--own` leaves the advantages to prime-rl's grpo, over the sum of the rewards.
"""

# ruff: noqa: E402  prime-rl is made importable first
import asyncio
import sys
import typing
from pathlib import Path
from types import SimpleNamespace

import typing_extensions

if sys.version_info < (3, 12):  # pydantic accepts no other type there
    typing.TypedDict = typing_extensions.TypedDict

for folder in [*sys.path]:
    if Path(folder, "prime_rl").is_dir():
        sys.path.append(str(Path(folder).parent / "packages" / "prime-rl-configs" / "src"))

from stand_ins import empty

empty(("vllm", "ray", "wandb", "deepspeed"))

from adapters import adapter
from batches import ONE_BY_ONE, print_lines
from episodes import episode
from prime_rl.configs.algorithm import GRPOAlgoConfig
from prime_rl.orchestrator.algo import ALGORITHM_CLASSES, build_algorithm
from prime_rl.orchestrator.train_sink import TrainSink
from prime_rl.orchestrator.types import Progress

algorithm = adapter("prime_rl").algorithm
OWN = "--own" in sys.argv


def by_sink(batch):
    """Use `TrainSink.add`, which scores a group when its last episode arrives."""
    if not OWN:
        ALGORITHM_CLASSES["grpo"] = algorithm(reward_keys=batch.names, reward_weights=batch.weights)
    env = SimpleNamespace(
        algorithm=build_algorithm(GRPOAlgoConfig(), None),
        config=SimpleNamespace(group_size=0),
        sampling_args={"temperature": 1.0},
    )
    train = SimpleNamespace(filter_zero_advantages=False)
    sink = TrainSink(
        SimpleNamespace(max_off_policy_steps=8, train=train, seq_len=64),
        tokenizer=None,
        train_envs=SimpleNamespace(get=lambda name: env),
        mm_token_type_ids_mapping=None,
        progress=Progress(),
        batch_size=len(batch.values) + 1,
        token_batch_size=None,
    )
    return asyncio.run(sent(batch, sink, env.config))


async def sent(batch, sink, config):
    weights = dict(zip(batch.names, batch.weights, strict=True))
    for row, (prompt, rewards) in enumerate(zip(batch.prompts, batch.rewards(), strict=True)):
        config.group_size = int(batch.sizes[prompt])
        made = episode(row, int(prompt), rewards, weights, [3] * int(batch.lengths[row]))
        assert await sink.add(made) is None
    samples = sink.process_batch().samples
    assert len(samples) == len(batch.values)
    return [float(advantage_of(sample)) for sample in samples]


def advantage_of(sample):
    (advantage,) = {a for a, trained in zip(sample.advantages, sample.mask, strict=True) if trained}
    return advantage


if __name__ == "__main__":
    print_lines("prime_rl", {f"TrainSink, {ONE_BY_ONE}": by_sink})
