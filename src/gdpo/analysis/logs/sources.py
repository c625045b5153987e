"""Finds the metrics that a training logged, and reads them into one row per step.

No file is executed: JSON, SQLite, parquet, TensorBoard's event files and W&B's files are parsed.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from gdpo.analysis.logs.binary import event_rows, wandb_rows
from gdpo.errors import DataError
from gdpo.rollouts.readers.infer import is_metric

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = dict[int, dict[str, float]]
"""Values by key, for each step."""

STATE, SUMMARY = "trainer_state.json", "wandb-summary.json"
SOURCES = (STATE, "metrics.jsonl", "TensorBoard", "W&B", "trackio")
_STEPS = ("train/global_step", "training/global_step", "step", "global_step", "_step")
"""Keys of the step, from the number that counts optimizer steps to the one that counts calls."""
_TRACKIO = frozenset({"run_name", "timestamp", "step"})
"""Columns that a table of trackio has besides the metrics."""
_SQLITE = b"SQLite format 3\0"
_ROLLOUTS = (".jsonl", ".parquet")
"""Endings that files of rollouts have, too."""
_LOOKED_AT = 256
"""Number of lines of a JSONL file within which a metric of a reward must occur."""
_LARGEST = 2**28
"""Maximum size of a JSON file or line, in bytes. The log of 10,000 steps has 30 MB."""
_BROKEN = (OSError, ValueError, RecursionError, sqlite3.Error, pa.ArrowException)
"""Errors of a broken file. `DataError` is a `ValueError`."""


@dataclass(slots=True)
class Log:
    """Stores the metrics of one run, as one source recorded them."""

    path: Path
    """The file, or the folder of the event files."""
    source: str
    """One of `SOURCES`."""
    run: str = ""
    """Name of the run, for a file with several runs."""
    rows: Rows = field(default_factory=Rows)
    problem: str = ""
    """Why the file was not read to its end. Empty if it was."""

    def add(self, step: int, values: Row) -> None:
        """Add the numbers of a step. A later number replaces an earlier one of the same key."""
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
        self.rows.setdefault(step, {}).update(numbers)

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Add rows that contain their step. Rows without a step are left out."""
        for row in rows:
            step = next((row[key] for key in _STEPS if row.get(key) is not None), None)
            if isinstance(step, int | float) and step == step and abs(step) < 2**53:
                self.add(int(step), row)


def read_logs(paths: Sequence[Path]) -> list[Log]:
    """Return the logs in the files and folders.

    Links to folders are not followed. Of the `trainer_state.json` files of one training, only the
    one with the most steps is returned, because it contains the others.

    Raises:
        DataError: If there is no log, and a file that should contain one is broken.
    """
    found: list[Log] = []
    problems: list[str] = []
    for path in paths:
        for folder, files in _folders(path) if path.is_dir() else [(path.parent, [path])]:
            for read, source in _readers(folder, [file for file in files if file.is_file()]):
                try:
                    found += _logs(read, source)
                except _BROKEN as error:
                    if source == path or source.suffix not in _ROLLOUTS:
                        problems.append(f"{source}: {error}")
    if problems and not found:
        raise DataError(problems[0])
    return _newest_states(found)


def _logs(read: "_Reader", source: Path) -> list[Log]:
    logs = [log for log in read(source) if log.rows]
    if not logs and source.suffix not in _ROLLOUTS:
        raise DataError("it contains no logged step")
    return logs


def _folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield Path(folder), [Path(folder, name) for name in sorted(names)]


_Reader: TypeAlias = Callable[[Path], list[Log]]


def _readers(folder: Path, files: Sequence[Path]) -> Iterator[tuple[_Reader, Path]]:
    """Yield a function for each log among these files, and what to read with it."""
    events = [file for file in files if ".tfevents." in file.name]
    if events:
        yield lambda path: [_events(path, events)], folder if len(events) > 1 else events[0]
    by_name = {STATE: _state}
    if not any(folder.parent.glob("*.wandb")):
        by_name[SUMMARY] = _wandb_summary
    by_ending = {".wandb": _wandb, ".jsonl": _json_lines, ".db": _database, ".parquet": _table}
    for file in files:
        if read := by_name.get(file.name) or by_ending.get(file.suffix):
            yield read, file


