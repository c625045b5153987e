"""Forks toys, to see what shared parameters do: expected rewards are exact, without a model."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from benchmarks.forks._statistics import concordance
from benchmarks.toys._run import Adam, policy_gradient, rule_for
from benchmarks.toys._toys import TOYS

from gdpo.diagnostics import diagnose

COSINES = (0.0, 0.5)
_POINTS, _FURTHER, _SEEDS, _GROUPS = (10, 40, 80), 10, 10, 512


@dataclass(slots=True)
class _Run:
    """Stores a run of a toy that can be copied at any step."""

    toy: Any
    rule: Any
    rng: np.random.Generator
    directions: Any
    parameters: Any
    adam: Adam

    @property
    def eta(self) -> Any:
        return self.toy.start + (self.directions @ self.parameters[..., None])[..., 0]

    def step(self, toy: Any) -> None:
        """Take one step with the weights of this toy."""
        push = policy_gradient(toy, self.eta, [self.rule], [self.rng])
        self.parameters = self.parameters + self.adam.ascend(
            (push[:, None] @ self.directions)[:, 0]
        )


def toy_concordances(cosine: float) -> list[float]:
    """Return the mean concordance over points and estimators of each seed."""
    toy = replace(TOYS["ten_rewards"], cosine=cosine)
    found = []
    for seed in range(_SEEDS):
        of_seed = [each for name in ("grpo", "gdpo") for each in _concordances(toy, name, seed)]
        found.append(float(np.mean(of_seed)))
    return found


def _concordances(toy: Any, estimator: str, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    directions = toy.directions(rng)[None]
    run = _Run(
        toy,
        rule_for(toy, estimator),
        rng,
        directions,
        np.zeros((1, toy.width)),
        Adam(toy.learning_rate, (1, toy.width)),
    )
    found = []
    for step in range(1, _POINTS[-1] + 1):
        run.step(toy)
        if step in _POINTS:
            found.append(concordance(*_shares_and_effects(run, estimator)))
    return found


def _shares_and_effects(run: _Run, estimator: str) -> tuple[Any, Any]:
    toy = run.toy
    shape = (_GROUPS, toy.samples, len(toy.choices) + len(toy.rewards))
    _, fresh = toy.sample(run.eta[0], np.random.default_rng(1).random(shape))
    diagnosis = diagnose(fresh, None, toy.names, estimator=estimator)
    spread = fresh.std(axis=1, ddof=1)
    std = np.array([each[each > 0].mean() if each.any() else np.inf for each in spread.T])
    usual = _after(run, toy)
    taken = [_after(run, _without(toy, k))[k] for k in range(len(toy.rewards))]
    return diagnosis.influence.shares, (usual - np.array(taken)) / std


def _after(run: _Run, toy: Any) -> Any:
    """Return the expected rewards after some further steps with the weights of this toy."""
    forked = copy.deepcopy(run)
    for _ in range(_FURTHER):
        forked.step(toy)
    return toy.expected_rewards(forked.eta)[0]


def _without(toy: Any, k: int) -> Any:
    rewards = list(toy.rewards)
    rewards[k] = replace(rewards[k], measured=replace(rewards[k].measured, weight=0.0))
    return replace(toy, rewards=tuple(rewards))
