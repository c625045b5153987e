"""Determines which fields of a file are rewards.

Rewards are requested by the user, known from the format, or inferred. A format of records defines
which fields may be rewards. Among these fields, those that contain numbers are rewards. For files
in an unrecognized format, the rewards are inferred from the first rollouts (see `inference`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import isfinite, nan
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from gdpo.rewards.gates import Range, described_ranges
from gdpo.rollouts.readers.columns import (
    Batch,
    Rows,
    column_in,
    entered,
    holds_numbers,
    is_numeric,
    paths_in,
)
from gdpo.rollouts.readers.formats import ReaderOptions
from gdpo.rollouts.readers.inference import (
    LOOKED_AT,
    NEVER,
    SCALAR_ONLY,
    Inferred,
    Layout,
    Values,
    infer,
    is_all_rewards,
    is_named_as_reward,
    listed,
    passed_over,
    resolved,
    unlikelihood,
)
from gdpo.rollouts.readers.records import LONGEST, TOO_LONG, Doubtful, Row, is_number, number
from gdpo.rollouts.readers.report import FileReport
from gdpo.rollouts.record import read_declared

MOST = 64
"""Maximum number of rewards to infer from a file. Each reward adds a column for all rollouts."""
_MOST_LOOKED_AT = 256
"""Maximum number of numeric fields to examine in a file in an unrecognized format."""
_TEXTS = 1024
"""Maximum number of text fields to track because they may turn out to be rewards."""
_LONGEST_NAME = 200
"""Maximum length of a reward's name, in characters."""
_IDS = frozenset(
    {"id", "idx", "index", "sample_id", "sample_idx", "run_id", "seed", "epoch", "rank"}
    | {"time", "timestamp", "created_at"}
)
"""Columns that TRL users log in addition to the rewards."""
_TRL_LOG = "trainer_state.json"
_LOGGED = re.compile(r"(?:eval_)?rewards/(.+)/mean")
_LARGEST_LOG = 32 * 2**20
"""Maximum size of a log to read, in bytes. Parsing a log takes 30 times its size in memory. A log
of 10,000 steps is smaller than this limit."""


