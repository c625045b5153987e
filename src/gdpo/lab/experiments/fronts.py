"""Computes the trade-off between two rewards over a comparison's variants."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from gdpo.errors import ConfigError
from gdpo.lab.experiments.comparison import Comparison, listed
from gdpo.lab.experiments.reading import OPEN, Measured
from gdpo.lab.experiments.statistics import Interval, paired_difference


@dataclass(frozen=True, slots=True)
class Point:
    """Stores where one variant's runs end in two rewards."""

    label: str
    first: Interval
    """Mean final reward over the seeds, with Student's t interval. NaN: no run has ended."""
    second: Interval

    @property
    def estimator(self) -> str:
        """The variant's estimator, or the user's name for it."""
        return self.label.partition(" ")[0]

    @property
    def means(self) -> tuple[float, float]:
        """The mean final value of each reward."""
        return self.first.value, self.second.value

    @property
    def is_known(self) -> bool:
        """Whether a run has ended with both rewards."""
        return not any(map(isnan, self.means))


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Stores the final means of two rewards for every estimator variant."""

    rewards: tuple[Measured, Measured]
    points: tuple[Point, ...]

    def on_front(self, point: Point) -> bool:
        """Return whether a point has values and no variant of the same estimator dominates it.

        A variant dominates a point if its means are at least as high in both rewards and higher in
        one.
        """
        ours = np.array(point.means)
        others = np.array([p.means for p in self.points if p.estimator == point.estimator])
        better = (others >= ours).all(axis=1) & (others > ours).any(axis=1)
        return point.is_known and not better.any()


def read_front(text: str) -> tuple[str, str]:
    """Return the two rewards in `--front`.

    Raises:
        ConfigError: If the text does not name two different rewards.

    Examples:
        >>> read_front("correctness, length")
        ('correctness', 'length')
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    _check_two(names)
    return names[0], names[1]


def _check_two(names: Sequence[str]) -> None:
    if len(names) != 2 or names[0] == names[1]:
        given = ",".join(names)
        raise ConfigError(f"--front {given}: name two rewards, as in --front correctness,length")


def trade_off(comparison: Comparison, rewards: tuple[str, str]) -> TradeOff:
    """Return where each variant ends in two rewards. Only ended runs count.

    Raises:
        ConfigError: If the rewards are the same, the experiment has no such reward, or labels
            define it differently.
    """
    _check_two(rewards)
    experiment = comparison.experiment
    known = {reward.name: reward for reward in experiment.rewards}
    for name in rewards:
        if name not in known:
            raise ConfigError(
                f"--front: there is no reward {name!r}. The rewards: {listed([*known])}"
            )
        if any(reward == name for _, reward in experiment.unlike):
            raise ConfigError(
                f"--front: the gate or options of {name} differ between the variants, so its "
                "values are not comparable. Choose another reward"
            )
    first, second = known[rewards[0]], known[rewards[1]]
    points = (
        Point(label, _end(comparison, label, first), _end(comparison, label, second))
        for label in experiment.labels
    )
    return TradeOff((first, second), tuple(points))


def _end(comparison: Comparison, label: str, reward: Measured) -> Interval:
    """Return the mean final reward of a label's ended runs, with its interval."""
    runs = comparison.experiment.runs_of(label)
    finals = zip(runs, comparison.outcome(label, reward.name).finals, strict=True)
    ended = np.array([v for run, v in finals if run.state not in OPEN and not np.isnan(v)])
    found = paired_difference(ended, np.zeros_like(ended))
    # `max` and `min` keep NaN if NaN is their first argument.
    return Interval(found.value, max(found.low, reward.low), min(found.high, reward.high))
