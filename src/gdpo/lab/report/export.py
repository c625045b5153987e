"""Exports the figures and tables of a page about runs, for a paper or a blog post."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import gdpo
from gdpo.errors import ConfigError
from gdpo.lab.experiments.comparison import details, headline
from gdpo.lab.experiments.statistics import FEWEST_SEEDS
from gdpo.lab.report._figures import Figure, to_svg, to_table
from gdpo.lab.report._run_contents import Contents
from gdpo.lab.report._run_tables import tables
from gdpo.lab.report._tables import Table, markdown_text, to_csv, to_markdown
from gdpo.report.charts import smoothing

INDEX = "README.md"
"""Name of the file that lists all other files of an export."""


def check_destination(folder: Path, *, page: Path | None = None) -> None:
    """Raise a ConfigError unless an export can be written to a folder.

    The folder must be empty and writable, or possible to create. It must not contain the page,
    which is written first.
    """
    other = "Choose a folder that does not exist yet"
    place = _resolved(folder)
    if page is not None and place in _resolved(page).parents:
        raise ConfigError(
            f"--export {folder} contains the page {page}, but an export needs an empty folder. "
            f"{other}"
        )
    existing = next(each for each in (place, *place.parents) if os.path.lexists(each))
    if not existing.is_dir():
        part = "" if existing == place else f" cannot be created, because {existing}"
        raise ConfigError(f"--export {folder}{part} is not a folder. {other}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--export {folder} cannot be written, because the folder {existing} is not writable. "
            "Choose a writable location"
        )
    # Temporary folders of killed exports do not count.
    if existing == place and {*place.iterdir()} - _left_over(place, ""):
        raise ConfigError(
            f"--export {folder} is not empty, and an export does not overwrite files. {other}"
        )


def _resolved(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def _left_over(folder: Path, name: str) -> set[Path]:
    """Return the temporary folders of exports with this name whose process no longer runs."""
    pattern = re.compile(rf"{re.escape(name)}\.([0-9]{{1,9}})\.partial")
    found = ((path, pattern.fullmatch(path.name)) for path in folder.iterdir())
    return {path for path, match in found if match and _has_ended(int(match[1]))}


def _has_ended(process: int) -> bool:
    if os.name != "posix":  # on Windows, `os.kill` would end the process
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def write_export(contents: Contents, folder: Path) -> None:
    """Write all figures and tables of a page, and a list of the files, to a folder.

    Figures are written as SVG, and as CSV with their points; tables as CSV and Markdown. The files
    appear in the folder only when all are complete.

    Raises:
        ConfigError: If the folder is not empty or not writable.
    """
    check_destination(folder)
    place = _resolved(folder)
    exists = place.is_dir()
    inside, name = (place, "") if exists else (place.parent, f".{place.name[:100]}")
    inside.mkdir(parents=True, exist_ok=True)
    for left in _left_over(inside, name):
        shutil.rmtree(left, ignore_errors=True)
    partial = inside / f"{name}.{os.getpid()}.partial"
    partial.mkdir()
    try:
        _write(contents, partial)
        if exists:
            _move_up(partial, folder)
        else:
            partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _move_up(partial: Path, folder: Path) -> None:
    """Move all files in a folder to its parent or, if an error occurs, none of them."""
    place = partial.parent
    if [path for path in place.iterdir() if path != partial]:
        raise ConfigError(
            f"--export {folder} is no longer empty, and an export does not overwrite files. Choose "
            "a folder that does not exist yet"
        )
    moved: list[Path] = []
    try:
        for file in sorted(partial.iterdir()):
            target = file.rename(place / file.name)
            moved.append(target)
    except BaseException:
        for file in moved:
            file.unlink(missing_ok=True)
        raise


def _write(contents: Contents, folder: Path) -> None:
    drawn, listed = list(_figures(contents)), tables(contents)
    for figure in drawn:
        _save(folder / f"{figure.file}.svg", to_svg(figure))
        _save(folder / f"{figure.file}.csv", to_csv(to_table(figure)))
    for table in listed:
        _save(folder / f"{table.file}.csv", to_csv(table))
        _save(folder / f"{table.file}.md", to_markdown(table))
    _save(folder / INDEX, _index(contents, drawn, listed))


def _save(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def _figures(contents: Contents) -> Iterator[Figure]:
    experiment = contents.comparison.experiment
    window = smoothing(experiment.total_steps)
    mean = f"Running mean over {window} steps" if window > 1 else "Mean of each step"
    several = len(experiment.runs) > len(experiment.labels)
    lines = " Bold: median over the seeds. Band: quartiles. Thin: each seed." if several else ""
    for place, chart in enumerate(contents.rewards, start=1):
        dotted = " Dotted: threshold." if chart.shows_threshold else ""
        file = f"reward-{place}{_plain(chart.title)}"
        yield Figure(file, chart, f"{mean}.{lines}{dotted}")
    for kind, chart in zip(("mean", "longest"), contents.lengths, strict=False):
        yield Figure(f"length-{kind}", chart, f"{mean}.{lines}")
    for place, chart in enumerate(contents.weights, start=1):
        yield Figure(f"weight-{place}{_plain(chart.title)}", chart, f"{mean}.{lines}")
    for place, chart in enumerate(contents.times, start=1):
        bands = any(line.low is not None for line in chart.lines)
        band = "Band: 95 %." if bands else f"No band with fewer than {FEWEST_SEEDS} runs."
        note = f"Kaplan-Meier. {band} Cross: a run ended without reaching the threshold."
        yield Figure(f"threshold-{place}{_plain(chart.title)}", chart, note)


def _plain(name: str) -> str:
    """Return a suffix for a file name from the letters and digits of a reward's name."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40]
    return f"-{plain}" if plain else ""


def _index(contents: Contents, figures: Sequence[Figure], listed: Sequence[Table]) -> str:
    comparison = contents.comparison
    rows = [f"| `{each.file}` | svg, csv | {markdown_text(each.heading)} |" for each in figures]
    rows += [f"| `{each.file}` | csv, md | {markdown_text(each.caption)} |" for each in listed]
    return "\n\n".join(
        [
            f"# {markdown_text(comparison.experiment.name)}",
            markdown_text(headline(comparison)),
            *map(markdown_text, details(comparison)),
            "\n".join(["| file | formats | contents |", "|---|---|---|", *rows]),
            "The CSV file of a figure contains the points of its lines. Intervals are 95 % "
            "confidence intervals.",
            f"Written by gdpo {gdpo.__version__} with the command `gdpo report --export`.",
            "",
        ]
    )
