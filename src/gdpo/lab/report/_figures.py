"""Draws a chart as a standalone SVG image."""

import textwrap
from dataclasses import dataclass

import numpy as np

from gdpo._text import one_line
from gdpo.lab.report._tables import Name, Table
from gdpo.report.charts import Chart
from gdpo.report.colours import style_at
from gdpo.report.html import render_figure
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
        package="gdpo.lab.report",
        chart=figure.chart,
        heading=wrapped_lines(figure.heading, LETTERS - 4),
        legend=legend,
        style_at=style_at,
        notes=wrapped_lines(f"{figure.note} {figure.chart.axis_note}".strip(), 80),
    )


def to_table(figure: Figure) -> Table:
    """Return a table with the points of a figure's lines, and the edges of their bands."""
    chart = figure.chart
    scale = chart.declared or (chart.low, chart.high)
    nothing = np.full(len(chart.x), np.nan)
    rows = [
        [Name(line.label), f"{step:g}", *(number(value, *scale) for value in values)]
        for line in chart.lines
        for step, *values in zip(
            chart.x.tolist(),
            line.value.tolist(),
            (nothing if line.low is None else line.low).tolist(),
            (nothing if line.high is None else line.high).tolist(),
            strict=True,
        )
    ]
    columns = ["estimator", chart.unit, "value", "band, low", "band, high"]
    return Table(figure.file, figure.heading, columns, rows)


def wrapped_lines(text: str, width: int) -> list[str]:
    """Return the text on lines of at most `width` characters, at least one line."""
    return textwrap.wrap(one_line(text), width) or [""]
