"""Draws a trade-off as a standalone image, as SVG or, with matplotlib, as PNG."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from gdpo.experiments.statistics import Interval
from gdpo.report._figures import LETTERS, dash, wrapped_lines
from gdpo.report._front_chart import PNG_MARKERS, FrontChart, Mark, Series
from gdpo.report._html import render_figure
from gdpo.report.colours import Style, style_at

_GREY = "#5b616b"


def front_svg(chart: FrontChart) -> str:
    """Return the picture of a trade-off as self-contained SVG without a style sheet."""
    legend = [(each, wrapped_lines(each.estimator, LETTERS - 8)) for each in chart.series]
    return render_figure(
        "front.svg",
        chart=chart,
        heading=wrapped_lines(chart.title, LETTERS - 4),
        legend=legend,
        style_at=style_at,
        notes=wrapped_lines(" ".join(chart.notes), 100),
        dash=dash,
    )


def save_front_png(chart: FrontChart, file: Path) -> None:
    """Draw the picture of a trade-off as PNG. This function requires matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    # The user's matplotlib settings could enable LaTeX, which would interpret untrusted text.
    with mpl.rc_context({"text.usetex": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # raised for characters missing in the font
        canvas = Canvas(figsize=(5.2, 4.0), dpi=200)
        axis: Any = canvas.subplots()
        handles = [_draw(axis, series, chart) for series in chart.series]
        _frame(axis, chart)
        texts = ["\n".join(wrapped_lines(each.estimator, LETTERS)) for each in chart.series]
        # matplotlib omits labels that begin with an underscore, so each label gets a space.
        legend = axis.legend(
            handles,
            [f" {text}" for text in texts],
            loc="upper left",
            bbox_to_anchor=(0, -0.15),
            frameon=False,
            fontsize=8,
            handlelength=3.2,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        canvas.savefig(file, format="png", bbox_inches="tight")


def _draw(axis: Any, series: Series, chart: FrontChart) -> Any:
    """Draw the marks and the line of an estimator, and return the line's entry for the legend."""
    style, shape = style_at(series.colour), PNG_MARKERS[series.shape]
    # matplotlib measures dashes in line widths. On a page, the line is 1.8 pixels wide.
    line = (0, tuple(length / 1.8 for length in style.dashes)) if style.dashes else "solid"
    ends = [(point.first.value, point.second.value) for point in series.front]
    if ends:
        across = [chart.across.low, *(x for x, _ in ends), ends[-1][0]]
        up = [ends[0][1], *(y for _, y in ends), chart.up.low]
        axis.plot(
            across, up, color=style.light, linewidth=1.4, linestyle=line, drawstyle="steps-pre"
        )
    for mark in series.marks:
        _draw_mark(axis, mark, style, shape)
    (entry,) = axis.plot(
        [], [], color=style.light, linewidth=1.4, linestyle=line, marker=shape, markersize=6
    )
    return entry


def _draw_mark(axis: Any, mark: Mark, style: Style, shape: str) -> None:
    point = mark.point
    x, y = point.first.value, point.second.value
    axis.errorbar(
        [x],
        [y],
        xerr=_bars(point.first),
        yerr=_bars(point.second),
        fmt=shape,
        color=style.light,
        markerfacecolor=style.light if point.on_front else "white",
        markersize=6,
        elinewidth=0.9,
        zorder=3,
    )
    axis.annotate(
        wrapped_lines(mark.text, LETTERS)[0],
        (x, y),
        xytext=((mark.text_x - mark.x) * 0.75, (mark.y - mark.text_y) * 0.75),
        textcoords="offset points",
        fontsize=8,
        zorder=4,
        parse_math=False,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.4},
    )


def _bars(found: Interval) -> Any:
    """Return the lengths of an interval below and above its value. None: unknown."""
    if found.low != found.low:
        return None
    return np.array([[found.value - found.low], [found.high - found.value]])


def _frame(axis: Any, chart: FrontChart) -> None:
    heading = "\n".join(wrapped_lines(chart.title, LETTERS))
    axis.set_title(heading, fontsize=10, loc="left", parse_math=False)
    for set_label, each in ((axis.set_xlabel, chart.across), (axis.set_ylabel, chart.up)):
        set_label(wrapped_lines(each.reward.name, 40)[0], fontsize=8, parse_math=False)
    axis.set_xlim(chart.across.low, chart.across.high)
    axis.set_ylim(chart.up.low, chart.up.high)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    rows = sum(len(wrapped_lines(each.estimator, LETTERS)) for each in chart.series)
    note = "\n".join(wrapped_lines(" ".join(chart.notes), 85))
    axis.text(
        0, -0.18 - 0.06 * rows, note, transform=axis.transAxes, va="top", fontsize=7, color=_GREY,
        parse_math=False,
    )  # fmt: skip
