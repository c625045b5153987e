"""Where an estimator's mean update points, beside the true gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpo.experiments.toys._run import policy_gradient, rule_for
from gdpo.experiments.toys._toy import Array, Toy


@dataclass(frozen=True, slots=True)
class Alignment:
    """Cosines between the mean update of an estimator and exact gradients, at a toy's start.

    In the space of the policy's parameters, before Adam. 1: the same direction; NaN: one of the two
    is 0.
    """

    weighted_sum: float
    """With the gradient of the weighted sum of the raw rewards."""
    in_ranges: float
    """With that of the weighted sum when each reward is divided by its range."""
    rewards: Mapping[str, float]
    """With the gradient of each reward alone."""
    pull: Float[np.ndarray, " choice"]
    """The mean update itself, by natural parameter."""


def alignment(
    toy: Toy,
    estimator: str,
    *,
    batches: int = 200,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Alignment:
    """Where the estimator's update points on average at the start of a toy.

    The gradients are exact. The mean update is taken over sampled batches and has their noise;
    every estimator sees the same ones.

    Args:
        toy: The problem.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        batches: How many to take the mean over.
        seed: Of their random numbers.
        options: Of the estimator; see `rule_for`.

    Raises:
        ConfigError: There is no such estimator, or an option that does not fit.
    """
    rng, eta = np.random.default_rng(seed), toy.start[None]
    updates = [
        policy_gradient(toy, eta, [rule_for(toy, estimator, options)], [rng])[0]
        for _ in range(batches)
    ]
    pull = np.mean(updates, axis=0)
    gradient = toy.gradient(toy.start)
    ranges = np.array([measured.high - measured.low for measured in toy.measured])
    return Alignment(
        _cosine(pull, toy.weights @ gradient, toy.gram),
        _cosine(pull, toy.weights / ranges @ gradient, toy.gram),
        {name: _cosine(pull, row, toy.gram) for name, row in zip(toy.names, gradient, strict=True)},
        pull,
    )


def _cosine(
    a: Float[Array, " choice"], b: Float[Array, " choice"], gram: Float[Array, "choice choice"]
) -> float:
    lengths = (a @ gram @ a) * (b @ gram @ b)
    return float(a @ gram @ b / np.sqrt(lengths)) if lengths > 0 else float("nan")
