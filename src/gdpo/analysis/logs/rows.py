"""Reads files with a row of metrics per step: JSON, CSV, parquet, Arrow, and console output.

The fields of a file show whether its rows are metrics: rollout files have the same extensions.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from gdpo.errors import MissingExtraError
from gdpo.rollouts.arrow import HAS_PYARROW
from gdpo.rollouts.readers.files import kind_of
from gdpo.rollouts.readers.names import (
    Evidence,
    Kind,
    evidence,
    flattened,
    kinds_in,
    reward_in,
    run_and_key,
)
from gdpo.rollouts.readers.report import FileReport, ReadReport
from gdpo.rollouts.readers.sources import csv_batches, csv_records, open_parquet, parts, unreadable
from gdpo.rollouts.readers.text import Stream, json_lines, opened_text

Row: TypeAlias = Mapping[str, Any]

CONSOLE = "console output"
_STEPS = (
    *("train/global_step", "training/global_step", "step", "global_step", "_step", "Step"),
    "trainer/global_step",
)
"""Keys of the step, from the number that counts optimizer steps to the one that counts calls."""
_OF_MOST = "global_step/max_steps"
"""Step key of ms-swift, whose value is text such as 5/100."""
_RUNS = ("run_id", "run_name", "run")
"""Fields that name the run of a row, in files with rows of several runs."""
_TRACKIO = frozenset({"run_name", "timestamp", "step"})
_LOOKED_AT = 256
"""Number of rows whose fields decide whether the rows are metrics."""
_BATCH = 256
_REPEATED = 4
"""Number of rows that repeat a step, above which the rows may be rollouts."""
_SINGLE = 8
"""Minimum number of rows that are metrics if no two share a step."""
_PART, _LONGEST, _SEARCHED = 2**20, 2**16, 2**24
"""Numbers of characters: per read, in the longest row of console output, and searched for a row."""
_DICT = re.compile(rf"\{{[^{{}}]{{1,{_LONGEST}}}\}}")
_PAIR = re.compile(
    r"""(['"])((?:(?!\1).)+)\1\s*:\s*(?:[\w.]+\()?(['"]?)([^'",(){}\[\]]+)\3\)?\s*(?=[,}])"""
)
"""A key and a number, which may be printed as text, or with the name of its type."""
_KEY = re.compile(r"""(['"])([^'"\\]{1,200})\1\s*:""")


@dataclass(slots=True)
class Log:
    """Stores the metrics of one run, as one source recorded them."""

    path: Path
    source: str
    run: str = ""
    rows: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    """Values by key, for each step."""
    problem: str = ""
    """Why the file was not read to its end. Empty if it was."""
    numbered: bool = False
    """Whether the rows contain no step, and were numbered in order."""
    of_charts: bool = False
    """Whether the file is an export of W&B charts."""
    without_step: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """The rows before the first one with a step."""
    repeated: int = 0
    """Number of rows with rewards whose step already has rewards."""

    def add(self, step: int, values: Row) -> None:
        """Add the numbers of a step. A later number replaces an earlier one of the same key."""
        known = self.rows.setdefault(step, {})
        numbers = _numbers(values)
        again = (key for key in numbers.keys() & known.keys() if numbers[key] != known[key])
        self.repeated += any(field_of(key) is not None for key in again)
        known.update(numbers)

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Add rows that contain their step. Rows without a step are left out."""
        for row in rows:
            if (step := _step(row)) is not None:
                self.add(step, row)
            elif not self.rows and (numbers := _numbers(row)):
                self.without_step.append(numbers)

    def number_rows(self) -> None:
        """If no row has a step, number the rows with rewards in order."""
        if not self.rows:
            rewarded = [row for row in self.without_step if any(map(field_of, row))]
            self.rows = dict(enumerate(rewarded or self.without_step, 1))
            self.numbered = bool(self.rows)
        self.without_step = []


@dataclass(frozen=True, slots=True)
class Doubtful:
    """Stores why it is unclear whether the rows of a file are metrics or rollouts."""

    path: Path
    why: str
    of_rewards: bool
    """Whether the rows, if they are metrics, contain metrics of single rewards."""


def read_rows(path: Path, *, forced: bool) -> list[Log] | Doubtful:
    """Return the logs in a file, none if its rows are rollouts, or why that is unclear.

    `forced`: the user said that the file contains metrics.
    """
    kind, logs = kind_of(path), dict[str, Log]()
    found, count, problem = evidence({}), 0, ""
    try:
        for row, found in _rows(path, kind) if kind else _console(path):
            count += 1
            if (found.rollouts and found.certain) or (count > _LOOKED_AT and not found.metrics):
                return []
            _add(row, logs, path, kind)
    except unreadable() as error:
        if not kind or isinstance(error, MissingExtraError):
            raise
        problem = str(error)
    if not found.metrics:
        return []
    for log in logs.values():
        log.problem = problem
        log.number_rows()
    why = _doubt(list(logs.values()), found, count if kind else 0)
    if why and not forced:
        keys = {key for log in logs.values() for row in log.rows.values() for key in row}
        return Doubtful(path, why, any(map(field_of, keys)))
    return [log for log in logs.values() if log.rows]


def _doubt(logs: Sequence[Log], found: Evidence, count: int) -> str:
    # Rows that each have a step of their own cannot be rollouts of one prompt.
    apart = count >= _SINGLE and count == sum(len(o.rows) for o in logs if not o.numbered)
    if not found.certain and not apart:
        return found.sentence
    repeated = sum(log.repeated for log in logs)
    if repeated <= max(_REPEATED, sum(len(log.rows) for log in logs)):
        return ""
    why = f"{repeated:,} rows repeat the step of another row with other rewards"
    return f"the rows may be metrics, or rollouts: {why}"


def _rows(path: Path, kind: str) -> Iterator[tuple[Row, Evidence]]:
    """Yield each row, and what the fields of the rows so far show."""
    file, rows = FileReport(path, ReadReport((path,))), iter(())
    if kind == "jsonl" or (kind == "csv" and not HAS_PYARROW):
        rows = (row for _, row in (json_lines if kind == "jsonl" else csv_records)(file))
    elif kind == "csv":
        rows = (row for batch in csv_batches(file) for row in batch.to_pylist())
    elif kind == "parquet":
        parquet = open_parquet(path, None)
        batches = parts(parquet, _BATCH, parquet.schema_arrow.names)
        rows = (row for batch in batches for row in batch.to_pylist())
    fields: dict[str, Kind] = {}
    found = evidence(fields)
    for count, row in enumerate(map(flattened, rows)):
        if count < _LOOKED_AT:
            before = dict(fields)
            for name, kind_of_field in kinds_in(row).items():
                if fields.get(name, "empty") == "empty":
                    fields[name] = kind_of_field
            found = found if fields == before else evidence(fields)
        yield row, found


def _add(row: Row, logs: dict[str, Log], path: Path, kind: str) -> None:
    """Add a row to the log of its run, or each run's columns to its log."""
    of_row = next((str(row[name]) for name in _RUNS if row.get(name) is not None), "")
    by_run: dict[str, dict[str, Any]] = {"": {}}
    for name, value in row.items():
        run, key = run_and_key(name)
        if key and value is not None:
            by_run.setdefault(run, {})[key] = value
    common = by_run.pop("")
    source = {"jsonl": "JSON", "csv": "CSV", "parquet": "parquet"}.get(kind, CONSOLE)
    if "_step" in row or by_run or any(run_and_key(name)[0] for name in row):
        source = "W&B"
    elif row.keys() >= _TRACKIO:
        source = "trackio"
    elif path.name == "metrics.jsonl":
        source = path.name
    for run, values in by_run.items() or [(of_row, {})]:
        name = run if by_run else str(row.get("run_name", of_row))
        log = logs.setdefault(run, Log(path, source, name, of_charts=bool(by_run)))
        log.add_rows([{**common, **values}])


@cache
def _evidence_of(fields: frozenset[tuple[str, Kind]]) -> Evidence:
    return evidence(dict(fields))


def _console(path: Path) -> Iterator[tuple[Row, Evidence]]:
    """Yield the metrics among the dicts that a program printed in Python or JSON."""
    found = evidence({})
    with opened_text(path) as stream:
        for text in _dicts_in(stream):
            numbers = {match[2]: number_in(match[4]) for match in _PAIR.finditer(text)}
            row: dict[str, Any] = dict.fromkeys((match[2] for match in _KEY.finditer(text)), "")
            row |= {key: value for key, value in numbers.items() if value is not None}
            of_row = _evidence_of(frozenset(kinds_in(row).items()))
            if of_row.metrics:
                found = found if found.are_metrics else of_row
                yield row, found


def _dicts_in(stream: Stream) -> Iterator[str]:
    """Yield each text in braces on one line, even if a terminal has wrapped it."""
    left, searched, found = "", 0, False
    while raw := stream.read(_PART):
        text = left + raw.decode(errors="replace")
        end = 0
        for match in _DICT.finditer(text):
            found, end = True, match.end()
            yield re.sub(r"\x1b\[[0-9;]*m|\s*[\r\n]+\s*", "", match[0])
        searched += len(raw)
        if not found and searched >= _SEARCHED:
            return
        left = text[max(end, len(text) - _LONGEST) :]


def number_in(text: str) -> float | None:
    """Return the finite number that a text contains, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _numbers(values: Row) -> dict[str, float]:
    found = ((k, number_in(v) if isinstance(v, str) else v) for k, v in values.items())
    return {key: value for key, value in found if isinstance(value, int | float)}


def _step(row: Row) -> int | None:
    for key in _STEPS:
        if row.get(key) is not None:
            step = number_in(row[key]) if isinstance(row[key], str) else row[key]
            if isinstance(step, int | float) and abs(step) < 2**53:  # no NaN either
                return int(step)
            return None
    of_most = str(row.get(_OF_MOST, "")).partition("/")[0]
    return int(of_most) if of_most.isdecimal() and len(of_most) < 16 else None


FIELDS = ("mean", "std", "group_std", "zero_variance_groups", "influence_share")
"""Numbers of a reward: `std` is over the batch, `group_std` over the samples of a prompt."""
_OF_REWARD = re.compile(
    rf"(?:train/)?(?:rewards|diagnostics|gdpo)/(.+)/({'|'.join(FIELDS)})", re.DOTALL
)
"""Keys of TRL's trainers, of `GDPOTrainer` and `watch`, and of gdpo's plugin for verl. Keys of
evaluations begin with `eval`."""


def field_of(key: str) -> tuple[str, str] | None:
    """Return the reward and the number, one of `FIELDS`, that a key stands for, or None.

    TRL up to 0.15 logs only the mean of each reward, as `rewards/NAME`.
    """
    if (match := _OF_REWARD.fullmatch(key)) is not None:
        return match[1], match[2]
    name = reward_in(key)
    return None if name is None else (name, "mean")


def without_unclear(keys: Collection[str]) -> list[str]:
    """Return a log's keys, without `rewards/NAME` if it has `rewards/NAME/mean` too."""
    newer = any(_OF_REWARD.fullmatch(key) for key in keys)
    return [key for key in keys if not newer or _OF_REWARD.fullmatch(key)]
