"""Draws the trade-off between two rewards: a point with two intervals for each variant."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gdpo.lab.experiments.fronts import Point, TradeOff
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.experiments.statistics import Interval
from gdpo.lab.report._tables import Name, Table, estimate
from gdpo.report.charts import fitted
from gdpo.report.colours import styles

MARKERS = (
    "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "m-4 -4h8v8h-8z",
    "m0 -5.5l5 9h-10z",
    "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
)
"""SVG paths of a circle, a square, a triangle and a diamond around the current position. The
estimators use them in this order, so that the picture is clear without colours."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Stores the range of one axis and its position in the picture."""

    reward: Measured
    low: float
    high: float
    start: float
    """Position of the low end, in pixels from the left or the top."""
    end: float

    def at(self, value: float) -> float:
        """Return a value's position in pixels."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True)
class Mark:
    """Stores the position of one variant in the picture."""

    label: str
    x: float
    y: float
    on_front: bool
    cross: str
    """SVG path of both intervals. Empty: no interval is known."""
    number: int
    """Row of the variant in the table, counted from 1."""


@dataclass(frozen=True, slots=True)
class Series:
    """Stores the marks of one estimator."""

    estimator: str
    colour: int
    """Number of the style. See `gdpo.report.colours`."""
    marker: str
    """SVG path of the marker, around the current position."""
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class FrontChart:
    """Stores the picture of a trade-off."""

    WIDTH: ClassVar[int] = 440
    """Width of the picture, in pixels."""
    HEIGHT: ClassVar[int] = 330
    LEFT: ClassVar[int] = 62
    """Left edge of the plot area, in pixels from the left."""
    RIGHT: ClassVar[int] = 428
    TOP: ClassVar[int] = 10
    """Upper edge of the plot area, in pixels from the top."""
    BOTTOM: ClassVar[int] = 288
    NOTE: ClassVar[str] = (
        "Point: mean final reward over the seeds. Cross: 95 % intervals. Filled: on its "
        "estimator's front. Number: row of the table. The axes are fitted to the points."
    )
    across: Axis
    up: Axis
    series: tuple[Series, ...]

    @property
    def title(self) -> str:
        """Names of both rewards."""
        return f"{self.up.reward.name} against {self.across.reward.name}"


def front_chart(found: TradeOff) -> FrontChart | None:
    """Return the picture of a trade-off. None: no variant has both rewards."""
    numbered = [(n, point) for n, point in enumerate(found.points, 1) if point.is_known]
    if not numbered:
        return None
    first, second = found.rewards
    across = _axis(first, [p.first for _, p in numbered], FrontChart.LEFT, FrontChart.RIGHT)
    up = _axis(second, [p.second for _, p in numbered], FrontChart.BOTTOM, FrontChart.TOP)
    names = list(dict.fromkeys(point.estimator for point in found.points))
    colours = styles(names)
    series = (
        Series(
            name,
            colours[name].place,
            MARKERS[place % len(MARKERS)],
            tuple(
                Mark(
                    p.label,
                    across.at(p.first.value),
                    up.at(p.second.value),
                    found.on_front(p),
                    _cross(p, across, up),
                    n,
                )
                for n, p in numbered
                if p.estimator == name
            ),
        )
        for place, name in enumerate(names)
    )
    return FrontChart(across, up, tuple(series))


def _axis(reward: Measured, found: list[Interval], start: float, end: float) -> Axis:
    drawn = np.array([end for each in found for end in (each.value, each.low, each.high)])
    return Axis(reward, *fitted(drawn, reward.low, reward.high), start, end)


def _cross(point: Point, across: Axis, up: Axis) -> str:
    x, y, cross = across.at(point.first.value), up.at(point.second.value), ""
    if np.isfinite(point.first.low):
        cross += f"M{across.at(point.first.low):g} {y:g}H{across.at(point.first.high):g}"
    if np.isfinite(point.second.low):
        cross += f"M{x:g} {up.at(point.second.low):g}V{up.at(point.second.high):g}"
    return cross


def front_table(found: TradeOff) -> Table:
    """Return the table of all variants: mean final rewards, and whether they are on a front."""
    first, second = found.rewards
    rows = [
        [
            str(number),
            Name(point.label),
            estimate(point.first, first),
            estimate(point.second, second),
            "yes" if found.on_front(point) else "no",
        ]
        for number, point in enumerate(found.points, 1)
    ]
    columns = ["point", "variant", first.name, second.name, "front"]
    caption = f"Final {first.name} and {second.name} of each variant"
    return Table("front", caption, columns, rows)
