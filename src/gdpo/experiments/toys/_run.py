"""Trains one estimator on one toy, with all seeds in parallel and independent of each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpo.advantages import AdvantageRule, constrained_grpo, resolve_estimator
from gdpo.experiments.toys._toys import Array, Toy, moments

_DECAY = (0.9, 0.999)
_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class ToyResult:
    """Stores the reward curves of one estimator on a toy."""

    toy: str
    estimator: str
    seeds: tuple[int, ...]
    curves: Mapping[str, Float[np.ndarray, "seed step"]]
    """For each reward, the exact expected value at each step, under the policy that sampled the
    rollouts of that step."""


@dataclass(slots=True)
class Adam:
    """Runs Adam (Kingma and Ba 2015) without weight decay, for each seed separately.

    Multiplying all gradients by a constant does not change the updates.
    """

    rate: float
    shape: tuple[int, int]
    steps: int = 0
    mean: Float[Array, "seed parameter"] = field(init=False)
    square: Float[Array, "seed parameter"] = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = np.zeros((2, *self.shape))

    def ascend(self, gradient: Float[Array, "seed parameter"]) -> Float[Array, "seed parameter"]:
        """Return the parameter update that increases the objective with this gradient."""
        self.steps += 1
        self.mean += (1 - _DECAY[0]) * (gradient - self.mean)
        self.square += (1 - _DECAY[1]) * (gradient**2 - self.square)
        mean, square = self.mean, self.square
        unbiased = mean / (1 - _DECAY[0] ** self.steps), square / (1 - _DECAY[1] ** self.steps)
        return self.rate * unbiased[0] / (np.sqrt(unbiased[1]) + _FLOOR)


def rule_for(toy: Toy, estimator: str, options: Mapping[str, Any] | None = None) -> AdvantageRule:
    """Return the advantage rule of an estimator, with the ranges of the toy's rewards.

    Args:
        toy: The toy.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        options: Options of the estimator. None: the estimator's defaults, or for `constrained_grpo`
            the toy's targets and multipliers that start at 1.

    Raises:
        ConfigError: If the estimator does not exist or an option is invalid.
    """
    if options is None and resolve_estimator(estimator) is constrained_grpo:
        options = {"targets": dict(toy.constraint), "start": 1.0}
    low, high = [m.low for m in toy.measured], [m.high for m in toy.measured]
    return AdvantageRule(estimator, toy.names, options, low=low, high=high)


def run_toy(
    toy: Toy, estimator: str, *, seeds: Sequence[int], options: Mapping[str, Any] | None = None
) -> ToyResult:
    """Train the policy of a toy with one estimator, once for each seed.

    Each step samples `prompts` groups of `samples` rollouts, computes their advantages with the
    estimator, and takes one Adam step along the policy gradient, without clipping or a KL term. A
    seed determines the directions of the choices and all random numbers, in the same way for every
    estimator.

    Args:
        toy: The toy to train. `TOYS` contains the shipped toys by name.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        seeds: Random seeds. Each seed gives one run.
        options: Options of the estimator. None: the defaults of `rule_for`.

    Raises:
        ConfigError: If the estimator does not exist or an option is invalid.

    Examples:
        >>> from gdpo.experiments.toys import TOYS
        >>> result = run_toy(TOYS["opposed"], "gdpo", seeds=[0])
        >>> {name: curve[0, [0, -1]].round(1).tolist() for name, curve in result.curves.items()}
        {'heavier': [0.5, 1.0], 'larger': [5.0, 0.0]}
    """
    rules = [rule_for(toy, estimator, options) for _ in seeds]
    rngs = [np.random.default_rng(seed) for seed in seeds]
    directions = np.stack([toy.directions(rng) for rng in rngs])
    parameters, adam = (
        np.zeros((len(seeds), toy.width)),
        Adam(toy.learning_rate, (len(seeds), toy.width)),
    )
    means = np.empty((toy.steps, len(seeds), len(toy.rewards)))
    for expected in means:
        eta = toy.start + (directions @ parameters[..., None])[..., 0]
        expected[:] = toy.expected_rewards(eta)
        push = policy_gradient(toy, eta, rules, rngs)
        parameters += adam.ascend((push[:, None] @ directions)[:, 0])
    curves = {name: means[..., k].T.copy() for k, name in enumerate(toy.names)}
    return ToyResult(toy.name, estimator, tuple(seeds), curves)


def policy_gradient(
    toy: Toy,
    eta: Float[Array, "seed choice"],
    rules: Sequence[AdvantageRule],
    rngs: Sequence[np.random.Generator],
) -> Float[Array, "seed choice"]:
    """Return the estimated gradient for each natural parameter: the mean of advantage * score."""
    draws = (toy.prompts, toy.samples, len(toy.choices) + len(toy.rewards))
    chosen, rewards = toy.sample(eta, np.stack([rng.random(draws) for rng in rngs]))
    advantages = np.stack([rule(r, toy.weights) for rule, r in zip(rules, rewards, strict=True)])
    for rule, r in zip(rules, rewards, strict=True):
        rule.update(r, toy.weights)
    # The gradient of a log-probability is the choice minus its expectation.
    score = chosen - moments(eta, toy.graded)[0][:, None, None]
    flat = advantages.reshape(len(rules), 1, -1)
    rollouts = toy.prompts * toy.samples
    return (flat @ score.reshape(len(rules), rollouts, -1))[:, 0] / rollouts


@dataclass(frozen=True, slots=True)
class Alignment:
    """Stores cosines between an estimator's mean update and exact gradients, at the initial policy.

    The cosines are computed in the space of the policy's parameters, before Adam. A cosine of 1
    means the same direction. NaN means that the update or the gradient is 0.
    """

    weighted_sum: float
    """Cosine between the mean update and the gradient of the weighted sum of the raw rewards."""
    in_ranges: float
    """Cosine between the mean update and the gradient of the weighted sum of the rewards, each
    divided by its range."""
    rewards: Mapping[str, float]
    """Cosine between the mean update and the gradient of each reward."""
    pull: Float[np.ndarray, " choice"]
    """The mean update for each natural parameter."""


def alignment(
    toy: Toy,
    estimator: str,
    *,
    batches: int = 200,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Alignment:
    """Compare an estimator's mean update with exact gradients, at a toy's initial policy.

    The mean update is an average over sampled batches. All estimators get the same batches.

    Args:
        toy: The toy.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        batches: Number of batches to average over.
        seed: Random seed for sampling the batches.
        options: Options of the estimator. None: the defaults of `rule_for`.

    Raises:
        ConfigError: If the estimator does not exist or an option is invalid.
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
