"""Trains a policy on a task of several turns with estimators for turns, and measures its turns.

python -m benchmarks.turns                     # fixed scales: all estimators have one objective
python -m benchmarks.turns --scales batch      # standard deviations of the batch, the default

The task: something is hidden in one of four places. A turn looks into a place, opens a place, or
gives up. Looking tells whether it is there. Opening and giving up end the rollout. The rollouts of
a group share the place. Three rewards:

- end: 1 if the right place is opened, 0 otherwise, at the last turn.
- progress: paid for a look that rules out or finds a place for the first time.
- turn: paid for every turn, also negative.

The policy is a table of logits for each turn and what is known. It is trained with the policy
gradient, 16 groups of 8 rollouts, Adam with learning rate 0.05. With fixed scales, the objective is
the weighted sum of the expected totals, and the best policy is known. Prints the last 20 steps as
mean ± half-width of the 95 % interval over seeds.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from benchmarks._shown import interval

from gdpo.advantages import TURN_ESTIMATORS, gdpo, turn_gdpo

PLACES, LONGEST = 4, 6
ACTIONS = 2 * PLACES + 1
"""Look into a place, open a place, or give up."""

FOUND = 2**PLACES
"""Knowledge is the set of places that are ruled out, as bits, or `FOUND` plus the place."""

PROMPTS, SAMPLES, LAST = 16, 8, 20


@dataclass(frozen=True)
class Pay:
    """Stores how much each reward pays."""

    what: str
    progress: float
    turn: float


SETTINGS = (
    Pay("progress pays 0.25, a turn costs 0.05", 0.25, -0.05),
    Pay("every turn pays 0.2", 0.0, 0.2),
    Pay("every turn costs 0.1", 0.0, -0.1),
)


def step(place: Any, known: Any, action: Any) -> tuple[Any, Any, Any, Any]:
    """Return the knowledge after a turn, and whether it is new, the place was opened, the end."""
    target = action % PLACES
    looks, opens = action < PLACES, (action >= PLACES) & (action < 2 * PLACES)
    right, has_found = target == place, known >= FOUND
    ruled_out = np.where(has_found, 0, known) | (1 << target)
    after = np.where(right, FOUND + place, ruled_out)
    after = np.where(looks & ~has_found, after, known)
    return after, after != known, opens & right, ~looks


def rollouts(logits: np.ndarray, pay: Pay, random: np.random.Generator) -> tuple[Any, ...]:
    """Return rewards, numbers of turns, and the situation and action at every turn."""
    shape = (PROMPTS, SAMPLES)
    place = np.broadcast_to(random.integers(0, PLACES, (PROMPTS, 1)), shape)
    known, there = np.zeros(shape, int), np.ones(shape, bool)
    turns = np.zeros(shape, int)
    rewards = np.zeros((*shape, LONGEST, 3))
    seen, done = np.zeros((*shape, LONGEST), int), np.zeros((*shape, LONGEST), int)
    for turn in range(LONGEST):
        noise = random.gumbel(size=(*shape, ACTIONS))
        action = np.argmax(logits[turn, known] + noise, axis=-1)
        seen[:, :, turn], done[:, :, turn] = known, action
        known, is_new, is_right, ends = step(place, known, action)
        earned = np.stack([is_right * 1.0, is_new * pay.progress, np.full(shape, pay.turn)], -1)
        rewards[:, :, turn] = np.where(there[..., None], earned, 0.0)
        turns += there
        there = there & ~ends
    return rewards, turns, seen, done


def gradient(logits: np.ndarray, advantages: Any, turns: Any, seen: Any, done: Any) -> np.ndarray:
    """Return the policy gradient of the mean over the rollouts."""
    found = np.zeros_like(logits)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    for turn in range(LONGEST):
        a = np.where(turn < turns, advantages[:, :, turn], 0.0).ravel()
        known, action = seen[:, :, turn].ravel(), done[:, :, turn].ravel()
        np.add.at(found[turn], (known, action), a)
        np.add.at(found[turn], known, -a[:, None] * shares[turn, known])
    return found / turns.size


def whole_rollouts(rewards: Any, weights: Any, *, turns: Any, scales: Any) -> Any:
    """Return the advantages of `gdpo` on the totals, at every turn of a rollout."""
    del turns, scales
    return np.repeat(gdpo(rewards.sum(axis=2), weights)[:, :, None], LONGEST, axis=2)


def with_outcome(rewards: Any, weights: Any, *, turns: Any, scales: Any) -> Any:
    """Return the advantages of `turn_gdpo` with the reward of the end broadcast."""
    broadcast = [True, False, False]
    return turn_gdpo(rewards, weights, turns=turns, scales=scales, outcome=broadcast)


def trained(
    estimator: Callable[..., Any], pay: Pay, options: argparse.Namespace, *, seed: int
) -> list[float]:
    """Train, and return the shares of right ends, turns and the return of the last steps."""
    random, weights = np.random.default_rng(seed), [1.0, 1.0, options.turn_weight]
    scales = [1.0, 1.0, 1.0] if options.scales == "fixed" else None
    logits = np.zeros((LONGEST, FOUND + PLACES, ACTIONS))
    first, second = np.zeros_like(logits), np.zeros_like(logits)
    ends: list[list[float]] = []
    for number in range(1, options.steps + 1):
        rewards, turns, seen, done = rollouts(logits, pay, random)
        a = estimator(rewards, weights, turns=turns, scales=scales)
        found = gradient(logits, a, turns, seen, done)
        first, second = 0.9 * first + 0.1 * found, 0.999 * second + 0.001 * found**2
        change = first / (1 - 0.9**number) / (np.sqrt(second / (1 - 0.999**number)) + 1e-8)
        logits += 0.05 * change
        total = rewards.sum(axis=2)
        ends.append([total[..., 0].mean(), turns.mean(), total.sum(axis=-1).mean()])
    return np.mean(ends[-LAST:], axis=0).tolist()


def best(pay: Pay) -> list[float]:
    """Return what the best policy reaches: right ends, turns and return."""

    @cache
    def from_here(turn: int, ruled_out: int, has_found: int) -> tuple[float, float, float]:
        """Return the return, right ends and turns from a turn on."""
        if turn == LONGEST:
            return 0.0, 0.0, 0.0
        chance = 1.0 if has_found else 1 / (PLACES - ruled_out)
        options = [(pay.turn + chance, chance, 1.0), (pay.turn, 0.0, 1.0)]
        if has_found or ruled_out:  # look where nothing new can be seen
            options.append(joined(pay.turn, [(1.0, from_here(turn + 1, ruled_out, has_found))]))
        if not has_found:
            seen = from_here(turn + 1, ruled_out, 1)
            others = [(chance, seen)]
            if chance < 1:
                others.append((1 - chance, from_here(turn + 1, ruled_out + 1, 0)))
            options.append(joined(pay.turn + pay.progress, others))
        return max(options)

    total, right, turns = from_here(0, 0, 0)
    return [right, turns, total]


def joined(earned: float, later: Sequence[tuple[float, Any]]) -> tuple[float, float, float]:
    """Return the expectation over what follows one turn that earns this much."""
    means = np.sum([p * np.array(values) for p, values in later], axis=0)
    return earned + float(means[0]), float(means[1]), 1 + float(means[2])


def main() -> None:
    """Read the options, train, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scales", choices=["fixed", "batch"], default="fixed")
    parser.add_argument("--turn-weight", type=float, default=1.0, help="weight of `turn`")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    subjects = {**TURN_ESTIMATORS, "turn_gdpo, end broadcast": with_outcome}
    if options.scales == "batch":
        subjects["gdpo"] = whole_rollouts
    print("pay | estimator | right at the end | turns | return")
    for pay in SETTINGS:
        print(f"{pay.what} | best policy | " + " | ".join(f"{value:.2f}" for value in best(pay)))
        for name, estimator in subjects.items():
            runs = [trained(estimator, pay, options, seed=seed) for seed in range(options.seeds)]
            shown = " | ".join(interval(each) for each in zip(*runs, strict=True))
            print(f"{pay.what} | {name} | {shown}", flush=True)


if __name__ == "__main__":
    main()
