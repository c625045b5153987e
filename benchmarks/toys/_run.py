"""Trains one estimator on one toy, with all seeds in parallel and independent of each other."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.toys._toys import moments

from gdpo.advantages import AdvantageRule, constrained_grpo, resolve_estimator

_DECAY = (0.9, 0.999)
_FLOOR = 1e-8


@dataclass(slots=True)
class Adam:
    """Runs Adam (Kingma and Ba 2015) without weight decay, for each seed separately.

    Multiplying all gradients by a constant does not change the updates.
    """

    rate: float
    shape: tuple[int, int]
    steps: int = 0
    mean: Any = field(init=False)
    square: Any = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.square = np.zeros((2, *self.shape))

    def ascend(self, gradient):
        """Return the parameter update that increases the objective with this gradient."""
        self.steps += 1
        self.mean += (1 - _DECAY[0]) * (gradient - self.mean)
        self.square += (1 - _DECAY[1]) * (gradient**2 - self.square)
        mean, square = self.mean, self.square
        unbiased = mean / (1 - _DECAY[0] ** self.steps), square / (1 - _DECAY[1] ** self.steps)
        return self.rate * unbiased[0] / (np.sqrt(unbiased[1]) + _FLOOR)


def rule_for(toy, estimator, options=None):
    """Return the advantage rule of an estimator, with the ranges of the toy's rewards.

    Without options, `constrained_grpo` gets the toy's targets and multipliers that start at 1.

    Raises:
        ConfigError: If the estimator does not exist or an option is invalid.
    """
    if options is None and resolve_estimator(estimator) is constrained_grpo:
        options = {"targets": dict(toy.constraint), "start": 1.0}
    low, high = [m.low for m in toy.measured], [m.high for m in toy.measured]
    return AdvantageRule(estimator, toy.names, options, low=low, high=high)


def run_toy(toy, estimator, *, seeds, options=None):
    """Train the policy of a toy with one estimator, once for each seed.

    Each step samples `prompts` groups of `samples` rollouts, computes their advantages with the
    estimator, and takes one Adam step along the policy gradient, without clipping or a KL term. A
    seed determines the directions of the choices and all random numbers, in the same way for every
    estimator.

    Args:
        toy: One of `TOYS`.
        estimator: A key of `gdpo.advantages.ESTIMATORS`, or `module:attribute`.
        seeds: Random seeds. Each seed gives one run.
        options: Options of the estimator. None: the defaults of `rule_for`.

    Returns:
        For each reward, the exact expected value `[seed, step]` under the policy that sampled the
        rollouts of the step.
    """
    rules = [rule_for(toy, estimator, options) for _ in seeds]
    rngs = [np.random.default_rng(seed) for seed in seeds]
    directions = np.stack([toy.directions(rng) for rng in rngs])
    shape = len(rules), toy.width
    parameters, adam = np.zeros(shape), Adam(toy.learning_rate, shape)
    means = np.empty((toy.steps, len(rules), len(toy.rewards)))
    for expected in means:
        eta = toy.start + (directions @ parameters[..., None])[..., 0]
        expected[:] = toy.expected_rewards(eta)
        push = policy_gradient(toy, eta, rules, rngs)
        parameters += adam.ascend((push[:, None] @ directions)[:, 0])
    return {name: means[..., k].T.copy() for k, name in enumerate(toy.names)}


def policy_gradient(toy, eta, rules, rngs):
    """Return the mean of advantage * score for each natural parameter, `[seed, choice]`."""
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


def mean_update(toy, estimator, *, batches):
    """Return the mean update for each natural parameter at the initial policy, before Adam.

    All estimators get the same batches, which are drawn with seed 0.
    """
    rng, eta = np.random.default_rng(0), toy.start[None]
    updates = [
        policy_gradient(toy, eta, [rule_for(toy, estimator)], [rng])[0] for _ in range(batches)
    ]
    return np.mean(updates, axis=0)
