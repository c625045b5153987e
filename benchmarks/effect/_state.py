"""Predicts the own effects of a state: from gradients of fresh samples, and by the baselines."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from benchmarks.effect._keep import SLOPE, Kept, loaded
from benchmarks.effect._vectors import Adam, Gradients

from gdpo.advantages import ESTIMATORS
from gdpo.diagnostics.effect import LEAST_GROUPS, Coefficients, effect_of

BATCHES, GROUPS = 16, 16
"""Batches of fresh groups, and groups in each of them, as in a training batch."""

FROZEN = 10
"""Steps of the prediction with the gradients of one state."""


def predicted(
    start: Any, kept: Kept, point: int, gradients: Gradients, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the predictions for each reward of a state.

    Args:
        start: Fresh samples of the policy after `point` steps (`benchmarks.forks._measure`).
        kept: What was kept of the run.
        point: Number of steps.
        gradients: Makes gradients with the model of the run.
        settings: Names and ranges of the rewards, estimator, weights, `longest` norm.
    """
    loaded(gradients.model, kept.weights[point])
    rewards = start.rewards[: BATCHES * GROUPS].astype(np.float64)
    spread = rewards.std(axis=1, ddof=1)
    std = np.array([each[each > 1e-9].mean() if (each > 1e-9).any() else 0.0 for each in spread.T])
    count = rewards.shape[2]
    sums, pushes, lengths = [], [], []
    whole = Coefficients.of(rewards, settings["weights"], ESTIMATORS[settings["estimator"]])
    per = GROUPS * rewards.shape[1]
    for batch in range(BATCHES):
        part = slice(batch * per, (batch + 1) * per)
        prompts, completions = start.prompts[part], start.completions[part]
        rows = (whole.gradient, whole.presence, whole.advantages[None])
        found = gradients.of(prompts, completions, np.concatenate(rows)[:, part])
        sums.append(found[:count] / per)
        lengths.append(sum(map(len, completions)))
        pushes.append(found[count:])
    toward = torch.stack(sums)  # [batch, reward, parameter]
    pushes = torch.stack(pushes) / float(np.mean(lengths))
    adam = Adam(-kept.first[point], kept.second[point], point, kept.group, settings["longest"])
    steps = torch.stack([_steps(adam, push) for push in pushes])
    products = _products(toward, steps)
    names, most = settings["names"], BATCHES * GROUPS
    # With fewer groups, an effect names no reward as unseen.
    effect = effect_of(products, std, names, groups=LEAST_GROUPS)
    plain = effect_of(_products(toward, pushes), std, names, groups=most)
    halves = [
        effect_of(products[half][:, :, half], std, names, groups=LEAST_GROUPS)
        for half in (slice(0, BATCHES, 2), slice(1, BATCHES, 2))
    ]
    unseen = {
        groups: [list(each.unseen) for each in effects]
        for groups, effects in ((most, [effect]), (most // 2, halves))
    }
    gram = _products(toward, toward)
    frozen = _frozen(adam, toward, pushes) / np.where(std > 0, std, np.inf)[:, None]
    return {
        "std": std.tolist(),
        "effect": effect.matrix.tolist(),
        "errors": effect.errors.tolist(),
        "totals": effect.totals.tolist(),
        "unseen": unseen,
        "lowers": [list(pair) for pair in effect.lowers],
        "plain gradient": np.diag(plain.matrix).tolist(),
        "cosine": _cosine(gram).tolist(),
        "gradient norm": _norm(gram).tolist(),
        "covariance": _covariance(rewards, whole.advantages, std).tolist(),
        "visible slope": _slope([kept.means[s] for s in range(point - SLOPE, point)], std).tolist(),
        "ten frozen steps": np.diag(frozen).tolist(),
        "logistic": _logistic(rewards.mean((0, 1)), std, frozen, settings["ranges"]).tolist(),
    }


def _steps(adam: Adam, push: Any) -> Any:
    """Return the difference that each reward makes to the step, and the step, `[K + 1, p]`."""
    whole = adam.step(push[-1])
    return torch.stack([*(whole - adam.step(push[-1] - each) for each in push[:-1]), whole])


def _products(ones: Any, others: Any) -> Any:
    """Return `[batch, row, batch, row]`, in float64."""
    (batches, count, _), rows = ones.shape, others.shape[1]
    found = ones.flatten(0, 1) @ others.flatten(0, 1).T
    return found.double().numpy().reshape(batches, count, len(others), rows)


def _cosine(gram: Any, draws: int = 20) -> Any:
    """Return the cosine between the gradients of each reward on halves of the batches."""
    rng, batches, found = np.random.default_rng(0), len(gram), []
    for _ in range(draws):
        order = rng.permutation(batches)
        one, other = order[: batches // 2], order[batches // 2 :]
        pairs = ((one, other), (one, one), (other, other))
        cross, own, theirs = (np.einsum("fjbj->j", gram[a][:, :, b]) for a, b in pairs)
        found.append(cross / np.sqrt(np.maximum(own * theirs, 1e-60)))
    return np.mean(found, axis=0)


def _norm(gram: Any) -> Any:
    """Return the norm of the gradient of each reward over all batches."""
    return np.sqrt(np.maximum(np.einsum("fjbj->j", gram), 0)) / len(gram)


def _covariance(rewards: Any, advantages: Any, std: Any) -> Any:
    """Return the covariance of each reward with the advantages within groups, in its std."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    found = (centred * advantages.reshape(rewards.shape[:2])[..., None]).mean((0, 1))
    return found / np.where(std > 0, std, np.inf)


def _slope(means: Any, std: Any) -> Any:
    """Return the slope of each reward over the last training batches, in its std per step."""
    slope = np.polyfit(np.arange(len(means)), np.array(means), 1)[0]
    return slope / np.where(std > 0, std, np.inf)


def _frozen(adam: Adam, toward: Any, pushes: Any) -> Any:
    """Return the effects and totals after `FROZEN` steps, `[reward, K + 1]`.

    The steps use the gradients of one half of the batches, the products those of the other.
    """
    found = []
    for half in (0, 1):
        ends = []
        for left in (*range(pushes.shape[1] - 1), None):
            state, moved, own = adam, torch.zeros_like(adam.first), pushes[half::2]
            for step in range(FROZEN):
                push = own[step % len(own)]
                state, change = state.advanced(push[-1] - (0 if left is None else push[left]))
                moved += change
            ends.append(moved)
        ways = torch.stack([*(ends[-1] - each for each in ends[:-1]), ends[-1]])
        found.append((toward[1 - half :: 2].mean(0) @ ways.T).double().numpy())
    return np.mean(found, axis=0)


def _logistic(means: Any, std: Any, frozen: Any, ranges: Any) -> Any:
    """Return the own effects of the frozen steps with each mean on the logistic curve."""
    low, high = np.array(ranges).T
    width = high - low
    level = np.clip((means - low) / width, 1e-3, 1 - 1e-3)
    at, unit = np.log(level / (1 - level)), std / width / (level * (1 - level))
    total, own = frozen[:, -1], np.diag(frozen)
    with_it, without = (1 / (1 + np.exp(-(at + by * unit))) for by in (total, total - own))
    return (with_it - without) * width / np.where(std > 0, std, np.inf)