def _newest_states(logs: Sequence[Log]) -> list[Log]:
    """Return the logs, with only the longest of the states of each training."""
    longest: dict[Path, Log] = {}
    for log in logs:
        if log.path.name == STATE:
            folder = log.path.parent
            run = folder.parent if folder.name.startswith("checkpoint-") else folder
            longest[run] = max(longest.get(run, log), log, key=lambda each: max(each.rows))
    return [log for log in logs if log.path.name != STATE or log in longest.values()]


def _events(path: Path, files: Sequence[Path]) -> Log:
    log = Log(path, "TensorBoard")
    for file in files:
        _keep(log, ((log.add, (step, values)) for step, values in event_rows(file)))
    return log


def _keep(log: Log, calls: Iterable[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    """Make the calls, and note the error of a file that is broken after its first row."""
    try:
        for function, arguments in calls:
            function(*arguments)
    except DataError as error:
        if not log.rows:
            raise
        log.problem = str(error)


def _state(path: Path) -> list[Log]:
    state = _object(path)
    history = state.get("log_history")
    log = Log(path, STATE)
    log.add_rows(_dicts(history))
    return [log]


def _wandb(path: Path) -> list[Log]:
    log = Log(path, "W&B")
    _keep(log, ((log.add_rows, ([row],)) for row in wandb_rows(path)))
    return [log]


def _wandb_summary(path: Path) -> list[Log]:
    log = Log(path, "W&B")
    log.add_rows([_object(path)])
    return [log]


def _json_lines(path: Path) -> list[Log]:
    """Read a line per step: gdpo's `metrics.jsonl`, or verl's file with the metrics in `data`."""
    log, found = Log(path, "metrics.jsonl"), False
    for line, row in enumerate(_lines(path, log)):
        row = {**row, **_dict(row.get("data"))}
        found = found or any(map(is_metric, row))
        if not found and line >= _LOOKED_AT:
            break
        log.add_rows([row])
    return [log] if found else []  # or else its lines may be rollouts


def _lines(path: Path, log: Log) -> Iterator[Row]:
    with path.open("rb") as file:
        while line := file.readline(_LARGEST):
            try:
                yield _dict(json.loads(line))
            except (ValueError, RecursionError):
                log.problem = "some lines are not JSON"


def _database(path: Path) -> list[Log]:
    """Read the runs of a project from trackio's database."""
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise DataError("not a SQLite database")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        try:
            rows = database.execute("SELECT * FROM metrics ORDER BY id").fetchall()
        except sqlite3.Error as error:
            raise DataError(f"not a database of trackio ({error})") from error
    return _trackio(path, ({**dict(row), **_dict(json.loads(row["metrics"]))} for row in rows))


def _table(path: Path) -> list[Log]:
    """Read the runs of a project from trackio's parquet file."""
    if not set(pq.read_schema(path).names) >= _TRACKIO:
        return []
    rows = pq.read_table(path).to_pylist()
    return _trackio(path, ({k: v for k, v in row.items() if v is not None} for row in rows))


def _trackio(path: Path, rows: Iterable[Row]) -> list[Log]:
    logs: dict[str, Log] = {}
    for row in rows:
        key = str(row.get("run_id") or row["run_name"])
        logs.setdefault(key, Log(path, "trackio", str(row["run_name"]))).add_rows([row])
    return list(logs.values())


def _object(path: Path) -> Row:
    if path.stat().st_size > _LARGEST:
        raise DataError(f"the file is larger than {_LARGEST:,} bytes")
    try:
        return _dict(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise DataError("not a JSON file that can be read") from error


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _dicts(values: Any) -> list[dict[str, Any]]:
    found = cast("list[Any]", values) if isinstance(values, list) else []
    return [_dict(value) for value in found if isinstance(value, dict)]
