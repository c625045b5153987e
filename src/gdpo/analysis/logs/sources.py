"""Finds the metrics that a training run logged, and reads them into one row per step.

Files are parsed, never executed.
"""

import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from gdpo.analysis.logs.rows import BY_KIND, CONSOLE, Log, MetricsOrRolloutsError, read_rows
from gdpo.errors import DataError, MissingExtraError
from gdpo.rollouts.readers.files import kind_of, may_have_rows
from gdpo.rollouts.readers.records import as_object
from gdpo.rollouts.readers.rewards import STATE, logged_steps

SOURCES = (STATE, "metrics.jsonl", "TensorBoard", "W&B", "trackio", *BY_KIND.values(), CONSOLE)
_SQLITE = b"SQLite format 3\0"
_CONSOLE = (".log", ".txt", ".out")
"""Endings of console output, which is read if a folder contains nothing else."""
_LARGEST = 2**28
"""Maximum size of a JSON file, in bytes. A log of 10,000 steps takes 30 MB."""
_BLOCK, _HEADER = 2**15, 7
"""Sizes of a block, of the file's header and of each part's header in a `.wandb` file."""
_WHOLE, _FIRST, _LAST = 1, 2, 4
"""Types of message parts in a `.wandb` file. Other types are in the middle of a message."""


def read_logs(paths: Sequence[Path], *, forced: bool = False) -> list[Log]:
    """Return the logs in the files and folders. Links to folders are not followed.

    With `forced`, files that may be metrics or rollouts are read as metrics.
    """
    logs: list[Log] = []
    problems: list[str] = []
    for file, named in sorted(_files(paths), key=_may_be_printed):
        if _may_be_printed((file, named)) and (logs or problems):
            break
        read = _reader_of(file)
        try:
            logs += read_rows(file, forced=forced) if read is None else read(file)
        except MetricsOrRolloutsError as error:
            problems.append(str(error))
        except (MissingExtraError, OSError, ValueError, RecursionError, sqlite3.Error) as error:
            if named or read is not None:
                problems.append(f"{file}: {error}")
    if problems and not logs:
        raise DataError(problems[0])
    return _joined(logs)


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield each file that may contain metrics, and whether the user named it."""
    for path in paths:
        if path.is_file() and kind_of(path) in ("", *BY_KIND):
            yield path, True
        for folder, folders, names in os.walk(path):
            folders.sort()
            for file in (Path(folder, name) for name in sorted(names)):
                known = _reader_of(file) is not None or file.suffix in _CONSOLE
                if file.is_file() and (known or (kind_of(file) in BY_KIND and may_have_rows(file))):
                    yield file, False


def _reader_of(file: Path) -> Callable[[Path], list[Log]] | None:
    """Return how to read a file whose name says that it only contains metrics, or None."""
    if ".tfevents." in file.name:
        return _tensorboard
    return _BY_NAME.get(file.name) or _BY_NAME.get(file.suffix)


def _may_be_printed(found: tuple[Path, bool]) -> bool:
    """Return whether a file may be console output, and was not named."""
    file, named = found
    return file.suffix in _CONSOLE and not named


def _joined(logs: Sequence[Log]) -> list[Log]:
    """Join the files of one folder that contain parts of the same run."""
    joined: list[Log] = []
    of_run: dict[tuple[Path, str, str], Log] = {}
    for log in logs:
        key = log.path.parent, log.source, log.run
        first = of_run.setdefault(key, log) if log.part else log
        if first is log:
            joined.append(log)
            continue
        first.problem = first.problem or log.problem
        for step, values in log.rows.items():
            first.add(step, values)
    return joined


def _tensorboard(path: Path) -> list[Log]:
    """Read an event file through the package tensorboard. Reading ends at a damaged event."""
    events = _imported("tensorboard.backend.event_processing.event_file_loader", "its event files")
    tensors = _imported("tensorboard.util.tensor_util", "its event files")
    log = Log(path, "TensorBoard", part=True)
    for event in events.EventFileLoader(str(path)).Load():
        values = {v.tag: tensors.make_ndarray(v.tensor) for v in event.summary.value}
        scalars = {tag: v for tag, v in values.items() if v.ndim == 0 and v.dtype.kind == "f"}
        if scalars:
            log.add(event.step, {tag: float(value) for tag, value in scalars.items()})
    return _logged(log)


def _wandb(path: Path) -> list[Log]:
    """Read the history in a `.wandb` file, whose messages the package wandb can parse."""
    record = _imported("wandb.proto.wandb_internal_pb2", "its local files").Record
    undecodable = _imported("google.protobuf.message", "local files of wandb").DecodeError
    log = Log(path, "W&B")
    try:
        for message in _messages(path):
            items = record.FromString(message).history.item
            keys = (".".join(filter(None, (item.key, *item.nested_key))) for item in items)
            values = (json.loads(item.value_json) for item in items)
            log.add_row(dict(zip(keys, values, strict=True)))
    except (undecodable, ValueError, RecursionError) as error:
        log.problem = f"a message is damaged ({error})"
    return _logged(log)


def _imported(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        how = f"{package} (pip install {package})"
        raise MissingExtraError(how, None, f"to read {what}") from error


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a `.wandb` file, up to one that is incomplete."""
    parts: list[bytes] = []
    with path.open("rb") as file:
        if not file.read(_HEADER).startswith(b":W&B"):
            raise DataError("not a W&B .wandb file")
        while True:
            if (rest := _BLOCK - file.tell() % _BLOCK) < _HEADER:
                file.seek(rest, 1)
            head = file.read(_HEADER)
            size, kind = struct.unpack("<4xHB", head) if len(head) == _HEADER else (1, 0)
            part = file.read(size)
            if len(part) < size:
                return
            parts = [part] if kind in (_WHOLE, _FIRST) else [*parts, part]
            if kind in (_WHOLE, _LAST):
                yield b"".join(parts)


def _state(path: Path) -> list[Log]:
    log = Log(path, STATE)
    for row in logged_steps(path, most=_LARGEST):
        log.add_row(row)
    return _logged(log)


def _logged(*logs: Log) -> list[Log]:
    filled = [log for log in logs if log.rows]
    if not filled:
        raise DataError("it contains no logged step")
    return filled


def _trackio(path: Path) -> list[Log]:
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
        row = {**dict(each), **as_object(json.loads(each["metrics"]))}
        key = str(row.get("run_id") or row["run_name"])
        logs.setdefault(key, Log(path, "trackio", str(row["run_name"]))).add_row(row)
    return _logged(*logs.values())


_BY_NAME = {STATE: _state, ".wandb": _wandb, ".db": _trackio}
"""How to read the files with these names or extensions."""
