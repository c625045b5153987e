"""Run directories with recorded rollouts, and experiments made of them."""

import numpy as np
from tests.rollouts.built import rollout

from gdpo.advantages import ESTIMATORS
from gdpo.lab.experiments.reading import ComparedRun, Experiment, Measured
from gdpo.rollouts import rollout_file, write_rollouts

REWARDS = (Measured("format", 0.0, 1.0, 1.0), Measured("correct", -3.0, 3.0, 1.0))
GROUPS, SAMPLES = 4, 4


def rewards_of(step, steps, rng, groups):
    formatted = (rng.random((groups, SAMPLES)) < 0.1 + 0.85 * step / steps).astype(float)
    correct = np.clip(rng.normal(-2 + 4 * step / steps, 1.0, (groups, SAMPLES)).round(1), -3, 3)
    return np.stack([formatted, correct], axis=-1)


def record(
    path,
    label,
    step,
    rewards,
    *,
    texts=("Say it.", "It."),
    names=("format", "correct"),
    weights=None,
):
    """Write the rollouts of one step, with the advantages of its estimator. Default weights: 1."""
    weights = [1.0] * len(names) if weights is None else weights
    estimator = ESTIMATORS.get(label, ESTIMATORS["grpo"])
    advantages = estimator(rewards, np.array(weights))
    rollouts = [
        rollout(
            *(step, group, sample),
            {n: None if np.isnan(v) else v for n, v in zip(names, row, strict=True)},
            run=path.name,
            prompt=[{"role": "user", "content": f"{texts[0]} ({step}, {group})"}],
            completion=texts[1],
            weights=dict(zip(names, weights, strict=True)),
            advantage=float(advantages[group, sample]),
            num_tokens=5,
        )
        for group, values in enumerate(rewards.tolist())
        for sample, row in enumerate(values)
    ]
    rollouts.sort(key=lambda each: each.sample_id)  # no reader may count on the order
    write_rollouts(rollout_file(path / "rollouts", step), rollouts)


def trained(folder, label, seed, *, steps=12, groups=GROUPS, **kwargs):
    """A run whose rewards rise."""
    rng, means = np.random.default_rng(seed), []
    path = folder / f"run-{len(list(folder.iterdir())) if folder.exists() else 0}"
    for step in range(1, steps + 1):
        rewards = rewards_of(step, steps, rng, groups)
        record(path, label, step, rewards, **kwargs)
        means.append(rewards.mean(axis=(0, 1)))
    names = kwargs.get("names", ("format", "correct"))
    by_name = {name: np.array(means)[:, k] for k, name in enumerate(names)}
    return ComparedRun(label, seed, path, "finished", "", by_name)


def unrecorded(label, seed, folder, *, steps=12, state="finished", why="", rewards=REWARDS):
    """A run that left no rollouts, as those of the toys."""
    rise = np.linspace(0.1, 0.9, steps) + 0.01 * seed
    means = {r.name: r.low + rise * (r.high - r.low) for r in rewards}
    return ComparedRun(label, seed, folder / f"{len(label)}-{seed}", state, why, means)


def experiment_of(folder, runs, *, rewards=REWARDS, name="toy", total_steps=None):
    labels = tuple(dict.fromkeys(run.label for run in runs))
    ordered = tuple(sorted(runs, key=lambda run: labels.index(run.label)))
    seeds = tuple(sorted({run.seed for run in runs}))
    steps = total_steps or max(run.steps for run in runs)
    return Experiment(name, folder, labels, seeds, rewards, steps, ordered, 0.8)


def two_estimators(folder, seeds=(1, 2), **kwargs):
    runs = [trained(folder, label, seed, **kwargs) for label in ("grpo", "gdpo") for seed in seeds]
    return experiment_of(folder, runs)
