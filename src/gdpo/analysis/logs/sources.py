"""Finds the metrics that a training run logged, and reads them into one row per step.

Files are parsed, never executed.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, cast

from gdpo.analysis.logs.binary import event_rows, wandb_rows
from gdpo.analysis.logs.rows import CONSOLE, Doubtful, Log, Row, read_rows
from gdpo.errors import DataError, MissingExtraError
from gdpo.rollouts.readers.files import begins_with_rows, kind_of

STATE, SUMMARY = "trainer_state.json", "wandb-summary.json"
SOURCES = (
    *(STATE, "metrics.jsonl", "TensorBoard", "W&B", "trackio", "JSON", "CSV", "parquet"),
    CONSOLE,
)
METRICS = "metrics"
"""Value of `--format` with which the rows of a file are read as metrics."""
_SQLITE = b"SQLite format 3\0"
_ROWS = ("jsonl", "csv", "parquet")
"""Kinds of files that may also contain rollouts."""
_CONSOLE = (".log", ".txt", ".out")
"""Endings of console output, which is read if a folder contains nothing else."""
_LARGEST = 2**28
"""Maximum size of a JSON file, in bytes. A log of 10,000 steps takes 30 MB."""
_BROKEN = (MissingExtraError, OSError, ValueError, RecursionError, sqlite3.Error)
"""Errors of a broken file. `DataError` is a `ValueError`."""


def read_logs(paths: Sequence[Path], *, forced: bool = False) -> list[Log]:
    """Return the logs in the files and folders. Links to folders are not followed.

    With `forced`, files that may be metrics or rollouts are read as metrics.
    """
    found, problems = _found(paths, [], forced=forced)
    if not found and not problems:
        found, problems = _found(paths, _CONSOLE, forced=forced)
    if problems and not found:
        raise DataError(problems[0])
    return _joined_charts(found)


def _found(
    paths: Sequence[Path], endings: Sequence[str], *, forced: bool
) -> tuple[list[Log], list[str]]:
    """Return the logs, and a sentence about each file that is broken or doubtful."""
    found: list[Log] = []
    problems: list[str] = []
    for path in paths:
        walked = os.walk(path) if path.is_dir() else [(path.parent, list[str](), [path.name])]
        for folder, folders, names in walked:
            folders.sort()
            files = [file for name in sorted(names) if (file := Path(folder, name)).is_file()]
            for read, source in _readers(files, path, endings, forced=forced):
                try:
                    logs = read(source)
                    if isinstance(logs, Doubtful):
                        problems.append(_doubt(logs))
                        continue
                    found += [log for log in logs if log.rows]
                    if not any(log.rows for log in logs) and not _may_be_rollouts(source):
                        raise DataError("it contains no logged step")
                except _BROKEN as error:
                    if source == path or not _may_be_rollouts(source):
                        problems.append(f"{source}: {error}")
    return found, problems


def _may_be_rollouts(source: Path) -> bool:
    named = source.name in (STATE, SUMMARY) or source.suffix in (".wandb", ".db")
    return not (named or ".tfevents." in source.name or source.is_dir())


def _doubt(found: Doubtful) -> str:
    command = f"gdpo analyze {quote(str(found.path))} --format"
    # Without a prompt and a group id, the number of rollouts per prompt must be given.
    rollouts = f"{command} columns --group-size 2"
    if not found.of_rewards:
        why = "As metrics, they show nothing about single rewards. If they are rollouts"
        return f"{found.path}: {found.why}. {why}, run, with your group size:\n{rollouts}"
    which = "Say which they are (for rollouts, with your group size)"
    return f"{found.path}: {found.why}. {which}:\n{command} {METRICS}\n{rollouts}"


def _readers(
    files: Sequence[Path], named: Path, endings: Sequence[str], *, forced: bool
) -> Iterator[tuple[Callable[[Path], list[Log] | Doubtful], Path]]:
    events = [file for file in files if ".tfevents." in file.name]
    if events:
        several = len(events) > 1
        yield lambda path: _events(path, events), events[0].parent if several else events[0]
    known = {STATE: _state, ".wandb": _wandb, ".db": _database}
    for file in files:
        if file.name == SUMMARY:
            if not any(file.parent.parent.glob("*.wandb")):
                yield lambda path: _of_rows(path, "W&B", [_object(path)]), file
        elif read := known.get(file.name) or known.get(file.suffix):
            yield read, file
        elif file in events or kind_of(file) not in ("", *_ROWS):
            continue
        elif file == named or _has_rows(file) or file.suffix in endings:
            yield lambda path: read_rows(path, forced=forced), file


def _has_rows(file: Path) -> bool:
    in_json = file.name.lower().removesuffix(".gz").endswith(".json")
    return kind_of(file) in _ROWS and (not in_json or begins_with_rows(file))


def _joined_charts(logs: Sequence[Log]) -> list[Log]:
    """Join W&B exports, one file per chart, into one log per run of a folder."""
    joined: list[Log] = []
    of_run: dict[tuple[Path, str], Log] = {}
    for log in logs:
        first = of_run.setdefault((log.path.parent, log.run), log) if log.of_charts else log
        if first is log:
            joined.append(log)
            continue
        for step, values in log.rows.items():
            first.add(step, values)
    return joined


@contextmanager
def _as_far_as_possible(log: Log) -> Generator[None]:
    """Keep what was read before a broken part of a file."""
    try:
        yield
    except DataError as error:
        if not log.rows:
            raise
        log.problem = str(error)


def _events(path: Path, files: Sequence[Path]) -> list[Log]:
    log = Log(path, "TensorBoard")
    for file in files:
        with _as_far_as_possible(log):
            for step, values in event_rows(file):
                log.add(step, values)
    return [log]


def _wandb(path: Path) -> list[Log]:
    log = Log(path, "W&B")
    with _as_far_as_possible(log):
        log.add_rows(wandb_rows(path))
    return [log]


def _state(path: Path) -> list[Log]:
    history = _object(path).get("log_history")
    rows = cast("list[Any]", history) if isinstance(history, list) else []
    return _of_rows(path, STATE, [row for row in rows if isinstance(row, dict)])


def _of_rows(path: Path, source: str, rows: Iterable[Row]) -> list[Log]:
    log = Log(path, source)
    log.add_rows(rows)
    return [log]


def _database(path: Path) -> list[Log]:
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise DataError("not a SQLite database")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        try:
            rows = database.execute("SELECT * FROM metrics ORDER BY id").fetchall()
        except sqlite3.Error as error:
            raise DataError(f"not a trackio database ({error})") from error
    logs: dict[str, Log] = {}
    for each in rows:
        row = {**dict(each), **_dict(json.loads(each["metrics"]))}
        key = str(row.get("run_id") or row["run_name"])
        logs.setdefault(key, Log(path, "trackio", str(row["run_name"]))).add_rows([row])
    return list(logs.values())


def _object(path: Path) -> Row:
    if path.stat().st_size > _LARGEST:
        raise DataError(f"the file is larger than {_LARGEST:,} bytes")
    try:
        return _dict(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise DataError("not a readable JSON file") from error


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