class RecordRewards:
    """Determines the rewards of a file of records: the requested or all numeric components.

    Args:
        asked: Options that the caller passed.
        file: Report on the file, which receives notices.
        known: Meanings of the fields, for records in an unrecognized format. None: the format is
            known.
    """

    def __init__(self, asked: ReaderOptions, file: FileReport, known: Layout | None) -> None:
        self._asked, self._file, self._known = asked.rewards, file, known
        self.ranges: dict[str, Range] = {}
        self._learned = False
        self._no_total = False
        self._inferred: Inferred | None = None
        self._paths: dict[str, str] = {}
        self._found: dict[str, None] = {}
        """Fields in which a number has occurred so far."""
        self._texts: dict[str, tuple[int, int]] = {}
        """Fields in which only texts have occurred so far, with the first line and the number of
        texts."""

    @property
    def needed(self) -> int:
        """Number of rollouts at the start of the file that are needed to determine the rewards."""
        return LOOKED_AT if self._known is not None and not self._learned else 0

    def narrow(self, row: Row, line: int) -> None:
        """Drop fields of a rollout that has more fields than the maximum number of rewards."""
        if len(row.rewards) <= MOST:
            return
        if self._known is not None:
            likeliest = sorted(row.rewards, key=unlikelihood)
            if self._asked is None and unlikelihood(likeliest[MOST]) < NEVER:
                self._note_once(_many("fields of its records"))
            kept = {*likeliest[:MOST], *(self._asked or ())}
        elif self._asked is not None:
            kept = {*self._asked, *islice(row.rewards, MOST)}
        else:
            self._look([row], [line])
            kept = set(self._found)
        row.rewards = {name: value for name, value in row.rewards.items() if name in kept}
        if row.weights:
            row.weights = {name: w for name, w in row.weights.items() if name in kept}
        if row.turns is not None:
            row.turns = row.turns.only({*kept, row.total_name})

    def settle(self, rows: Sequence[Row]) -> None:
        """Replace the records' fields with their rewards by name, if the format is unrecognized.

        The first call infers the rewards, so it must pass the first rollouts of the file.
        """
        if self._known is None:
            return
        if not self._learned:
            self._learned = True
            self._learn(rows[:LOOKED_AT], self._known)
        for row in rows:
            row.total = None if self._no_total else row.total
            row.weights = row.weights or self._weights_of(row)
            if self._inferred is None:
                found = {name: row.rewards.get(path) for name, path in self._paths.items()}
                row.rewards = {
                    name: row.rewards.get(name) if value is None else value
                    for name, value in found.items()
                    if value is not None or name in row.rewards
                }
                continue
            if self._known.total is None and self._inferred.total is not None:
                row.total = row.rewards.get(self._inferred.total)
                row.total_name = self._inferred.total
            named = ((self._inferred.name_of(path), v) for path, v in row.rewards.items())
            row.rewards = {name: value for name, value in named if name is not None}

    def of(self, batch: Batch, rows: Rows) -> tuple[dict[str, str], str]:
        """Return the rewards of some rollouts, and a phrase about how they were determined.

        The rewards are the requested rewards, else all fields in which a number has occurred in
        these or earlier rollouts, else the scalar reward. Calls must follow the order of the file.
        """
        part = batch.rows if isinstance(rows, slice) else [batch.rows[i] for i in rows]
        lines = batch.lines[rows].tolist()
        names, how = self._names(part, lines)
        numbers = list(self._file.numbers)
        if self._file.format != "columns":
            numbers = [n for n, v in part[0].rewards.items() if type(v) is not Doubtful]
            numbers += [part[0].total_name] if part[0].total is not None else []
        for name in names:
            found = any(name in row.rewards or name == row.total_name for row in part)
            if not found:
                has = listed(list(dict.fromkeys(numbers)))
                self._file.note(lines[0], f"no reward {name!r}; the numeric fields are {has}")
            if name in (self._asked or ()):
                self._file.report.seek(name, numbers, found=found)
        return {name: name for name in names}, how

    def _names(self, rows: Sequence[Row], lines: Sequence[int]) -> tuple[Sequence[str], str]:
        if self._asked is not None:
            return self._asked, "as given"
        inferred = self._inferred
        if inferred is not None and inferred.why:
            return (), ""
        self._look(rows, lines)
        if self._found:
            weighted = any(row.weights for row in rows)
            self._file.guessed |= not weighted
            how = "as the files name them, with weights" if weighted else "all numeric components"
            return tuple(self._found), how if inferred is None else inferred.how
        totals = tuple(dict.fromkeys(row.total_name for row in rows if row.total is not None))
        if inferred is not None and inferred.group == "total":
            return totals, inferred.how
        return totals, f"{SCALAR_ONLY}: the files contain no reward components"

    def _learn(self, rows: Sequence[Row], known: Layout) -> None:
        numbers = _numbers_of(rows, known)
        self._file.numbers = tuple(islice(numbers, MOST))
        if self._asked is not None:
            self._paths = resolved(self._asked, list(numbers))
            return
        texts = _texts_of(rows, numbers, known)
        self._inferred, self._known = _inferred(self._file, numbers, texts, known)
        self._no_total = known.total is not None and self._known.total is None

    def _weights_of(self, row: Row) -> dict[str, float] | None:
        """Return the weights in an object `weights`, or next to each value, or None."""
        paths = self._paths if self._inferred is None else self._inferred.names
        weights: dict[str, float] = {}
        for name, path in paths.items():
            places = (f"weights.{name}", f"{path.rpartition('.')[0]}.weight")
            value = next((row.rewards[place] for place in places if place in row.rewards), None)
            if is_number(value):
                weights[name] = number(value)
        return weights or None

    def _look(self, rows: Sequence[Row], lines: Sequence[int]) -> None:
        """Add the fields with numbers to the rewards, and track the fields with only texts."""
        inferred = {} if self._inferred is None else self._inferred.names
        texts: dict[str, tuple[int, int]] = {}
        numbers: dict[str, None] = {}
        given = (
            (n, v, at) for row, at in zip(rows, lines, strict=True) for n, v in row.rewards.items()
        )
        for name, value, line in given:
            if type(value) is Doubtful and not (name in inferred and is_text_of_number(value)):
                texts[name] = texts.get(name, (line, 0))[0], texts.get(name, (line, 0))[1] + 1
            elif value is not None:
                numbers[name] = None
        for name in numbers:
            self._take(name)
        for name, (line, count) in texts.items():
            if name not in self._found:
                self._remember(name, line, count)

    def _remember(self, name: str, line: int, count: int) -> None:
        if name not in self._texts and len(self._texts) >= _TEXTS:
            self._note_once(
                f"more than {_TEXTS:,} fields contain text: if rewards are among them, name them "
                "(--rewards)"
            )
            return
        first, before = self._texts.get(name, (line, 0))
        self._texts[name] = first, before + count

    def _take(self, name: str) -> None:
        if name in self._found:
            return
        if len(self._found) >= MOST or len(name) > _LONGEST_NAME:
            self._note_once(_many("fields of its records"))
            return
        self._found[name] = None
        if name in self._texts:
            line, rows = self._texts.pop(name)
            what = (
                f"reward {name!r} is text before its first number, and counts as missing there: "
                "to have the text read, name the rewards (--rewards)"
            )
            self._file.note(line, what, count=rows)

    def _note_once(self, what: str) -> None:
        if (self._file.path, what) not in self._file.report.notices:
            self._file.note(None, what)


