"""Exports the figures and tables of a page of runs, for a paper or a blog."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import gdpo
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.experiments.comparison import details, headline
from gdpo.experiments.statistics import FEWEST_SEEDS
from gdpo.report._charts import smoothing
from gdpo.report._figures import Figure, save_png, to_svg, to_table
from gdpo.report._run_contents import Contents
from gdpo.report._run_tables import tables
from gdpo.report._tables import Table, markdown_text, to_csv, to_latex, to_markdown
from gdpo.report.text import one_line

INDEX = "README.md"
"""The file of an export that lists the others."""


def check_destination(folder: Path) -> None:
    """Raise a ConfigError unless a folder does not exist yet, or is empty."""
    if folder.is_symlink() or folder.exists():
        if not folder.is_dir():
            raise ConfigError(
                f"--export {folder} is a file. Choose a folder that does not exist yet"
            )
        if any(folder.iterdir()):
            raise ConfigError(
                f"--export {folder} is not empty, and an export overwrites nothing. Choose a "
                "folder that does not exist yet"
            )


def missing_png() -> str:
    """Return why an export has no PNG files; empty if it has them."""
    if find_spec("matplotlib") is not None:
        return ""
    return f"No PNG files: {MissingExtraError('matplotlib', 'plots', 'to draw them')}."


def write_export(contents: Contents, folder: Path) -> None:
    """Write every figure and every table of a page of runs, and a list of them, to a folder.

    Figures: SVG, their points as CSV, and PNG if matplotlib is installed. Tables: CSV, Markdown and
    LaTeX. The folder is created only when every file is complete.

    Args:
        contents: What the page shows.
        folder: It must not exist, or be empty.

    Raises:
        ConfigError: If the folder exists and is not empty.
    """
    check_destination(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name[:100]}.{os.getpid()}.partial")
    partial.mkdir()
    try:
        _write(contents, partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(contents: Contents, folder: Path) -> None:
    drawn, listed = list(_figures(contents)), tables(contents)
    pngs = not missing_png()
    for figure in drawn:
        _save(folder / f"{figure.file}.svg", to_svg(figure))
        _save(folder / f"{figure.file}.csv", to_csv(to_table(figure)))
        if pngs:
            save_png(figure, folder / f"{figure.file}.png")
    for table in listed:
        _save(folder / f"{table.file}.csv", to_csv(table))
        _save(folder / f"{table.file}.md", to_markdown(table))
        _save(folder / f"{table.file}.tex", to_latex(table))
    _save(folder / INDEX, _index(contents, drawn, listed))


def _save(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def _figures(contents: Contents) -> Iterator[Figure]:
    experiment = contents.comparison.experiment
    window = smoothing(experiment.total_steps)
    mean = f"Running mean over {window} steps" if window > 1 else "Mean of each step"
    several = len(experiment.runs) > len(experiment.labels)
    lines = " Bold: median over the seeds. Band: middle half. Thin: every seed." if several else ""
    for place, chart in enumerate(contents.rewards, start=1):
        dotted = " Dotted: threshold." if chart.shows_threshold else ""
        file = f"reward-{place}{_plain(chart.title)}"
        yield Figure(file, chart, f"{mean}.{lines}{dotted}")
    for kind, chart in zip(("mean", "longest"), contents.lengths, strict=False):
        yield Figure(f"length-{kind}", chart, f"{mean}.{lines}")
    for place, chart in enumerate(contents.times, start=1):
        bands = any(line.low is not None for line in chart.lines)
        band = "Band: 95 %." if bands else f"No band with fewer than {FEWEST_SEEDS} runs."
        note = f"Kaplan-Meier. {band} A cross: a run ended without reaching the threshold."
        yield Figure(f"threshold-{place}{_plain(chart.title)}", chart, note)


def _plain(name: str) -> str:
    """Return what a file name can carry of a reward's name."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40]
    return f"-{plain}" if plain else ""


def _index(contents: Contents, figures: Sequence[Figure], listed: Sequence[Table]) -> str:
    comparison = contents.comparison
    endings = "svg, csv" if missing_png() else "svg, png, csv"
    rows = [
        *(f"| `{each.file}` | {endings} | {markdown_text(each.heading)} |" for each in figures),
        *(f"| `{each.file}` | csv, md, tex | {markdown_text(each.caption)} |" for each in listed),
    ]
    notices = [missing_png()] if missing_png() else []
    return "\n\n".join(
        [
            f"# {markdown_text(comparison.experiment.name)}",
            markdown_text(headline(comparison)),
            *map(markdown_text, details(comparison)),
            "\n".join(["| file | formats | what it shows |", "|---|---|---|", *rows]),
            "A figure's CSV file has the points of its lines. Intervals are 95 % confidence "
            "intervals. The LaTeX tables need `\\usepackage{booktabs}`. Names in a script that the "
            "font does not have need XeLaTeX or LuaLaTeX.",
            *map(one_line, notices),
            f"Made by gdpo {gdpo.__version__}, command `gdpo report --export`.",
            "",
        ]
    )
