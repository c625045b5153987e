"""Line charts as inline SVG, and the numbers under them for the page's script."""

from collections.abc import Sequence
from dataclasses import dataclass
from sys import float_info
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpo.report.text import html, number, short

WIDTH, HEIGHT = 440, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 36
COLOURS = 8
"""Arms that differ in colour; the page's style has as many, each with a dash pattern of its own."""

Points = Float[np.ndarray, " point"]


@dataclass(frozen=True, slots=True)
class Line:
    """One arm in a chart."""

    arm: str
    colour: int
    value: Points
    low: Points
    high: Points
    thin: Float[np.ndarray, "seed point"]
    """Drawn thinly beside it; may have no rows."""
    note: tuple[str, ...] = ()
    """For each point, behind its value."""
    censored: tuple[float, ...] = ()
    """Steps marked with a cross: a run ended there and had not come to it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the steps."""

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
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def up(self, value: float) -> float:
        """Where a value lies in the picture."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    def data(self) -> dict[str, Any]:
        """What a reader of the page can ask it for: every arm's values at a step."""
        return {
            "unit": self.unit,
            "rest": self.rest,
            "x": [round(float(step), 1) for step in self.x],
            "px": [self.across(float(step)) for step in self.x],
            "lines": [
                {
                    "colour": line.colour,
                    "py": [self.up(v) if np.isfinite(v) else None for v in line.value.tolist()],
                    "text": self._texts(line),
                }
                for line in self.lines
            ],
        }

    def svg(self) -> str:
        """The picture."""
        lines = (f'<g class="a{line.colour}">{self._line(line)}</g>' for line in self.lines)
        parts = [*self._axes(), *lines]
        unit = html(self.unit)
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html(self.title)}: '
            f'{html(self.label)}, by {unit}">{"".join(parts)}<g class="cursor"></g></svg>'
        )

    def _texts(self, line: Line) -> list[str]:
        texts: list[str] = []
        rows = zip(line.value.tolist(), line.low.tolist(), line.high.tolist(), strict=True)
        for i, (value, low, high) in enumerate(rows):
            shown = [number(v, self.low, self.high) for v in (value, low, high)]
            band = f" ({shown[1]} to {shown[2]})" if np.isfinite(low) and low != high else ""
            texts.append(f"{shown[0]}{band} {line.note[i] if line.note else ''}".rstrip())
        return texts

    def _axes(self) -> list[str]:
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        parts: list[str] = []
        for value in ticks(self.low, self.high):
            y = self.up(value)
            parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
            parts.append(f'<text class="tick y" x="{_LEFT - 6}" y="{y + 4}">{short(value)}</text>')
        for step in ticks(float(self.x[0]), float(self.x[-1])):
            place = f'x="{self.across(step)}" y="{bottom + 15}"'
            parts.append(f'<text class="tick x" {place}>{step:g}</text>')
        middle = f'x="{(_LEFT + right) / 2}" y="{HEIGHT - 4}"'
        parts.append(f'<text class="tick x" {middle}>{html(self.unit)}</text>')
        parts.append(f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>')
        if self.threshold is not None:
            y = self.up(self.threshold)
            parts.append(f'<path class="threshold" d="M{_LEFT} {y}H{right}"/>')
        return parts

    def _line(self, line: Line) -> str:
        parts = [self._band(line)]
        parts += [f'<path class="thin" d="{self._path(seed)}"/>' for seed in line.thin]
        parts.append(f'<path class="bold" d="{self._path(line.value)}"/>')
        for step in line.censored:
            place = max(0, int(np.searchsorted(self.x, step, side="right")) - 1)
            x, y = self.across(step), self.up(float(line.value[place]))
            parts.append(f'<path class="censored" d="M{x} {y - 5}V{y + 5}M{x - 5} {y}H{x + 5}"/>')
        return "".join(parts)

    def _path(self, values: Points) -> str:
        """A line through what is known; a gap where nothing is."""
        parts, drawing, before = [""], False, 0.0
        for step, value in zip(self.x.tolist(), values.tolist(), strict=True):
            if not np.isfinite(value):
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

    def _band(self, line: Line) -> str:
        """Around one stretch after another."""
        known = np.isfinite(line.low) & np.isfinite(line.high)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(int), [0]])))
        shapes: list[str] = []
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            top = self._corners(line.high, start, end)
            bottom = self._corners(line.low, start, end)[::-1]
            shapes.append("M" + "L".join([*top, *bottom]) + "Z")
        return f'<path class="band" d="{"".join(shapes)}"/>'

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
