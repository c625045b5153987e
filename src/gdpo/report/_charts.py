"""Line charts: their shapes for inline SVG, and the numbers under them for the page's script."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from sys import float_info
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from gdpo.report.text import number

COLOURS = 8
"""Estimators that differ in colour; the page's style has as many, each with a dash pattern of its own."""

Points = Float[np.ndarray, " point"]
Curves = Float[np.ndarray, "curve point"]


@dataclass(frozen=True, slots=True)
class Line:
    """One estimator in a chart."""

    label: str
    colour: int
    value: Points
    low: Points | None = None
    """The band around it goes from here; None: it has none."""
    high: Points | None = None
    thin: Curves = field(default_factory=lambda: np.empty((0, 0)))
    """Drawn thinly beside it."""
    note: tuple[str, ...] = ()
    """For each point, behind its value."""
    censored: tuple[float, ...] = ()
    """Steps marked with a cross: a run ended there and had not come to it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the steps."""

    WIDTH: ClassVar[int] = 440
    """Of the picture, in pixels."""
    HEIGHT: ClassVar[int] = 220
    LEFT: ClassVar[int] = 46
    """End of the area between the axes, in pixels from the left or from the top."""
    RIGHT: ClassVar[int] = 428
    TOP: ClassVar[int] = 10
    BOTTOM: ClassVar[int] = 184
    title: str
    label: str
    """What the vertical axis is."""
    x: Points
    low: float
    """Of the vertical axis."""
    high: float
    lines: Sequence[Line]
    threshold: float | None = None
    stairs: bool = False
    """A value holds until the next point."""
    unit: str = "step"
    """What the horizontal axis counts."""
    rest: str = "at the end"
    """What the last point is called, whose values are shown while none is chosen."""

    def across(self, step: float) -> float:
        """Where a step lies in the picture."""
        first, last = float(self.x[0]), float(self.x[-1])
        share = (step - first) / (last - first) if last > first else 0.5
        return round(self.LEFT + share * (self.RIGHT - self.LEFT), 1)

    def up(self, value: float) -> float:
        """Where a value lies in the picture."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return round(self.BOTTOM - share * (self.BOTTOM - self.TOP), 1)

    def data(self) -> dict[str, Any]:
        """What a reader of the page can ask it for: every estimator's values at a step."""
        return {
            "unit": self.unit,
            "rest": self.rest,
            "x": [round(float(step), 1) for step in self.x],
            "px": [self.across(float(step)) for step in self.x],
            "lines": [
                {
                    "colour": line.colour,
                    "py": [self.up(v) if isfinite(v) else None for v in line.value.tolist()],
                    "text": list(self._texts(line)),
                }
                for line in self.lines
            ],
        }

    def path(self, values: Points) -> str:
        """A line through what is known; a gap where nothing is."""
        parts, drawing, before = [""], False, 0.0
        for step, value in zip(self.x.tolist(), values.tolist(), strict=True):
            if not isfinite(value):
                drawing = False
                continue
            x, y = self.across(step), self.up(value)
            if not drawing:
                parts.append(f"M{x:g} {y:g}")
            elif not self.stairs:
                parts.append(f"L{x:g} {y:g}")
            elif y != before or step == self.x[-1]:
                parts.append(f"H{x:g}V{y:g}")
            drawing, before = True, y
        if len(parts) == 2:  # a single point has no line: a round cap makes it a dot
            parts.append("h0")
        return "".join(parts)

    def band(self, line: Line) -> str:
        """Around one stretch of a line after another."""
        if line.low is None or line.high is None:
            return ""
        known = np.isfinite(line.low) & np.isfinite(line.high)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(int), [0]])))
        shapes: list[str] = []
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            top = self._corners(line.high, start, end)
            bottom = self._corners(line.low, start, end)[::-1]
            shapes.append("M" + "L".join([*top, *bottom]) + "Z")
        return "".join(shapes)

    def crosses(self, line: Line) -> Iterator[str]:
        """Where runs ended that had not come to it."""
        for step in line.censored:
            place = max(0, int(np.searchsorted(self.x, step, side="right")) - 1)
            x, y = self.across(step), self.up(float(line.value[place]))
            yield f"M{x} {y - 5}V{y + 5}M{x - 5} {y}H{x + 5}"

    def _texts(self, line: Line) -> Iterator[str]:
        nothing = np.full(len(line.value), np.nan)
        ends = (nothing if each is None else each for each in (line.low, line.high))
        rows = zip(line.value.tolist(), *(each.tolist() for each in ends), strict=True)
        for i, (value, low, high) in enumerate(rows):
            shown = [number(v, self.low, self.high) for v in (value, low, high)]
            band = f" ({shown[1]} to {shown[2]})" if isfinite(low) and low != high else ""
            yield f"{shown[0]}{band} {line.note[i] if line.note else ''}".rstrip()

    def _corners(self, values: Points, start: int, end: int) -> list[str]:
        corners: list[str] = []
        for i in range(start, end):
            if self.stairs and i > start and values[i] != values[i - 1]:
                corners.append(f"{self.across(self.x[i]):g} {self.up(values[i - 1]):g}")
            flat = (
                self.stairs and start < i < end - 1 and values[i - 1] == values[i] == values[i + 1]
            )
            if not flat:
                corners.append(f"{self.across(self.x[i]):g} {self.up(values[i]):g}")
        return corners


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, three to seven of them.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / 5
    if not raw > float_info.min:
        return [low]
    scale = 10 ** np.floor(np.log10(raw))
    width = scale * next(m for m in (1, 2, 5, 10) if raw <= m * scale * (1 + 1e-9))
    first, last = np.ceil(low / width - 1e-9), np.floor(high / width + 1e-9)
    return [float(f"{i * width:.10g}") + 0.0 for i in np.arange(first, last + 1)]


def smoothing(total_steps: int) -> int:
    """Steps of the running mean that the curves show: a twentieth of the run, and an odd number."""
    return max(1, total_steps // 20) // 2 * 2 + 1


def running_mean(table: Curves, window: int) -> Curves:
    """Over the steps around each, fewer at the ends; of what is known, and only where it is."""
    known = np.isfinite(table)
    half = window // 2

    def moving_sum(values: Curves) -> Curves:
        sums = np.cumsum(np.pad(values, ((0, 0), (half + 1, half))), axis=1)
        return sums[:, window:] - sums[:, :-window]

    counts = moving_sum(known.astype(np.float64))
    sums = moving_sum(np.where(known, table, 0.0))
    return np.where(known, sums / np.maximum(counts, 1), np.nan)


def binned(table: Curves, points: int) -> Curves:
    """Means of neighbouring steps, so that a long run has no more than so many points."""
    if table.shape[1] <= points:
        return table
    return np.stack([_nanmean(part) for part in np.array_split(table, points, axis=1)], axis=1)


def _nanmean(part: Curves) -> Float[np.ndarray, " seed"]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nothing known: NaN is the answer
        return np.nanmean(part, axis=1)
