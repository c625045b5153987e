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

import numpy as np
from adapters import adapter
from batches import ONE_BY_ONE, print_lines
from prime_rl.configs.algorithm import GRPOAlgoConfig
from prime_rl.orchestrator.algo import ALGORITHM_CLASSES, build_algorithm
from prime_rl.orchestrator.train_sink import TrainSink
from prime_rl.orchestrator.types import Progress
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, GroupInfo, TrainRunInfo, TrainWorkInfo, WireEpisode
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, TraceTask, WireTrace
from verifiers.v1.types import AssistantMessage, UserMessage

algorithm = adapter("prime_rl").algorithm
OWN = "--own" in sys.argv


def trace_of(batch, row, task):
    length = int(batch.lengths[row])
    asked, said = UserMessage(content="p"), AssistantMessage(content="c")
    nodes = [
        MessageNode(parent=None, message=asked, token_ids=[1, 2], mask=[False] * 2, timestamp=0),
        MessageNode(
            parent=0,
            message=said,
            sampled=True,
            token_ids=[9] + [3] * length,
            mask=[False] + [True] * length,
            logprobs=[-0.5] * length,
            timestamp=0,
        ),
    ]
    agent = AgentInfo(config=WireAgentConfig(), name="agent")
    trace = WireTrace(id=f"t{row}", task=task, agent=agent, nodes=nodes, ok=True)
    for name, value, weight in zip(batch.names, batch.values[row], batch.weights, strict=True):
        if np.isnan(value):
            trace.rewards[name] = None
        else:
            trace.record_reward(name, value, weight)
    return trace


def episode_of(batch, row):
    prompt = int(batch.prompts[row])
    data = WireTaskData(idx=prompt, prompt="p")
    task = TraceTask(type="Add", data=data, key=f"k{prompt}", hash=f"h{prompt}")
    return WireEpisode(
        id=f"e{row}",
        env=EnvInfo(id="add", name="add"),
        task=task,
        group=GroupInfo(id=f"g{prompt}"),
        run=TrainRunInfo(id="r", work=TrainWorkInfo(step=1)),
        ok=True,
        traces=[trace_of(batch, row, task)],
    )


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
    for row, prompt in enumerate(batch.prompts):
        config.group_size = int(batch.sizes[prompt])
        assert await sink.add(episode_of(batch, row)) is None
    samples = sink.process_batch().samples
    assert len(samples) == len(batch.values)
    return [float(advantage_of(sample)) for sample in samples]


def advantage_of(sample):
    (advantage,) = {a for a, trained in zip(sample.advantages, sample.mask, strict=True) if trained}
    return advantage


if __name__ == "__main__":
    print_lines("prime_rl", {f"TrainSink, {ONE_BY_ONE}": by_sink})