class TableRewards:
    """Determines the rewards of a table. All rows have the same reward columns.

    Args:
        asked: Options that the caller passed.
        file: Report on the file, which receives notices.
        known: Meanings of the columns.
        schema: Arrow schema of the table.
        first: Function that returns the columns of some paths for the first rows, or None if the
            table is empty.
    """

    def __init__(
        self,
        asked: ReaderOptions,
        file: FileReport,
        known: Layout,
        schema: Any,
        first: Callable[[Sequence[str]], Any],
    ) -> None:
        self.known = known
        self._file, self._schema, self._first = file, schema, first
        self._kinds = paths_in(schema)
        numbers = [path for path, kind in self._kinds.items() if kind == "number"]
        if asked.rewards is not None:
            self.paths = resolved(asked.rewards, [*numbers, *self._reward_texts()])
            self.how = "as given"
        elif file.format == "gdpo":
            record = schema.field("rewards").type
            names = [field.name for field in record] if pa.types.is_struct(record) else []
            self.paths = {name: f"rewards.{name}" for name in names}
            self.how = "as recorded by gdpo"
        elif file.format == "trl":
            self.paths, self.how = self._of_trl()
        else:
            self.paths, self.how = self._infer()
        declared = described_ranges(read_declared(schema))
        ranges = {name: declared.get(p.removeprefix("rewards.")) for name, p in self.paths.items()}
        self.ranges = {name: found for name, found in ranges.items() if found is not None}
        file.found_rewards(self.paths, self.how)
        self._report_missing(asked, numbers)

    def of(self, _batch: Batch, _rows: Rows) -> tuple[dict[str, str], str]:
        """Return the paths of the rewards, keyed by name, and how the rewards were determined."""
        return self.paths, self.how

    def _infer(self) -> tuple[dict[str, str], str]:
        """Infer the rewards from names and values. Return them and a phrase about the method."""
        some = [path for path, kind in self._kinds.items() if kind in ("number", "empty")]
        total = self.known.total
        some += [total] if total is not None and total not in some else []
        numeric, texts = self._named_texts()
        likeliest = set(sorted([*some, *numeric], key=unlikelihood)[:_MOST_LOOKED_AT])
        kept = [path for path in (*some, *numeric) if path in likeliest]
        rows = self._first(kept)
        columns = {} if rows is None else {path: entered(rows, path) for path in kept}
        numbers = {
            p: column_in(column).values for p, column in columns.items() if column is not None
        }
        found, self.known = _inferred(self._file, numbers, texts, self.known)
        for name, path in found.names.items():
            if path in numeric:
                what = f"reward {name!r} is the text of a number, and is read as that number"
                self._file.note(None, what)
        if self.known.total is None and found.total is not None:
            self.known = replace(self.known, total=found.total)
        return self._few(found.names), found.how

    def _reward_texts(self) -> list[str]:
        return [
            path
            for path, kind in self._kinds.items()
            if kind == "text" and is_named_as_reward(path)
        ]

    def _named_texts(self) -> tuple[list[str], list[str]]:
        """Return text columns whose names suggest rewards: those with numbers, and others.

        Columns with long texts are left out, because such texts explain a reward. A total that is a
        number in at least one row does not count as a text column.
        """
        paths = self._reward_texts()[:_MOST_LOOKED_AT]
        rows = self._first(paths) if paths else None
        arrays = {} if rows is None else {path: entered(rows, path) for path in paths}
        numeric, texts = list[str](), list[str]()
        for path, array in arrays.items():
            column = column_in(array)
            if array.null_count == len(array):
                continue
            if path == self.known.total and np.isfinite(column.values).any():
                continue
            if holds_numbers(column):
                numeric.append(path)
            elif is_all_rewards(path) or all(len(t or "") <= LONGEST for t in array.to_pylist()):
                texts.append(path)
        return numeric, texts

    def _of_trl(self) -> tuple[dict[str, str], str]:
        """Return the columns listed in TRL's log, or all possible rewards if there is no log."""
        taken = self.known.taken()
        logged = [
            name
            for name in logged_rewards(self._file.path)
            if name in self._schema.names and name not in taken
        ]
        free = [f for f in self._schema if f.name not in taken | _IDS]
        floats = [f.name for f in free if pa.types.is_floating(f.type)]
        if logged:
            rest = passed_over([name for name in floats if name not in logged])
            return {n: n for n in logged}, f"as TRL's log names them (trainer_state.json){rest}"
        self._file.guessed = True
        others = [f.name for f in free if is_numeric(f.type) or pa.types.is_null(f.type)]
        rest = passed_over([name for name in others if name not in floats])
        return self._few({name: name for name in floats}), (
            "all other floating-point columns; if some are not rewards, name the rewards "
            f"(--rewards){rest}"
        )

    def _few(self, rewards: Mapping[str, str]) -> dict[str, str]:
        if len(rewards) > MOST:
            self._file.note(None, _many("columns"))
        return dict(islice(rewards.items(), MOST))

    def _report_missing(self, asked: ReaderOptions, numbers: Sequence[str]) -> None:
        schema = self._schema
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, t) for t in schema.types], schema=schema)
        for name, path in self.paths.items():
            found = entered(empty, path) is not None
            if not found:
                has = listed(schema.names)
                self._file.note(None, f"no column {path!r}; the columns are {has}")
            if name in (asked.rewards or ()):
                self._file.report.seek(name, numbers, found=found)


