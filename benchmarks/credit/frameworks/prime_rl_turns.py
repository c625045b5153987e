"""Runs `TurnCreditAlgorithm` of prime-rl's pull request 3282, from `PRIME_RL_SOURCE`.

The algorithm expects the score of the state after each turn. Here, the score is what the rollout
has earned so far. The first score counts as given, so the reward of the first turn is passed as the
reward of the rollout.
"""

# ruff: noqa: E402  prime-rl is made importable first
import asyncio
import os
import sys
import typing
from pathlib import Path

import typing_extensions

if sys.version_info < (3, 12):  # pydantic accepts no other type there
    typing.TypedDict = typing_extensions.TypedDict

ROOT = Path(__file__).parents[3]
CHECKOUT = Path(os.environ["PRIME_RL_SOURCE"])
for inside in ("src", "packages/prime-rl-configs/src"):
    sys.path.insert(0, str(CHECKOUT / inside))
sys.path.append(str(ROOT / "tests" / "conformance" / "others"))

from stand_ins import empty

empty(("vllm", "ray", "wandb", "deepspeed"))

import numpy as np
import verifiers.v1 as vf
from bias import Subject, print_lines
from layout import scalars, taken
from prime_rl.configs.algorithm import TurnCreditAlgoConfig
from prime_rl.orchestrator.algo.turn_credit import TurnCreditAlgorithm
from prime_rl.orchestrator.trajectories import trace_to_samples
from prime_rl.orchestrator.types import Rollout

TASK = vf.TraceTask(type="Task", data=vf.TaskData(idx=0, prompt=None))
AGENT = vf.AgentInfo(config=vf.AgentConfig())


def node(message, parent, *, sampled):
    """Return a message of one token."""
    return vf.MessageNode(
        message=message,
        token_ids=[1],
        mask=[sampled],
        logprobs=[-0.5],
        sampled=sampled,
        parent=parent,
    )


def rollout_of(paid):
    """Return a rollout that earned `paid` at its turns."""
    nodes = [node(vf.UserMessage(content="q"), None, sampled=False)]
    for turn in range(len(paid)):
        if turn:
            tool = vf.ToolMessage(content="t", tool_call_id="x")
            nodes.append(node(tool, len(nodes) - 1, sampled=False))
        nodes.append(node(vf.AssistantMessage(content="a"), len(nodes) - 1, sampled=True))
    usage = vf.Usage(prompt_tokens=len(paid), completion_tokens=len(paid))
    rollout = Rollout[vf.TaskData](
        task=TASK,
        agent=AGENT,
        nodes=nodes,
        calls=[vf.ModelCall(node=len(nodes) - 1, usage=usage)],
        rewards={"reward": vf.Reward(score=float(paid[0]))},
        metrics={},
    )
    rollout.env_name = "agent"
    rollout.samples = trace_to_samples(rollout, env_name="agent")
    rollout.info["turn_rewards"] = np.cumsum(paid).tolist()
    return rollout


def wrapped(**options):
    algorithm = TurnCreditAlgorithm(TurnCreditAlgoConfig(**options), policy_pool=None)
    known: dict[tuple[float, ...], typing.Any] = {}

    def found(group):
        asyncio.run(algorithm.score_group(group))
        return [rollout.advantages[1::2] for rollout in group]

    def copied(paid):
        """Return a new rollout. Building one takes long, and the copy shares what stays equal."""
        key = tuple(paid.tolist())
        if key not in known:
            known[key] = rollout_of(paid)
        return known[key].model_copy()

    def estimator(rewards, weights, *, turns):
        r = scalars(rewards, weights)
        result = np.zeros(r.shape)
        for prompt, (paid, mask) in enumerate(zip(r, taken(turns, r.shape[2]), strict=True)):
            group = [copied(row[there]) for row, there in zip(paid, mask, strict=True)]
            result[prompt][mask] = np.concatenate(found(group))
        return result

    return estimator


if __name__ == "__main__":
    subjects = [
        Subject("turn_credit, gamma 0.9, beta 1", wrapped()),
        Subject("turn_credit, gamma 0, beta 1", wrapped(gamma=0.0)),
        Subject("turn_credit, beta 0 (grpo)", wrapped(beta=0.0)),
    ]
    print_lines("prime-rl", "#3282, 0d60244", subjects)
