"""Lists every rollout of small agents, so that their policy gradients are finite sums."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial
from typing import Any, TypeAlias

import numpy as np

from gdpo.errors import ConfigError

MOST_GROUPS = 400_000
"""Maximum number of groups to list. Longer lists need more than a few seconds."""


@dataclass(frozen=True, slots=True)
class TurnAgent:
    """Stores the policy of an agent that takes a few turns.

    Action 0 stops. Any other action continues: after action `a`, the next turn starts in state
    `a - 1`. The first turn starts in state 0. At the last turn, every action ends the rollout.

    Args:
        policy: Probability of each action, `[turn, state, action]`. The parameters of the policy
            are one logit for each of these probabilities.
    """

    policy: Any

    def __post_init__(self) -> None:
        shape = np.shape(self.policy)
        if len(shape) != 3 or 0 in shape or shape[2] < 2 or shape[1] < shape[2] - 1:
            raise ConfigError(
                f"policy has the shape {shape}: pass probabilities [turn, state, action] with at "
                "least two actions, and one state for each action except the first"
            )
        values = np.asarray(self.policy, dtype=float)
        if not (np.all(values >= 0) and np.allclose(values.sum(axis=2), 1)):
            raise ConfigError("policy: the probabilities of each turn and state must add up to 1")


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Stores every rollout of an agent that has a probability above 0.

    Args:
        probability: Probability of each rollout, `[rollout]`.
        turns: Number of turns, `[rollout]`.
        states: State at each turn, `[rollout, turn]`, and -1 after the last turn.
        actions: Action at each turn, `[rollout, turn]`, and -1 after the last turn.
        score: Gradient of the log-probability of each turn's action with respect to the logits of
            this turn, `[rollout, turn, state, action]`.
    """

    probability: Any
    turns: Any
    states: Any
    actions: Any
    score: Any

    @property
    def reached(self) -> Any:
        """Return the probability of reaching each turn."""
        return self.probability @ (self.actions >= 0)


@dataclass(frozen=True, slots=True)
class TurnTask:
    """Stores rewards of every rollout of an agent.

    Args:
        name: Kind of rewards, as in messages and tables.
        rewards: Rewards, `[rollout, turn, reward]`.
        weights: One weight per reward.
    """

    name: str
    rewards: Any
    weights: tuple[float, ...] = (1.0,)


Tasks: TypeAlias = Callable[[Rollouts], Sequence[TurnTask]]
"""A function that returns the tasks for the rollouts of an agent."""


def list_rollouts(agent: TurnAgent) -> Rollouts:
    """Return every rollout of an agent."""
    policy = np.asarray(agent.policy, dtype=float)
    longest, _, count = policy.shape
    found: list[list[int]] = []
    open_: list[list[int]] = [[]]
    for turn in range(longest):
        grown = [[*taken, action] for taken in open_ for action in range(count)]
        ended = [taken[-1] == 0 or turn == longest - 1 for taken in grown]
        found += [taken for taken, end in zip(grown, ended, strict=True) if end]
        open_ = [taken for taken, end in zip(grown, ended, strict=True) if not end]
    actions = np.array([taken + [-1] * (longest - len(taken)) for taken in found])
    before = np.concatenate([np.ones((len(found), 1), int), actions[:, :-1]], axis=1)
    return _with_scores(policy, actions, np.where(actions >= 0, before - 1, -1))


def _with_scores(policy: Any, actions: Any, states: Any) -> Rollouts:
    taken, turn = actions >= 0, np.arange(actions.shape[1])
    chosen = policy[turn, states]  # [rollout, turn, action]; meaningless after the last turn
    one_hot = np.eye(policy.shape[2])[actions]
    probability = np.prod(np.where(taken, np.sum(chosen * one_hot, axis=2), 1.0), axis=1)
    score = np.zeros((*actions.shape, *policy.shape[1:]))
    place = np.nonzero(taken)
    score[(*place, states[place])] = (one_hot - chosen)[place]
    keep = probability > 0
    return Rollouts(
        probability[keep], taken.sum(axis=1)[keep], states[keep], actions[keep], score[keep]
    )


def list_groups(rollouts: Rollouts, size: int) -> tuple[Any, Any]:
    """Return every group of rollouts, regardless of order, and its probability.

    Args:
        rollouts: The rollouts of an agent.
        size: Number of rollouts per group.

    Returns:
        Indices of rollouts, `[group, sample]`, and the probability that independent rollouts form
        the group in any order, `[group]`.

    Raises:
        ConfigError: If there are more than 400,000 groups.
    """
    count = len(rollouts.probability)
    groups = factorial(count + size - 1) // factorial(size) // factorial(count - 1)
    if groups > MOST_GROUPS:
        raise ConfigError(
            f"groups of {size} of {count} rollouts: {groups:,} groups are too many to list. Use "
            f"smaller groups or an agent with fewer rollouts (at most {MOST_GROUPS:,} groups)"
        )
    index = np.array(list(combinations_with_replacement(range(count), size)))
    orders, run = np.full(len(index), float(factorial(size))), np.ones(len(index))
    for sample in range(1, size):
        run = np.where(index[:, sample] == index[:, sample - 1], run + 1, 1.0)
        orders /= run
    return index, orders * np.prod(rollouts.probability[index], axis=1)


