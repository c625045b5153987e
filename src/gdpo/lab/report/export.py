"""Exports the numbers of a comparison as CSV files."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpo._files import write_whole
from gdpo._text import one_line
from gdpo.errors import ConfigError
from gdpo.lab.experiments.comparison import Comparison
from gdpo.lab.experiments.reading import OPEN, estimator_of
from gdpo.lab.experiments.statistics import Interval, paired_difference

_Row: TypeAlias = dict[str, Any]


def check_destination(folder: Path) -> None:
    """Create the folder of an export.

    Raises:
        ConfigError: If the folder is not empty, or cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = any(folder.iterdir())
    except OSError as error:
        why = error.strerror
        raise ConfigError(
            f"--export {folder} cannot be written: {why}. Choose a new folder"
        ) from error
    if files:
        raise ConfigError(
            f"--export {folder} is not empty, and an export does not overwrite files. Choose a new "
            "folder"
        )


def write_export(comparison: Comparison, folder: Path) -> None:
    """Write `results.csv`, `ends.csv`, `runs.csv` and `curves.csv` to a folder.

    A missing value is an empty cell.
    """
    files = {"results": _results, "ends": _ends, "runs": _runs, "curves": _curves}
    for name, rows_of in files.items():
        rows, out = list(rows_of(comparison)), io.StringIO()
        columns = dict.fromkeys(column for row in rows for column in row)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(map(_cell, columns))
        writer.writerows([_cell(row.get(column, "")) for column in columns] for row in rows)
        write_whole(folder / f"{name}.csv", out.getvalue())


def _results(comparison: Comparison) -> Iterator[_Row]:
    """Yield a row for each reward and label, as in the page's tables."""
    differences = comparison.by_place
    thresholds = {r.name: comparison.experiment.threshold(r) for r in comparison.experiment.rewards}
    for outcome in comparison.outcomes:
        row: _Row = {"reward": outcome.reward, "estimator": outcome.label}
        row |= {"runs": outcome.runs, "failed": outcome.failed}
        row |= _interval("final", outcome.final) | _interval("best", outcome.best)
        row |= {"threshold": thresholds[outcome.reward], "reached": outcome.reached}
        row |= _interval("median steps", outcome.survival.median)
        if d := differences.get((outcome.label, outcome.reward)):
            row |= {"baseline": d.baseline, "pairs": d.pairs}
            row |= _interval("difference", d.final)
            row |= {"p corrected": d.p_adjusted, "p raw": d.p_value, "p smallest": d.p_floor}
            row |= {"p steps corrected": d.p_time_adjusted, "p steps raw": d.p_time}
        yield row


def _ends(comparison: Comparison) -> Iterator[_Row]:
    """Yield a row for each label: the mean final reward of its ended runs, for each reward."""
    experiment = comparison.experiment
    for label in experiment.labels:
        ended = np.array([run.state not in OPEN for run in experiment.runs_of(label)])
        row: _Row = {"variant": label, "estimator": estimator_of(label), "runs": int(ended.sum())}
        for reward in experiment.rewards:
            finals = comparison.outcome(label, reward.name).finals[ended]
            row |= _interval(reward.name, paired_difference(finals, np.zeros_like(finals)))
        yield row


def _runs(comparison: Comparison) -> Iterator[_Row]:
    """Yield a row for each run, with its final rewards."""
    for label in comparison.experiment.labels:
        for place, run in enumerate(comparison.experiment.runs_of(label)):
            row: _Row = {"estimator": label, "seed": run.seed, "state": run.state}
            row |= {"steps": run.steps, "folder": run.path.name, "reason": run.why.strip()}
            ends = (o for o in comparison.outcomes if o.label == label)
            yield row | {f"final {o.reward}": o.finals[place] for o in ends}


def _curves(comparison: Comparison) -> Iterator[_Row]:
    """Yield a row for each step of each run: mean rewards, lengths and changing weights."""
    for run in comparison.experiment.runs:
        curves = dict(run.means) | {f"{name} length": v for name, v in run.lengths.items()}
        curves |= {f"weight of {name}": values for name, values in run.weights.items()}
        for step in range(run.steps):
            row: _Row = {"estimator": run.label, "seed": run.seed, "step": step + 1}
            yield row | {
                name: values[step] for name, values in curves.items() if step < len(values)
            }


def _interval(name: str, found: Interval) -> _Row:
    return {name: found.value, f"{name}, low": found.low, f"{name}, high": found.high}


def _cell(value: Any) -> Any:
    """Return a value for a cell. A spreadsheet would take text that begins with = for a formula."""
    if not isinstance(value, str):
        return "" if value != value else value
    text = one_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else text
