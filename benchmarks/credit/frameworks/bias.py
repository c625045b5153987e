"""Measures the bias of an estimator for turns: with `benchmarks.credit`, and as a closed form.

The closed form uses agents that continue after turn t with probability `go[t]` and earn `paid[t]`.
The gradient of such an agent has two parts for each turn: through the reward of the turn (`own`),
and through reaching later turns (`reach`).
"""

import json
import sys
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.credit._agents import example_policy, list_rollouts
from benchmarks.credit._check import no_signal, with_options

sys.path.append(str(Path(__file__).parents[3]))
from benchmarks.credit._measure import rows_of

SIZE = 3
"""Rollouts per group."""

BATCH = 64
"""Groups per batch, for estimators that use statistics of the batch."""

SMALLEST = (np.array([0.5, 0.0]), np.array([[0, 0], [0.5, 0.5]]))
"""Continuing has probability 1/2, and turn 2 pays 1/2: the gradient of turn 1 is 0.125."""

AGENTS = (
    SMALLEST,
    (np.array([0.6, 0.5, 0.7, 0.4]), np.array([[0, 1], [1, 2], [0.5, 1], [3, 1]])),
    (np.array([0.3, 0.8, 0.5, 0.5]), np.array([[1, 0], [1, 0], [0, 0], [0, 1]])),
    (np.array([0.9, 0.9, 0.2, 0.5]), np.array([[0, -0.2], [0, -0.2], [0, -0.2], [1, 2]])),
)
"""Probabilities to continue, and the rewards for stopping and for continuing at each turn."""

ROUNDING = 1e-5
"""Most frameworks compute in float32."""

TASKS = ("outcome", "outcome + 1")
"""The tasks that are printed. The closed form covers rewards of every turn."""


@dataclass(frozen=True)
class Subject:
    """Describes an estimator to measure."""

    name: str
    estimator: Any
    """`(rewards, weights, *, turns) -> advantages`."""
    scaled: bool = False
    """Divides by a standard deviation of the group, so that only the direction counts."""
    batch: bool = False
    """Uses statistics of the batch."""


def listed(go, paid):
    """Return the probability, rewards, number of turns and scores of every rollout."""
    longest, found = len(go), []
    for stop in range(longest + 1):
        turns = min(stop + 1, longest)
        went = np.arange(turns) < stop
        r, score = np.zeros(longest), np.zeros(longest)
        r[:turns] = np.where(went, paid[:turns, 1], paid[:turns, 0])
        score[:turns] = went - go[:turns]
        p = np.prod(np.where(went, go[:turns], 1 - go[:turns]))
        if p > 0:
            found.append((p, r, turns, score))
    return [np.array(each) for each in zip(*found, strict=True)]


def parts(go, paid):
    """Return the probabilities of the turns, and the parts `own` and `reach` of the gradient."""
    q = np.cumprod([1, *go[:-1]])
    m = (1 - go) * paid[:, 0] + go * paid[:, 1]
    own = q * go * (1 - go) * (paid[:, 1] - paid[:, 0])
    reach = np.array([(1 - go[t]) * np.sum((m * q)[t + 1 :]) for t in range(len(go))])
    return q, own, reach


def expected(estimator, go, paid):
    """Return the mean gradient of each turn's logit over all groups."""
    p, r, turns, score = listed(go, paid)
    groups = np.array(list(product(range(len(p)), repeat=SIZE)))
    a = estimator(r[groups][..., None], [1.0], turns=turns[groups])
    chance = np.prod(p[groups], axis=1)
    return np.einsum("g,gst,gst->t", chance, np.asarray(a, float), score[groups]) / SIZE


FACTORS = {
    "all": np.ones_like,
    "itself in the mean": lambda q: 1 - (1 - (1 - q) ** SIZE) / (SIZE * q),
    "0 if alone": lambda q: 1 - (1 - q) ** (SIZE - 1),
    "alone": lambda q: (1 - q) ** (SIZE - 1),
}
"""Factor of a turn's gradient, given the probability of reaching the turn. "alone": the probability
that no other rollout of the group reaches the turn."""


def closed_form(gradients):
    """Return `{factor: [share of own, share of reach]}` that gives all gradients, or None."""
    known = [parts(*agent) for agent in AGENTS]
    got = np.concatenate(gradients)
    own, reach = (np.concatenate([each[i] for each in known]) for i in (1, 2))
    f = {name: np.concatenate([of(q) for q, *_ in known]) for name, of in FACTORS.items()}
    for names in (each for count in (1, 2) for each in combinations(FACTORS, count)):
        basis = np.stack([f[name] * part for name in names for part in (own, reach)], axis=1)
        shares = np.linalg.lstsq(basis, got, rcond=None)[0]
        if np.abs(basis @ shares - got).max() < ROUNDING:
            rounded = (np.round(shares, 4) + 0.0).reshape(-1, 2).tolist()
            return dict(zip(names, rounded, strict=True))
    return None


def measured(subject):
    """Return the gradient of the smallest case, a closed form, and the bias of the tasks."""
    exact, rollouts = not subject.batch, list_rollouts(example_policy())
    gradients = [expected(subject.estimator, *agent) for agent in AGENTS] if exact else []
    estimator = with_options(subject.estimator, {})
    batch = None if exact else BATCH
    found = rows_of(estimator, rollouts, size=SIZE, batch=batch, any_factor=subject.scaled)
    rows = {row.reward: row for row in found}
    return {
        "smallest": float(gradients[0][0]) if exact else None,
        "closed": closed_form(gradients) if exact and not subject.scaled else None,
        "bias": [rows[task].bias for task in TASKS],
        "degrees": [rows[task].degrees for task in TASKS],
        "noise": max(rows[task].noise for task in TASKS),
        "no_signal": no_signal(estimator, rollouts.actions.shape[1], SIZE)[0],
    }


def print_lines(framework, version, subjects):
    """Print one line of JSON per estimator."""
    for subject in subjects:
        size = "direction" if subject.scaled or subject.batch else "exact"
        line = {"framework": framework, "version": version, "function": subject.name, "size": size}
        sys.stdout.write(json.dumps(line | measured(subject)) + "\n")
        sys.stdout.flush()
