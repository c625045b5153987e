"""Estimators of advantages per turn as short functions, unbiased ones and biased ones.

Each function takes one reward `earned[prompt, sample, turn]`, which is 0 after the last turn, the
mask `there` of the turns that were taken, and the state of each turn. The names are those of the
table in research/log.md. b, c, g and h follow published descriptions, without a division by a
standard deviation. Nobody's code was run.
"""

import numpy as np

from gdpo.advantages import turn_gdpo

_LATER = 0.9
"""Discount of c2, D' and g."""


def to_go(earned, discount=1.0):
    found = earned.copy()
    for turn in range(found.shape[2] - 2, -1, -1):
        found[:, :, turn] += discount * found[:, :, turn + 1]
    return found


def over_group(values, there):
    """Return the mean over the rollouts that take each turn."""
    n = np.maximum(there.sum(axis=1, keepdims=True), 1)
    return (values * there).sum(axis=1, keepdims=True) / n


def totals_of_others(earned):
    total = earned.sum(axis=2, keepdims=True)
    return (total.sum(axis=1, keepdims=True) - total) / (earned.shape[1] - 1)


def broadcast(earned, _there, _states):
    return earned.sum(axis=2, keepdims=True) - totals_of_others(earned)


def index_centred(earned, there, _states):
    return to_go((earned - over_group(earned, there)) * there)


def index_centred_alone(earned, there, _states):
    return earned - over_group(earned, there)


def group_centred(earned, there, _states, discount=1.0):
    g = to_go(earned, discount)
    n = there.sum(axis=(1, 2), keepdims=True)
    return g - (g * there).sum(axis=(1, 2), keepdims=True) / n


def alive_mean(earned, there, _states):
    return to_go(earned) - over_group(to_go(earned), there)


def others_alive(lone):
    """Return d1 to d6: the mean of the others that take the turn, or what `lone` returns."""

    def subject(earned, there, _states):
        g, n = to_go(earned), there.sum(axis=1, keepdims=True)
        others = ((g * there).sum(axis=1, keepdims=True) - g) / np.maximum(n - 1, 1)
        found = np.where(n > 1, others, lone(g, earned))
        if lone is last_baseline:
            for turn in range(1, g.shape[2]):
                before = found[:, :, turn - 1] - earned[:, :, turn - 1]
                found[:, :, turn] = np.where(n[:, :, turn] > 1, others[:, :, turn], before)
        return g - found

    return subject


def oneself(g, _earned):
    return g


def nothing(g, _earned):
    return np.zeros_like(g)


def of_trajectory(g, earned):
    return g - broadcast(earned, None, None)


def last_baseline(g, _earned):
    return np.zeros_like(g)  # replaced turn by turn


def total_of_others(g, earned):
    return np.broadcast_to(totals_of_others(earned), g.shape)


def ours(earned, there, _states):
    turns = there.sum(axis=2)
    return turn_gdpo(earned[..., None], [1.0], turns=turns, scales=[1.0])


def ours_discounted(earned, there, _states):
    """Return D with a discount: a lone rollout's baseline is its last one minus its last reward."""
    g, alive = to_go(earned, _LATER), np.maximum(there.sum(axis=1, keepdims=True), 1)
    c = (g - over_group(g, there)) * there
    size = earned.shape[1]
    found = [c[:, :, 0] * size / (size - 1)]
    for turn in range(1, g.shape[2]):
        found.append(c[:, :, turn] + found[-1] / _LATER / alive[:, :, turn])
    return np.stack(found, axis=2)


def trajectory_baseline(earned, _there, _states):
    return to_go(earned) - totals_of_others(earned)


def zero_after_the_end(earned, _there, _states):
    g = to_go(earned)
    return g - (g.sum(axis=1, keepdims=True) - g) / (g.shape[1] - 1)


def turn_credit(earned, there, _states):
    """Spread each reward over the turns up to it, and subtract the mean of the group's turns."""
    longest = earned.shape[2]
    spread = np.zeros_like(earned)
    for later in range(longest):
        share = _LATER ** np.arange(later, -1, -1)
        spread[:, :, : later + 1] += earned[:, :, later, None] * share / share.sum()
    n = there.sum(axis=(1, 2), keepdims=True)
    return spread - spread.sum(axis=(1, 2), keepdims=True) / n


def same_turn_and_state(earned, there, states):
    return to_go(earned) - _of_equal(earned, there, states + 100 * np.arange(earned.shape[2]))


def same_state(earned, there, states):
    return to_go(earned) - _of_equal(earned, there, states)


def _of_equal(earned, there, keys):
    """Return the mean return-to-go of the group's turns with the same key, including its own."""
    g, found = to_go(earned), np.zeros_like(earned)
    for key in np.unique(keys[there]):
        here = there & (keys == key)
        n = np.maximum(here.sum(axis=(1, 2), keepdims=True), 1)
        found += here * ((g * here).sum(axis=(1, 2), keepdims=True) / n)
    return found


SUBJECTS = {
    "a: outcome broadcast, n/(n-1)": broadcast,
    "b1: centred by turn index, added": index_centred,
    "b2: centred by turn index, that turn only": index_centred_alone,
    "c1: centred over all turns of the group": group_centred,
    "c2: the same, discount .9": lambda *arrays: group_centred(*arrays, discount=_LATER),
    "d0: mean of those alive, itself included": alive_mean,
    "d1: the others alive; lone: 0": others_alive(oneself),
    "d2: lone: no baseline": others_alive(nothing),
    "d3: lone: advantage of the trajectory": others_alive(of_trajectory),
    "d4: lone: last baseline less last reward": others_alive(last_baseline),
    "d6: lone: mean total of the others": others_alive(total_of_others),
    "D: turn_gdpo": ours,
    "D': with discount .9": ours_discounted,
    "e: trajectory baseline": trajectory_baseline,
    "f: mean with 0 after the end, n/(n-1)": zero_after_the_end,
    "g: turn_credit, .9": turn_credit,
    "h1: equal turn and state": same_turn_and_state,
    "h2: equal state": same_state,
}


def as_estimator(subject):
    """Return the function as an estimator for turns. A last reward of weight 0 is the state."""

    def estimator(rewards, weights, *, turns):
        there = np.arange(rewards.shape[2]) < np.asarray(turns)[:, :, None]
        earned = np.where(there, np.where(there[..., None], rewards, 0.0) @ np.asarray(weights), 0)
        states = rewards[..., -1] if weights[-1] == 0 else np.zeros(earned.shape)
        return there * subject(earned, there, states)

    return estimator
