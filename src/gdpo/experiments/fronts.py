"""Computes the trade-off between two rewards over the variants of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gdpo.errors import ConfigError
from gdpo.experiments.comparison import Comparison, listed
from gdpo.experiments.reading import OPEN, Measured
from gdpo.experiments.statistics import Interval, paired_difference


@dataclass(frozen=True, slots=True)
class Point:
    """Stores where the runs of one variant end in two rewards."""

    label: str
    first: Interval
    """Mean final reward over the seeds, with Student's t interval."""
    second: Interval
    on_front: bool
    """Whether no variant of the same estimator has means at least as high in both rewards and
    higher in one."""


@dataclass(frozen=True, slots=True)
class Front:
    """Stores the variants of one estimator and the hypervolume of their front."""

    estimator: str
    points: tuple[Point, ...]
    hypervolume: Interval
    """Mean over the seeds of the hypervolume of each seed, with Student's t interval."""
    difference: Interval | None
    """Mean paired difference of the hypervolume from the first estimator. None: the first."""
    seeds: int
    """Number of seeds for which the runs of all variants have ended."""


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Stores where the variants of all estimators end in two rewards."""

    rewards: tuple[Measured, Measured]
    fronts: tuple[Front, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all fronts."""
        return tuple(point for front in self.fronts for point in front.points)


def read_front(text: str) -> tuple[str, str]:
    """Return the two rewards in the value of `--front`.

    Raises:
        ConfigError: If the text does not name two different rewards.

    Examples:
        >>> read_front("correctness, length")
        ('correctness', 'length')
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    _check_two(names, text)
    return names[0], names[1]


def _check_two(names: Sequence[str], text: str) -> None:
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(f"--front {text}: name two rewards, as in --front correctness,length")


def trade_off(comparison: Comparison, rewards: tuple[str, str]) -> TradeOff:
    """Return the fronts of all estimators, with the ranges of the two rewards.

    Raises:
        ConfigError: If the rewards are the same, the experiment has no such reward, or labels
            define it differently.
    """
    found = fronts(comparison, rewards)
    first, second = rewards
    return TradeOff((_measured(comparison, first), _measured(comparison, second)), found)


def fronts(comparison: Comparison, rewards: tuple[str, str]) -> tuple[Front, ...]:
    """Return the front of each estimator: where its variants end in two rewards.

    Only runs that have ended count. The hypervolume of a seed is the area of all pairs of rewards
    that a variant reaches or exceeds in both. Each reward is scaled to [0, 1] by its range, and the
    reference point is the low end of both ranges.

    Args:
        comparison: The results of an experiment.
        rewards: Names of two rewards. Higher is better for both.

    Raises:
        ConfigError: If the rewards are the same, the experiment has no such reward, or labels
            define it differently.
    """
    check_front(rewards, comparison)
    groups: dict[str, list[str]] = {}
    for label in comparison.experiment.labels:
        groups.setdefault(label.partition(" ")[0], []).append(label)
    volumes = {name: _of_seeds(comparison, labels, rewards) for name, labels in groups.items()}
    baseline = next(iter(volumes))
    return tuple(
        Front(
            estimator=name,
            points=_points(comparison, labels, rewards),
            hypervolume=_mean(list(volumes[name].values()), 0.0, 1.0),
            difference=None if name == baseline else _paired(volumes[name], volumes[baseline]),
            seeds=len(volumes[name]),
        )
        for name, labels in groups.items()
    )


def check_front(rewards: Sequence[str], comparison: Comparison) -> None:
    """Raise a ConfigError unless these are two rewards, and each exists and has one definition."""
    _check_two(rewards, ",".join(rewards))
    names = [reward.name for reward in comparison.experiment.rewards]
    for name in rewards:
        if name not in names:
            raise ConfigError(f"--front: there is no reward {name!r}. The rewards: {listed(names)}")
        if any(reward == name for _, reward in comparison.experiment.unlike):
            raise ConfigError(
                f"--front: the gate or options of {name} differ between the variants, so its "
                "values are not comparable. Choose another reward"
            )


def hypervolume(points: Float[np.ndarray, "point 2"]) -> float:
    r"""Return the exact area that points dominate, with the reference point (0, 0).

    The area is $\sum_i (x_i - x_{i+1}) \max_{j \le i} y_j$ for points in descending order of $x$,
    where $x_{n+1} = 0$.

    Args:
        points: Pairs of rewards, both at least 0.

    References:
        Zitzler and Thiele 1998, "Multiobjective optimization using evolutionary algorithms".

    Examples:
        >>> hypervolume(np.array([[1.0, 0.5], [0.5, 1.0]]))
        0.75
    """
    x, y = points[np.argsort(-points[:, 0])].T
    return float(np.sum((x - np.append(x[1:], 0.0)) * np.maximum.accumulate(y)))


def _points(
    comparison: Comparison, labels: Sequence[str], rewards: tuple[str, str]
) -> tuple[Point, ...]:
    ranges = [_measured(comparison, name) for name in rewards]
    means = [
        [_mean(list(_finals(comparison, label, r.name).values()), r.low, r.high) for r in ranges]
        for label in labels
    ]
    values = np.array([[first.value, second.value] for first, second in means])
    return tuple(
        Point(label, first, second, on_front=not _dominated(own, values))
        for label, (first, second), own in zip(labels, means, values, strict=True)
    )


def _dominated(own: Float[np.ndarray, "2"], values: Float[np.ndarray, "point 2"]) -> bool:
    """Return whether a point is dominated. A point without a value counts as dominated."""
    better = (values >= own).all(axis=1) & (values > own).any(axis=1)
    return bool(np.isnan(own).any() or better.any())


def _of_seeds(
    comparison: Comparison, labels: Sequence[str], rewards: tuple[str, str]
) -> dict[int, float]:
    """Return the hypervolume of each seed for which all variants have ended."""
    scaled = [
        [_scaled(_finals(comparison, label, name), comparison, name) for name in rewards]
        for label in labels
    ]
    seeds = set.intersection(*(set(values) for pair in scaled for values in pair))
    return {
        seed: hypervolume(np.array([[values[seed] for values in pair] for pair in scaled]))
        for seed in sorted(seeds)
    }


def _finals(comparison: Comparison, label: str, reward: str) -> dict[int, float]:
    runs = comparison.experiment.runs_of(label)
    finals = comparison.outcome(label, reward).finals
    return {
        run.seed: float(value)
        for run, value in zip(runs, finals, strict=True)
        if run.state not in OPEN and not np.isnan(value)
    }


def _scaled(finals: Mapping[int, float], comparison: Comparison, reward: str) -> dict[int, float]:
    span = _measured(comparison, reward)
    return {
        seed: min(1.0, max(0.0, (value - span.low) / (span.high - span.low)))
        for seed, value in finals.items()
    }


def _measured(comparison: Comparison, reward: str) -> Measured:
    return next(each for each in comparison.experiment.rewards if each.name == reward)


def _mean(values: Sequence[float], low: float, high: float) -> Interval:
    found = np.array(values, dtype=float)
    interval = paired_difference(found, np.zeros_like(found))
    # `max` and `min` keep NaN if NaN is their first argument.
    return Interval(interval.value, max(interval.low, low), min(interval.high, high))


def _paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    seeds = [seed for seed in ours if seed in theirs]
    return paired_difference(
        np.array([ours[seed] for seed in seeds]), np.array([theirs[seed] for seed in seeds])
    )
