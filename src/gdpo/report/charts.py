"""Defines line charts: their SVG shapes, and the values for the page's script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from sys import float_info
from typing import Any, ClassVar

import numpy as np

from gdpo._shapes import Bool, Float
from gdpo._text import visible
from gdpo.report.text import as_number, number

COLOURS = 8
"""Number of different colours. Lines use the first styles of `gdpo.report.colours`."""

_STEPS = (0.5, 1, 2, 5, 10)
"""Allowed distances between ticks, each to be multiplied by a power of ten."""

Points = Float[np.ndarray, " point"]
Curves = Float[np.ndarray, "curve point"]


@dataclass(frozen=True, slots=True)
class Line:
    """Stores one line of a chart, with its band."""

    label: str
    colour: int
    """Index of the line's style. See `gdpo.report.colours`."""
    value: Points
    low: Points | None = None
    """Lower edge of the band. None: the line has no band."""
    high: Points | None = None
    thin: Curves = field(default_factory=lambda: np.empty((0, 0)))
    """Curves drawn as thin lines."""
    note: tuple[str, ...] = ()
    """Text to show after the value of each point."""
    own: Points | None = None
    """What the line adds to a stack of lines, shown instead of its value and band."""
    censored: tuple[float, ...] = ()
    """Steps at which a run ended without reaching the threshold, marked with a cross."""

    @property
    def numbers(self) -> Curves:
        """The value of each point and the ends of its band, which the page shows and saves."""
        rows = (self.value, self.low, self.high) if self.own is None else (self.own, None, None)
        return np.stack([np.full_like(self.value, np.nan) if r is None else r for r in rows])


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """Stores the lines and axes of a chart over steps or completion lengths.

    A chart is equal only to itself, so that a page finds its place among the charts.
    """

    WIDTH: ClassVar[int] = 440
    """Width of the picture, in pixels. The plot area has the edges below."""
    HEIGHT: ClassVar[int] = 220
    LEFT: ClassVar[int] = 46
    RIGHT: ClassVar[int] = 428
    TOP: ClassVar[int] = 10
    BOTTOM: ClassVar[int] = 184
    title: str
    label: str
    """Label of the vertical axis, which reaches from `low` to `high`."""
    x: Points
    low: float
    high: float
    lines: Sequence[Line]
    threshold: float | None = None
    """Value of a dotted line, unless it is outside the axis."""
    stairs: bool = False
    """Whether each value is drawn as constant until the next point."""
    unit: str = "step"
    """Unit of the horizontal axis."""
    rest: str = "at the end"
    """Name of the last point, which is shown while no point is selected."""
    declared: tuple[float, float] | None = None
    """The possible range, which determines the digits. None: the ends of the axis."""

    @property
    def axis_note(self) -> str:
        """Which part of the range the axis shows, as a sentence. Empty: the whole range."""
        if self.declared is None or (
            self.low <= self.declared[0] and self.high >= self.declared[1]
        ):
            return ""
        low, high, least, most = map(as_number, (self.low, self.high, *self.declared))
        return f"The axis shows {low} to {high} of the range {least} to {most}."

    @property
    def shows_threshold(self) -> bool:
        """Whether the vertical axis includes the threshold."""
        return self.threshold is not None and self.low <= self.threshold <= self.high

    def across(self, step: float) -> float:
        """Return a step's position in pixels from the left."""
        first, last = float(self.x[0]), float(self.x[-1])
        share = (step - first) / (last - first) if last > first else 0.5
        return round(self.LEFT + share * (self.RIGHT - self.LEFT), 1)

    def up(self, value: float) -> float:
        """Return a value's position in pixels from the top."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return round(self.BOTTOM - share * (self.BOTTOM - self.TOP), 1)

    def data(self) -> dict[str, Any]:
        """Return the data for the page's script: every line's values."""
        return {
            "title": visible(self.title),
            "label": self.label,
            "unit": self.unit,
            "rest": self.rest,
            "x": [round(float(step), 1) for step in self.x],
            "px": [self.across(float(step)) for step in self.x],
            "lines": [
                {
                    "label": visible(line.label),
                    "colour": line.colour,
                    "py": [self.up(v) if isfinite(v) else None for v in line.value.tolist()],
                    "text": list(self._texts(line)),
                    "numbers": [[float(f"{v:.6g}") for v in r] for r in line.numbers.tolist()],
                }
                for line in self.lines
            ],
        }

    def path(self, values: Points) -> str:
        """Return the SVG path of a line, with gaps at NaN."""
        known = np.isfinite(values)
        parts = ["M" + "L".join(self._corners(values, *ends)) for ends in _runs(known)]
        # A zero-length line with a round cap draws a single point as a dot.
        return "".join(parts) + ("h0" if np.sum(known) == 1 else "")

    def band(self, line: Line) -> str:
        """Return the SVG path of a line's band, with gaps at NaN."""
        if line.low is None or line.high is None:
            return ""
        known = np.isfinite(line.low) & np.isfinite(line.high)
        shapes: list[str] = []
        for start, end in _runs(known):
            top = self._corners(line.high, start, end)
            bottom = self._corners(line.low, start, end)[::-1]
            shapes.append("M" + "L".join([*top, *bottom]) + "Z")
        return "".join(shapes)

    def crosses(self, line: Line) -> Iterator[str]:
        """Yield an SVG path for each step at which a run ended without reaching the threshold."""
        for step in line.censored:
            place = max(0, int(np.searchsorted(self.x, step, side="right")) - 1)
            x, y = self.across(step), self.up(float(line.value[place]))
            yield f"M{x} {y - 5}V{y + 5}M{x - 5} {y}H{x + 5}"

    def _texts(self, line: Line) -> Iterator[str]:
        scale = self.declared or (self.low, self.high)
        for i, (value, low, high) in enumerate(line.numbers.T.tolist()):
            if line.own is not None:
                yield as_number(value, "+.3g")
                continue
            shown = [number(v, *scale) for v in (value, low, high)]
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


