"""Draws a chart as a standalone image, as SVG or, with matplotlib, as PNG."""

import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdpo._text import one_line
from gdpo.report._charts import Chart, Line
from gdpo.report._html import render_figure
from gdpo.report._tables import Name, Table
from gdpo.report.colours import Style, style_at
from gdpo.report.text import number

LETTERS = 62
"""Maximum number of characters per line of text in an image."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Stores a chart and the text around it."""

    file: str
    """Name of the figure's files, without the extension."""
    chart: Chart
    note: str
    """Explanation of the lines and bands."""

    @property
    def heading(self) -> str:
        """Title of the chart and label of its vertical axis."""
        return f"{one_line(self.chart.title)}: {self.chart.label}"


def to_svg(figure: Figure) -> str:
    """Return a figure as self-contained SVG without a style sheet."""
    legend = [
        (style_at(line.colour), wrapped_lines(line.label, LETTERS - 6))
        for line in figure.chart.lines
    ]
    return render_figure(
        "figure.svg",
        chart=figure.chart,
        heading=wrapped_lines(figure.heading, LETTERS - 4),
        legend=legend,
        style_at=style_at,
        notes=_notes(figure),
        dash=dash,
    )


def to_table(figure: Figure) -> Table:
    """Return a table with the points on each line of a figure, and the edges of the line's band."""
    chart = figure.chart
    scale = chart.declared or (chart.low, chart.high)
    rows = [
        [Name(line.label), f"{step:g}", *(number(value, *scale) for value in values)]
        for line in chart.lines
        for step, *values in zip(
            chart.x.tolist(),
            line.value.tolist(),
            _edge(line.low, chart).tolist(),
            _edge(line.high, chart).tolist(),
            strict=True,
        )
    ]
    columns = ["estimator", chart.unit, "value", "band, low", "band, high"]
    return Table(figure.file, figure.heading, columns, rows)


def save_png(figure: Figure, file: Path) -> None:
    """Draw a figure as PNG. This function requires matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    # The user's matplotlib settings could enable LaTeX, which would interpret untrusted text.
    with mpl.rc_context({"text.usetex": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # raised for characters missing in the font
        canvas = Canvas(figsize=(5.2, 3.3), dpi=200)
        axis: Any = canvas.subplots()
        # Draw solid lines first, so that they stay visible through the gaps of dashed lines.
        lines = sorted(figure.chart.lines, key=lambda line: line.colour)
        handles = {line.label: _draw(axis, figure.chart, line) for line in lines}
        _frame(axis, figure)
        texts = ["\n".join(wrapped_lines(line.label, LETTERS)) for line in figure.chart.lines]
        # matplotlib omits labels that begin with an underscore, so each label gets a space.
        legend = axis.legend(
            [handles[line.label] for line in figure.chart.lines],
            [f" {text}" for text in texts],
            loc="upper left",
            bbox_to_anchor=(0, -0.17),
            frameon=False,
            fontsize=8,
            handlelength=3.2,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        canvas.savefig(file, format="png", bbox_inches="tight")


def _draw(axis: Any, chart: Chart, line: Line) -> Any:
    style = style_at(line.colour)
    draw = "steps-post" if chart.stairs else "default"
    if line.low is not None and line.high is not None:
        step = "post" if chart.stairs else None
        axis.fill_between(
            chart.x, line.low, line.high, step=step, color=style.light, alpha=0.16, linewidth=0
        )
    for values in line.thin:
        axis.plot(chart.x, values, color=style.light, linewidth=0.6, alpha=0.45, drawstyle=draw)
    # matplotlib measures dashes in line widths. On a page, the line is 2.4 pixels wide.
    dashes = (0, tuple(length / 2.4 for length in style.dashes)) if style.dashes else "solid"
    (bold,) = axis.plot(
        chart.x, line.value, color=style.light, linewidth=1.9, linestyle=dashes, drawstyle=draw
    )
    for step in line.censored:
        at = max(0, int(np.searchsorted(chart.x, step, side="right")) - 1)
        axis.plot([step], [line.value[at]], "+", color=style.light, markersize=8)
    return bold


def _frame(axis: Any, figure: Figure) -> None:
    chart = figure.chart
    heading = "\n".join(wrapped_lines(figure.heading, LETTERS))
    axis.set_title(heading, fontsize=10, loc="left", parse_math=False)
    axis.set_xlabel(chart.unit, fontsize=8)
    axis.set_ylim(chart.low, chart.high)
    if chart.shows_threshold:
        axis.axhline(chart.threshold, color="#5b616b", linewidth=0.9, linestyle=":")
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", alpha=0.3, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    note = "\n".join(_notes(figure))
    rows = sum(len(wrapped_lines(line.label, LETTERS)) for line in chart.lines)
    below = -0.20 - 0.075 * rows
    axis.text(
        0, below, note, transform=axis.transAxes, va="top", fontsize=7, color="#5b616b",
        parse_math=False,
    )  # fmt: skip


def _notes(figure: Figure) -> list[str]:
    return wrapped_lines(f"{figure.note} {figure.chart.axis_note}".strip(), 80)


def _edge(values: Any, chart: Chart) -> Any:
    return np.full(len(chart.x), np.nan) if values is None else values


def dash(style: Style) -> str:
    """Return the dashes of a style as the SVG attribute `stroke-dasharray`."""
    return " ".join(f"{length:g}" for length in style.dashes)


def wrapped_lines(text: str, width: int) -> list[str]:
    """Return the text on lines of at most `width` characters, at least one line."""
    return textwrap.wrap(one_line(text), width) or [""]