def list_ordered_groups(rollouts: Rollouts, size: int) -> tuple[Any, Any]:
    """Return every group in every order, and its probability, for estimators that see the order.

    Raises:
        ConfigError: If there are more than 400,000 groups.
    """
    count = len(rollouts.probability)
    if count**size > MOST_GROUPS:
        raise ConfigError(
            "the advantages depend on the order of the samples in the group, and groups of "
            f"{size} of {count} rollouts have {count**size:,} orders, which are too many to list. "
            f"Use smaller groups or an agent with fewer rollouts (at most {MOST_GROUPS:,} orders)"
        )
    index = np.stack(np.meshgrid(*[np.arange(count)] * size, indexing="ij"), axis=-1)
    index = index.reshape(-1, size)
    return index, np.prod(rollouts.probability[index], axis=1)


def exact_gradient(rollouts: Rollouts, task: TurnTask) -> Any:
    """Return the gradient of the expected weighted return, `[turn, state, action]`."""
    total = task.rewards.sum(axis=1) @ np.asarray(task.weights)
    return np.einsum("n,n,ntsa->tsa", rollouts.probability, total, rollouts.score)


def reaching_and_rewards(rollouts: Rollouts, task: TurnTask) -> tuple[Any, Any]:
    """Return the gradient through reaching each turn, and through what is earned there.

    With `q[s]` the probability of reaching turn `s` and `m[s]` the expected reward of those that
    reach it, the gradient is the sum over `s` of `m[s] * grad q[s]` and `q[s] * grad m[s]`.

    Returns:
        Two arrays `[reached turn, turn, state, action]`, one for each of these terms.
    """
    p, there, q = rollouts.probability, 1.0 * (rollouts.actions >= 0), rollouts.reached
    earned = there * (task.rewards @ np.asarray(task.weights))
    mean = p @ earned / np.where(q > 0, q, 1.0)
    both = np.einsum("n,ns,ntxa->stxa", p, earned, rollouts.score)
    reaching = np.einsum("n,ns,ntxa->stxa", p, there, rollouts.score) * mean[:, None, None, None]
    return reaching, both - reaching


def example_agent(*, stop: float = 0.4, turns: int = 4) -> TurnAgent:
    """Return an agent with two states, and two actions that continue.

    The probability to stop and the preference between the two other actions differ between turns
    and states, so that every logit has a gradient.

    Args:
        stop: Typical probability to stop at a turn, between 0 and 1.
        turns: Maximum number of turns.
    """
    turn, state = np.meshgrid(np.arange(turns), np.arange(2), indexing="ij")
    odds = stop / (1 - stop) * np.exp(0.4 * np.sin(3.0 * turn + 2.0 * state))
    first = 0.5 + 0.15 * np.sin(2.0 * turn + state + 1)
    stops = odds / (1 + odds)
    return TurnAgent(np.stack([stops, (1 - stops) * first, (1 - stops) * (1 - first)], axis=2))


def example_tasks(rollouts: Rollouts) -> list[TurnTask]:
    """Return tasks with rewards at every turn, at single turns and at the end of a rollout.

    - `dense`: every action that continues is paid, with different amounts.
    - `rare`: one action at one turn is paid.
    - `outcome`: 0 or 1 at the last turn of the rollout.
    - `outcome + 1`: the same plus 1. The gradient does not change.
    - `delayed`: an action is paid at the following turn, if the rollout takes it.
    - `cost`: every turn costs the same amount.
    - `conflict`: a dense reward and a cost per turn, with weights 1 and 0.5.
    - `large`: the dense reward times -314.16, with weight -0.1. Clipping shows here.
    - `three`: a dense, a rare and an outcome reward, with weights 1, 2 and 0.5.
    """
    dense, rare, outcome = _dense(rollouts), _rare(rollouts), _outcome(rollouts)
    ends = at_last_turn(rollouts, np.ones(len(rollouts.turns)))
    cost = -0.5 * (rollouts.actions >= 0)
    return [
        TurnTask("dense", dense[..., None]),
        TurnTask("rare", rare[..., None]),
        TurnTask("outcome", outcome[..., None]),
        TurnTask("outcome + 1", (outcome + ends)[..., None]),
        TurnTask("delayed", _delayed(rollouts)[..., None]),
        TurnTask("cost", cost[..., None]),
        TurnTask("conflict", np.stack([dense, cost], axis=2), (1.0, 0.5)),
        TurnTask("large", -100 * np.pi * dense[..., None], (-0.1,)),
        TurnTask("three", np.stack([dense, rare, outcome], axis=2), (1.0, 2.0, 0.5)),
    ]


def at_last_turn(rollouts: Rollouts, values: Any) -> Any:
    """Return `[rollout, turn]` with the value of each rollout at its last turn, otherwise 0."""
    last = np.arange(rollouts.actions.shape[1]) == rollouts.turns[:, None] - 1
    return np.where(last, np.asarray(values)[:, None], 0.0)


def _dense(rollouts: Rollouts) -> Any:
    paid = 0.7 + 0.3 * rollouts.states + 0.2 * (rollouts.actions == 1)
    return np.where(rollouts.actions > 0, paid, 0.0)


def _rare(rollouts: Rollouts) -> Any:
    turn = min(2, rollouts.actions.shape[1] - 1)
    paid = np.zeros(rollouts.actions.shape)
    paid[:, turn] = (rollouts.states[:, turn] == 0) & (rollouts.actions[:, turn] == 1)
    return paid


def _outcome(rollouts: Rollouts) -> Any:
    """Return 1 at the end of rollouts of two or more turns with an odd number of last actions."""
    chosen = (rollouts.actions == rollouts.actions.max()).sum(axis=1)
    return at_last_turn(rollouts, (chosen % 2 == 1) & (rollouts.turns > 1))


def _delayed(rollouts: Rollouts) -> Any:
    earlier = rollouts.actions[:, :-1]
    paid = np.zeros(rollouts.actions.shape)
    paid[:, 1:] = (earlier == 1) & (rollouts.actions[:, 1:] >= 0)
    return paid