def _runs(known: Bool[np.ndarray, " point"]) -> Iterator[tuple[int, int]]:
    """Yield the first place of each run of known points, and the place after its last one."""
    edges = np.flatnonzero(np.diff(known, prepend=False, append=False))
    yield from zip(edges[::2], edges[1::2], strict=True)


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers from `low` to `high`.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / 5
    if not raw > float_info.min:
        return [low]
    scale = 10 ** np.floor(np.log10(raw))
    fits = next(place for place, m in enumerate(_STEPS) if raw <= m * scale * (1 + 1e-9))
    found = _multiples(_STEPS[fits] * scale, low, high)
    # An axis that does not begin at a round number may have room for only two ticks.
    return found if len(found) > 2 else _multiples(_STEPS[fits - 1] * scale, low, high)


def _multiples(width: float, low: float, high: float) -> list[float]:
    first, last = np.ceil(low / width - 1e-9), np.floor(high / width + 1e-9)
    return [float(f"{i * width:.10g}") + 0.0 for i in np.arange(first, last + 1)]


def fitted(values: Curves, low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis that shows where curves differ. NaN is ignored.

    It covers the values with a margin of 5 %, within the possible range from `low` to `high`, or
    that whole range if they cover two thirds of it or differ by less than a thousandth of it.

    >>> fitted(np.array([0.2, 0.85]), 0, 1), fitted(np.array([0.25, 0.75]), 0, 1)
    ((0, 1), (0.225, 0.775))
    """
    known = values[np.isfinite(values)]
    least, most = (float(known.min()), float(known.max())) if len(known) else (low, high)
    span, margin = high - low, 0.05 * (most - least)
    bottom = least - margin if least < low else max(low, least - margin)
    top = most + margin if most > high else min(high, most + margin)
    if most - least < 1e-3 * span or top - bottom >= 2 / 3 * span:
        bottom, top = min(low, bottom), max(high, top)
    return bottom, top if top > bottom else bottom + 1


def smoothing(total_steps: int) -> int:
    """Return the window of the running mean: an odd number of steps, about 1/20 of the run."""
    return max(1, total_steps // 20) // 2 * 2 + 1


def running_mean(table: Curves, window: int) -> Curves:
    """Return the mean over a window around each step, shorter at both ends. NaN stays NaN."""
    known, half = np.isfinite(table), window // 2
    both = np.stack([known, np.where(known, table, 0.0)])
    totals = np.cumsum(np.pad(both, ((0, 0), (0, 0), (half + 1, half))), axis=2)
    counts, sums = totals[..., window:] - totals[..., :-window]
    return np.where(known, sums / np.maximum(counts, 1), np.nan)


def binned(table: Curves, points: int) -> Curves:
    """Average neighbouring steps, so that a long run has at most `points` points."""
    if table.shape[1] <= points:
        return table
    parts = np.array_split(table, points, axis=1)
    means = [np.ma.masked_invalid(part).mean(axis=1).filled(np.nan) for part in parts]
    return np.stack(means, axis=1)
