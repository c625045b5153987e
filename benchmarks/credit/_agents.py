"""Lists every rollout of small agents, so that their policy gradients are finite sums."""

from itertools import combinations_with_replacement, product
from math import factorial
from typing import Any, NamedTuple

import numpy as np


class Rollouts(NamedTuple):
    """Stores every rollout of an agent. States and actions are -1 after the last turn."""

    probability: Any  # [rollout]
    turns: Any  # [rollout]
    states: Any  # [rollout, turn]
    actions: Any  # [rollout, turn]
    score: Any  # gradient of the log-probability of a turn's action, [rollout, turn, state, action]

    @property
    def reached(self) -> Any:
        return self.probability @ (self.actions >= 0)


class TurnTask(NamedTuple):
    name: str
    rewards: Any
    weights: tuple[float, ...] = (1.0,)


def list_rollouts(policy: Any) -> Rollouts:
    """Return every rollout to which an agent gives a probability above 0.

    Action 0 stops. After any other action `a`, the next turn starts in state `a - 1`. The first
    turn starts in state 0, and at the last turn, every action ends the rollout. `policy` holds the
    probability of each action, `[turn, state, action]`; its parameters are one logit for each.
    """
    longest, _, count = policy.shape
    every = np.array(list(product(range(count), repeat=longest)))
    after_stop = np.cumsum(every == 0, axis=1) > (every == 0)
    actions = np.unique(np.where(after_stop, -1, every), axis=0)
    before = np.concatenate([np.ones((len(actions), 1), int), actions[:, :-1]], axis=1)
    taken, states = actions >= 0, np.where(actions >= 0, before - 1, -1)
    chosen = policy[np.arange(longest), states]  # [rollout, turn, action]; anything where not taken
    one_hot = np.eye(count)[actions]
    probability = np.prod(np.where(taken, np.sum(chosen * one_hot, axis=2), 1.0), axis=1)
    score = np.zeros((*actions.shape, *policy.shape[1:]))
    place = np.nonzero(taken)
    score[(*place, states[place])] = (one_hot - chosen)[place]
    found = probability, taken.sum(axis=1), states, actions, score
    return Rollouts(*(each[probability > 0] for each in found))


def list_groups(rollouts: Rollouts, size: int) -> tuple[Any, Any]:
    """Return every group of independent rollouts `[group, sample]`, and its probability.

    Each group represents all orders of its rollouts.
    """
    count = len(rollouts.probability)
    index = np.array(list(combinations_with_replacement(range(count), size)))
    orders, run = np.full(len(index), float(factorial(size))), np.ones(len(index))
    for sample in range(1, size):
        run = np.where(index[:, sample] == index[:, sample - 1], run + 1, 1.0)
        orders /= run
    return index, orders * np.prod(rollouts.probability[index], axis=1)


def exact_gradient(rollouts: Rollouts, task: TurnTask) -> Any:
    total = task.rewards.sum(axis=1) @ np.asarray(task.weights)
    return np.einsum("n,n,ntsa->tsa", rollouts.probability, total, rollouts.score)


def example_policy(*, stop: float = 0.4, turns: int = 4) -> Any:
    """Return the policy of an agent with two states and two continuing actions.

    The probability to stop, typically `stop`, and the preference between the other actions vary
    with turn and state, so that every logit has a gradient.
    """
    turn, state = np.meshgrid(np.arange(turns), np.arange(2), indexing="ij")
    odds = stop / (1 - stop) * np.exp(0.4 * np.sin(3.0 * turn + 2.0 * state))
    first = 0.5 + 0.15 * np.sin(2.0 * turn + state + 1)
    stops = odds / (1 + odds)
    return np.stack([stops, (1 - stops) * first, (1 - stops) * (1 - first)], axis=2)


def example_tasks(rollouts: Rollouts) -> list[TurnTask]:
    """Return tasks with rewards at every turn, at single turns and at the end of a rollout."""
    actions, states, turns = rollouts.actions, rollouts.states, rollouts.turns
    there, at = actions >= 0, np.arange(actions.shape[1])
    ends = 1.0 * (at == turns[:, None] - 1)
    dense = np.where(actions > 0, 0.7 + 0.3 * states + 0.2 * (actions == 1), 0.0)
    rare = 1.0 * ((at == min(2, at[-1])) & (states == 0) & (actions == 1))
    odd = (actions == actions.max()).sum(axis=1) % 2 == 1
    outcome = ends * (odd & (turns > 1))[:, None]
    delayed = 1.0 * np.pad((actions[:, :-1] == 1) & there[:, 1:], ((0, 0), (1, 0)))
    cost = -0.5 * there
    return [
        TurnTask("dense", dense[..., None]),
        TurnTask("rare", rare[..., None]),
        TurnTask("outcome", outcome[..., None]),
        TurnTask("outcome + 1", (outcome + ends)[..., None]),  # the gradient does not change
        TurnTask("delayed", delayed[..., None]),  # paid a turn later, if the rollout takes it
        TurnTask("cost", cost[..., None]),
        TurnTask("conflict", np.stack([dense, cost], axis=2), (1.0, 0.5)),
        TurnTask("large", -100 * np.pi * dense[..., None], (-0.1,)),  # shows clipping
        TurnTask("three", np.stack([dense, rare, outcome], axis=2), (1.0, 2.0, 0.5)),
    ]
