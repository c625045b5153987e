"""Draws the trade-off between two rewards: a point with two intervals for each variant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import ClassVar, TypeAlias

import numpy as np

from gdpo.experiments.fronts import Point, TradeOff
from gdpo.experiments.reading import Measured
from gdpo.experiments.statistics import Interval
from gdpo.report._charts import fitted
from gdpo.report._front_tables import point_texts
from gdpo.report._tables import estimate
from gdpo.report.colours import styles
from gdpo.report.text import short

MARKERS = (
    "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "m-4 -4h8v8h-8z",
    "m0 -5.5l5 9h-10z",
    "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
)
"""SVG paths of a circle, a square, a triangle and a diamond around the current position. The
estimators use them in this order, so that the picture is clear without colours."""

PNG_MARKERS = "os^D"
"""The same markers in the notation of matplotlib."""

_LETTER, _LINE = 6.2, 11.0
"""Approximate width and height of a character at a point, in pixels."""


_Box: TypeAlias = tuple[float, float, float, float]
"""Left, upper, right and lower edge of a rectangle, in pixels."""


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
        """Return the position of a value, in pixels."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def note(self) -> str:
        """A sentence that states which part of the range the axis shows. Empty: all of it."""
        reward = self.reward
        if self.low <= reward.low and self.high >= reward.high:
            return ""
        ends = (f"{end:.3g}".replace("-", "−") for end in (self.low, self.high))
        shown, whole = " to ".join(ends), f"{short(reward.low)} to {short(reward.high)}"
        return f"The axis of {reward.name} shows {shown} of the range {whole}."


@dataclass(frozen=True, slots=True)
class Mark:
    """Stores the position of one variant in the picture."""

    point: Point
    x: float
    y: float
    cross: str
    """SVG path of both intervals. Empty: no interval is known."""
    text: str
    text_x: float
    text_y: float
    title: str
    """The variant with its numbers, shown while the pointer is on it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Stores the marks of one estimator."""

    estimator: str
    colour: int
    """Number of the style. See `gdpo.report.colours`."""
    shape: int
    """Index of the marker in `MARKERS`."""
    marks: tuple[Mark, ...]

    @property
    def marker(self) -> str:
        """SVG path of the marker, around the current position."""
        return MARKERS[self.shape]

    @property
    def front(self) -> list[Point]:
        """The points on the front, by ascending first reward."""
        on_front = (mark.point for mark in self.marks if mark.point.on_front)
        return sorted(on_front, key=lambda point: (point.first.value, -point.second.value))


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
    across: Axis
    up: Axis
    series: tuple[Series, ...]
    key: str
    """The varied key whose values are at the points. Empty: the points are numbered."""
    missing: tuple[str, ...]
    """Variants without a point, because no run has ended with both rewards."""

    @property
    def title(self) -> str:
        """Names of both rewards."""
        return f"{self.up.reward.name} against {self.across.reward.name}"

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the picture."""
        texts = f"value of {self.key}" if self.key else "row of the table"
        left_out = f"Without an ended run: {', '.join(self.missing)}." if self.missing else ""
        return [
            "Point: mean final reward over the seeds. Cross: 95 % intervals. Filled: on the front "
            f"of its estimator. Line: edge of the area below this front. Text at a point: "
            f"{texts}.",
            *filter(None, (self.across.note, self.up.note, left_out)),
        ]

    def steps(self, series: Series) -> str:
        """Return the SVG path around the area that a front dominates. Empty: no point is known."""
        points = series.front
        if not points:
            return ""
        corners = [
            (self.across.at(point.first.value), self.up.at(point.second.value)) for point in points
        ]
        below = [y for _, y in corners[1:]] + [self.up.start]
        parts = (f"H{x:g}V{y:g}" for (x, _), y in zip(corners, below, strict=True))
        return f"M{self.across.start:g} {corners[0][1]:g}{''.join(parts)}"


def front_chart(found: TradeOff) -> FrontChart | None:
    """Return the picture of a trade-off. None: no variant has a value of both rewards.

    The axes are fitted to the points and their intervals. See `gdpo.report._charts.fitted`.
    """
    known = [point for point in found.points if _is_known(point)]
    if not known:
        return None
    first, second = found.rewards
    across = _axis(first, [p.first for p in known], FrontChart.LEFT, FrontChart.RIGHT)
    up = _axis(second, [p.second for p in known], FrontChart.BOTTOM, FrontChart.TOP)
    texts = point_texts(found)
    places = styles([front.estimator for front in found.fronts])
    marks = _marks(found, texts.texts, across, up)
    return FrontChart(
        across=across,
        up=up,
        series=tuple(
            Series(
                front.estimator,
                places[front.estimator].place,
                place % len(MARKERS),
                tuple(marks[p.label] for p in front.points if p.label in marks),
            )
            for place, front in enumerate(found.fronts)
        ),
        key=texts.key,
        missing=tuple(point.label for point in found.points if not _is_known(point)),
    )


def _is_known(point: Point) -> bool:
    return isfinite(point.first.value) and isfinite(point.second.value)


def _axis(reward: Measured, found: Sequence[Interval], start: float, end: float) -> Axis:
    drawn = np.array([end for each in found for end in (each.value, each.low, each.high)])
    low, high = fitted(drawn, reward.low, reward.high)
    return Axis(reward, low, high, start, end)


def _marks(found: TradeOff, texts: Sequence[str], across: Axis, up: Axis) -> dict[str, Mark]:
    """Return the mark of each variant with known values, keyed by label."""
    known = [each for each in zip(found.points, texts, strict=True) if _is_known(each[0])]
    taken = [_box_of_marker(across.at(p.first.value), up.at(p.second.value)) for p, _ in known]
    marks: dict[str, Mark] = {}
    for point, text in known:
        x, y = across.at(point.first.value), up.at(point.second.value)
        place, box = _free_place(x, y, text, taken)
        taken.append(box)
        cross, title = "".join(_cross(point, across, up)), _title(point, found)
        marks[point.label] = Mark(point, x, y, cross, text, *place, title)
    return marks


def _cross(point: Point, across: Axis, up: Axis) -> Iterator[str]:
    x, y = across.at(point.first.value), up.at(point.second.value)
    if isfinite(point.first.low):
        yield f"M{across.at(point.first.low):g} {y:g}H{across.at(point.first.high):g}"
    if isfinite(point.second.low):
        yield f"M{x:g} {up.at(point.second.low):g}V{up.at(point.second.high):g}"


def _free_place(
    x: float, y: float, text: str, taken: Sequence[_Box]
) -> tuple[tuple[float, float], _Box]:
    """Return where the text of a point begins: the first corner that covers nothing else."""
    width = _LETTER * len(text)
    corners = [
        (round(x + (7 if right else -7 - width), 1), round(y + (-7 if above else 15), 1))
        for above, right in product((True, False), repeat=2)
    ]
    boxes = [(left, line - _LINE + 2, left + width, line) for left, line in corners]
    free = (i for i, box in enumerate(boxes) if not any(_overlap(box, each) for each in taken))
    chosen = next(free, 0)
    return corners[chosen], boxes[chosen]


def _box_of_marker(x: float, y: float) -> _Box:
    return x - 6, y - 6, x + 6, y + 6


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _title(point: Point, found: TradeOff) -> str:
    ends = zip(found.rewards, (point.first, point.second), strict=True)
    numbers = ", ".join(f"{reward.name} {estimate(end, reward)}" for reward, end in ends)
    return f"{point.label}: {numbers}{', on the front' if point.on_front else ''}"