def _inferred(
    file: FileReport, numbers: Mapping[str, Values], texts: Sequence[str], known: Layout
) -> tuple[Inferred, Layout]:
    """Return the rewards that are inferred from the first rollouts, and the other meanings."""
    for path in texts:
        file.note(None, f"{path!r} contains text, not numbers, and is not read as a reward")
    if known.total in texts:
        known = replace(known, total=None)
    found = infer(numbers, known, texts)
    file.guessed, file.refused = True, found.why
    if found.why:
        what = f"no reward can be inferred: {found.why}; name the rewards (--rewards)"
        file.note(None, what)
    return found, known


def _many(which: str) -> str:
    """Return the notice for a file with too many numeric fields that may be rewards."""
    return (
        f"more than {MOST} {which} contain numbers and may be rewards; the first {MOST} are read: "
        "name the rewards (--rewards)"
    )


def _numbers_of(rows: Sequence[Row], known: Layout) -> dict[str, Values]:
    """Return the numbers of records by path. If there are too many, keep the likeliest rewards."""
    found: dict[str, list[tuple[int, float]]] = {}
    for place, row in enumerate(rows):
        if known.total is not None and row.total is not None:
            found.setdefault(known.total, []).append((place, number(row.total)))
        for path, value in row.rewards.items():
            if is_number(value) or (is_text_of_number(value) and is_named_as_reward(path)):
                found.setdefault(path, []).append((place, number(value)))
    kept = set(sorted(found, key=unlikelihood)[:_MOST_LOOKED_AT]) | {known.total}
    columns: dict[str, Values] = {}
    for path, numbers in found.items():
        if path in kept:
            columns[path] = np.full(len(rows), nan)
            columns[path][[place for place, _ in numbers]] = [value for _, value in numbers]
    return columns


def is_text_of_number(value: Any) -> bool:
    """Return whether a value is a text that can be parsed as a finite number."""
    return type(value) is Doubtful and isfinite(number(value))


def _texts_of(rows: Sequence[Row], numbers: Mapping[str, Values], known: Layout) -> list[str]:
    """Return fields whose names suggest rewards, but whose texts are not numbers.

    If there are rewards, fields with long texts are left out, because such texts explain a reward.
    """
    shorts: dict[str, bool] = {}
    for row in rows:
        total = {known.total: row.total} if known.total is not None else {}
        for path, value in (*row.rewards.items(), *total.items()):
            if isinstance(value, str):
                short = value is not TOO_LONG
                shorts[path] = short and shorts.get(path, True)
    rewarded = any(is_named_as_reward(path) for path in numbers)
    return [
        path
        for path, short in shorts.items()
        if not np.isfinite(numbers.get(path, nan)).any()
        and (short or not rewarded)
        and (is_all_rewards(path) or (short and is_named_as_reward(path)))
    ]


def logged_rewards(file: Path) -> tuple[str, ...]:
    """Return the reward names in the newest log of the run that wrote a completions file.

    TRL logs `rewards/<name>/mean` for each reward, and nothing for other columns, in the
    `trainer_state.json` of every checkpoint. The result is empty if there is no log, or if the log
    cannot be read.
    """
    run = file.parent.parent if file.parent.name == "completions" else file.parent
    logs = [run / _TRL_LOG, *run.glob(f"checkpoint-*/{_TRL_LOG}")]
    try:
        times = {log: log.stat().st_mtime_ns for log in logs if log.is_file()}
    except OSError:  # a checkpoint that is being deleted
        return ()
    newest = max(times, key=times.__getitem__, default=None)
    return () if newest is None else _logged_names(newest, times[newest])


@lru_cache(maxsize=16)
def _logged_names(log: Path, _changed: int) -> tuple[str, ...]:
    try:
        if log.stat().st_size > _LARGEST_LOG:
            return ()
        state: Any = json.loads(log.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ()
    history = state.get("log_history") if isinstance(state, dict) else None
    steps = cast("list[Any]", history) if isinstance(history, list) else []
    keys = (str(key) for step in steps if isinstance(step, dict) for key in step)
    return tuple(dict.fromkeys(match[1] for key in keys if (match := _LOGGED.fullmatch(key))))
