"""Determines which fields of a file are rewards.

Rewards are requested by the user, known from the format, or inferred. A format of records defines
which fields may be rewards. Among these fields, those that contain numbers are rewards. For files
in an unrecognized format, the rewards are inferred from the first rollouts (see `infer`).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    column_of,
    entered,
    holds_numbers,
    keys,
    names_in,
    paths_in,
    spread_column,
    table_keys,
)
from gdpo.rollouts.readers.formats import ReaderOptions
from gdpo.rollouts.readers.infer import (
    LOOKED_AT,
    NEVER,
    NO_KEY,
    WEIGHTS,
    Inferred,
    Inner,
    Key,
    Kind,
    Layout,
    Reason,
    Sample,
    Values,
    Where,
    grouping,
    infer,
    is_all_rewards,
    is_container,
    is_named_as_reward,
    listed,
    may_be_text,
    named_by_user,
    pair,
    passed_over,
    resolved,
    unlikelihood,
)
from gdpo.rollouts.readers.records import LONGEST, TOO_LONG, Doubtful, Row, is_number, number
from gdpo.rollouts.readers.report import BY_BOTH, BY_PROMPT, FileReport
from gdpo.rollouts.record import read_declared

MOST = 64
"""Maximum number of rewards to infer from a file. Each reward adds a column for all rollouts."""
_MOST_LOOKED_AT = 256
"""Maximum number of numeric fields to examine in a file in an unrecognized format."""
_TEXTS = 1024
"""Maximum number of text fields to track because they may turn out to be rewards."""
_LONGEST_NAME = 200
"""Maximum length of a reward's name, in characters."""
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
        known: Meanings of the fields, if the rewards are inferred. None: the format defines them.
        more: Function that returns the rows of the later files of the run, if they are needed.
    """

    def __init__(
        self,
        asked: ReaderOptions,
        file: FileReport,
        known: Layout | None,
        more: Callable[[int], Sequence[Row]] = lambda _: (),
    ) -> None:
        self._asked, self._file, self._known, self._more = asked.rewards, file, known, more
        self._described = asked.columns is not None
        self._given_ids = "group" in (asked.columns or {})
        self.ranges: dict[str, Range] = {}
        self.inferred: Inferred | None = None
        self.scalar = False
        self._no_total = False
        self._paths: dict[str, str | None] = {}
        """Name of the reward at each path that has occurred so far. None: it is no reward."""
        self._found: dict[str, None] = {}
        """Fields in which a number has occurred so far."""
        self._texts: dict[str, tuple[int, int]] = {}
        """Fields in which only texts have occurred so far, with the first line and the number of
        texts."""

    @property
    def needed(self) -> int:
        """Number of rollouts at the start of the file that are needed to determine the rewards."""
        return LOOKED_AT if self._known is not None and self.inferred is None else 0

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
        """Replace the records' fields with their rewards by name, if these are inferred.

        The first call infers the rewards, so it must pass the first rollouts of the file.
        """
        if self._known is None:
            return
        if self.inferred is None:
            self.inferred = self._learn(rows[:LOOKED_AT], self._known)
        found = self.inferred
        for row in rows:
            row.total = None if self._no_total else row.total
            row.weights = row.weights or self._weights_of(row)
            if row.total_name in found.names.values():
                row.rewards = {row.total_name: row.total, **row.rewards}
            if found.total is not None and found.total != self._known.total:
                row.total, row.total_name = row.rewards.get(found.total), found.total
            named = ((self._name_of(path), value) for path, value in row.rewards.items())
            row.rewards = {name: value for name, value in named if name is not None}

    def _name_of(self, path: str) -> str | None:
        if path not in self._paths:
            assert self.inferred is not None
            found = self.inferred.name_of(path)
            if found is None and self._asked is not None and path in self._asked:
                found = path
            self._paths[path] = found
        return self._paths[path]

    def of(self, batch: Batch, rows: Rows) -> tuple[dict[str, str], str]:
        """Return the rewards of some rollouts, and a phrase about how they were determined.

        The rewards are the requested rewards, else all fields in which a number has occurred in
        these or earlier rollouts, else the scalar reward. Calls must follow the order of the file.
        """
        part = batch.part(rows)
        lines = batch.lines[rows].tolist()
        names, how = self._names(part, lines)
        numbers = list(self._file.numbers)
        if self._known is None:
            numbers = [n for n, v in part[0].rewards.items() if type(v) is not Doubtful]
            numbers += [part[0].total_name] if part[0].total is not None else []
        elif self._file.format != "columns":
            numbers.sort(key=lambda name: name == part[0].total_name)
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
        inferred = self.inferred
        if inferred is not None and inferred.refused:
            return (), ""
        self._look(rows, lines)
        if inferred is not None and inferred.kind == "total":
            self.scalar = True
            return tuple(inferred.names), inferred.how
        self.scalar = not self._found
        if self._found:
            weighted = any(row.weights for row in rows)
            self._file.guessed |= not weighted
            how = "as the files name them, with weights" if weighted else "all numeric components"
            return tuple(self._found), how if inferred is None else inferred.how
        totals = tuple(dict.fromkeys(row.total_name for row in rows if row.total is not None))
        return totals, "scalar reward only: the files contain no reward components"

    def _learn(self, rows: Sequence[Row], known: Layout) -> Inferred:
        """Return the rewards of the run, inferred from its first rollouts."""
        if self._asked is None and (found := self._file.known_rewards()) is not None:
            return found
        rows = [*rows, *self._more(LOOKED_AT - len(rows))]
        numbers = _numbers_of(rows, known)
        self._file.numbers = tuple(islice(numbers, MOST))
        ids, prompts = keys([row.group for row in rows]), keys([row.prompt for row in rows])
        steps = np.nan_to_num(column_of([row.step for row in rows]).values).view(np.int64)
        groups = _checked_ids(self._file, steps, ids, prompts, given=self._given_ids)
        sample = Sample(numbers, pair(steps, groups))
        if self._asked is not None:
            return _named(self._file, sample, known, self._asked)
        texts = _texts_of(rows, numbers, known)
        kind: Where = "none" if self._file.format == "columns" else "every"
        found, self._known = _inferred(
            self._file, sample, texts, known, kind, described=self._described
        )
        self._no_total = known.total is not None and self._known.total is None
        return found

    def _weights_of(self, row: Row) -> dict[str, float] | None:
        """Return the weights in an object `weights`, or next to each value, or None."""
        weights: dict[str, float] = {}
        for name, path in self.inferred.names.items() if self.inferred is not None else ():
            places = (*(f"{each}.{name}" for each in WEIGHTS), f"{path.rpartition('.')[0]}.weight")
            value = next((row.rewards[place] for place in places if place in row.rewards), None)
            if is_number(value):
                weights[name] = number(value)
        return weights or None

    def _look(self, rows: Sequence[Row], lines: Sequence[int]) -> None:
        """Add the fields with numbers to the rewards, and track the fields with only texts."""
        inferred = {} if self.inferred is None else self.inferred.names
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
        first: Function that yields the first rows of the table, and of the later files of the run,
            each with the columns of some paths.
    """

    def __init__(
        self,
        asked: ReaderOptions,
        file: FileReport,
        known: Layout,
        schema: Any,
        first: Callable[[Sequence[str]], Iterable[Any]],
    ) -> None:
        self._file, self._schema, self._first, self._asked = file, schema, first, asked
        self._kinds, self._unread = self._opened(paths_in(schema))
        self.known = known if known.total in self._kinds else replace(known, total=None)
        numbers = [path for path, kind in self._kinds.items() if kind == "number"]
        self.inferred: Inferred | None = None
        self.split = True
        """Whether the prompts of the first rows contradict the group ids, or are not known yet."""
        if asked.rewards is not None:
            paths = resolved(asked.rewards, [*numbers, *self._reward_texts()])
            self.paths, self.how = paths, "as given"
            if file.format in ("columns", "trl"):
                self.inferred = _named(file, self._sample(), self.known, asked.rewards)
        elif file.format == "gdpo":
            record = schema.field("rewards").type
            names = [field.name for field in record] if pa.types.is_struct(record) else []
            self.paths = {name: f"rewards.{name}" for name in names}
            self.how = "as recorded by gdpo"
        elif file.format == "trl" and (logged := self._logged()):
            self.paths, self.how = logged, "as TRL's log names them (trainer_state.json)"
            file.left_out = {path: "name" for path in self._floats() if path not in logged}
            self.how += passed_over(file.left_out)
        else:
            self.paths, self.how = self._infer()
        declared = described_ranges(read_declared(schema))
        ranges = {name: declared.get(p.removeprefix("rewards.")) for name, p in self.paths.items()}
        self.ranges = {name: found for name, found in ranges.items() if found is not None}
        self.scalar = self.inferred is not None and self.inferred.kind == "total"
        file.found_rewards(self.paths, self.how, scalar=self.scalar)
        self._report_missing(asked, numbers)

    def of(self, _batch: Batch, _rows: Rows) -> tuple[dict[str, str], str]:
        """Return the paths of the rewards, keyed by name, and how the rewards were determined."""
        return self.paths, self.how

    def _opened(self, kinds: dict[str, Kind]) -> tuple[dict[str, Kind], list[str]]:
        """Return the columns, with those inside lists and JSON text, and columns with neither."""
        found, unread = dict(kinds), list[str]()
        if self._file.format != "columns":
            return found, unread
        for path in [p for p, kind in kinds.items() if kind in ("other", "text")]:
            if not is_container(path) or isinstance(path, Inner):
                continue
            batch = next(iter(self._first([path])), None)
            column = None if batch is None else entered(batch, path)
            inner = {} if column is None else spread_column(column, names_in(batch))
            if inner:
                del found[path]
                found |= {Inner(f"{path}.{name}"): "number" for name in inner}
            elif kinds[path] == "other" and is_all_rewards(path):
                unread.append(path)
        return found, unread

    def _sample(self, texts: Sequence[str] = ()) -> Sample:
        """Return the numbers of the first rows, by path, and the keys of their groups."""
        some = [path for path, kind in self._kinds.items() if kind in ("number", "empty")]
        if self._file.format == "trl" and self._asked.rewards is None:
            some = [path for path in some if path in self._floats()]
        total = self.known.total
        some += [total] if total is not None and total not in some else []
        likeliest = set(sorted([*some, *texts], key=unlikelihood)[:_MOST_LOOKED_AT])
        kept = [path for path in (*some, *texts) if path in likeliest]
        others = (self.known.group, self.known.prompt, self.known.step)
        batches = list(self._first([*kept, *(path for path in others if path is not None)]))
        numbers = {p: _joined([_values_in(batch, p) for batch in batches]) for p in kept}
        steps = _joined([self._steps_in(batch, file) for file, batch in enumerate(batches)])
        found = [table_keys(batch, self.known, None, checked=True) for batch in batches]
        ids, prompts = (_joined([each[place] for each in found]) for place in (0, 1))
        given = "group" in (self._asked.columns or {})
        groups = _checked_ids(self._file, steps, ids, prompts, given=given)
        self.split = self._file.run in self._file.report.ids
        return Sample(numbers, pair(steps, groups))

    def _steps_in(self, batch: Any, file: int) -> Key:
        """Return the steps of some rows of one of the files of a run, as keys."""
        if self.known.step is None:
            return np.full(batch.num_rows, file, np.int64)
        return np.nan_to_num(_values_in(batch, self.known.step)).view(np.int64)

    def _infer(self) -> tuple[dict[str, str], str]:
        """Infer the rewards from names and values. Return them and a phrase about the method."""
        numeric, texts = self._named_texts()
        found = self._file.known_rewards()
        if found is None:
            kind: Where = "function" if self._file.format == "trl" else "none"
            found, self.known = _inferred(
                self._file,
                self._sample(numeric),
                [*texts, *self._unread],
                self.known,
                kind,
                described=self._asked.columns is not None,
            )
            if kind == "function":
                others = [p for p in self._kinds if p not in self.known.taken()]
                names: dict[str, Reason] = {
                    p: "name"
                    for p in others
                    if self._kinds[p] in ("number", "empty") and p not in self._floats()
                }
                found = replace(found, left_out=names | dict(found.left_out))
                self._file.left_out = found.left_out
        self.inferred = found
        for name, path in found.names.items():
            if path in numeric:
                what = f"reward {name!r} is the text of a number, and is read as that number"
                self._file.note(None, what)
        if found.total is not None:
            self.known = replace(self.known, total=found.total)
        own = [path for path, kind in self._kinds.items() if kind in ("number", "empty")]
        own = self._floats() if self._file.format == "trl" else own
        named = {name: path for name, path in found.names.items() if path in self._kinds}
        known = [*named.values(), *found.left_out]
        more = {path: found.name_of(path) for path in (*own, *numeric) if path not in known}
        named |= {name: path for path, name in more.items() if name is not None}
        return self._few(named), found.how

    def _reward_texts(self) -> list[str]:
        return [path for path, kind in self._kinds.items() if kind == "text" and may_be_text(path)]

    def _named_texts(self) -> tuple[list[str], list[str]]:
        """Return text columns whose names suggest rewards: those with numbers, and others.

        Columns with long texts are left out, because such texts explain a reward. A total that is a
        number in at least one row does not count as a text column.
        """
        paths = self._reward_texts()[:_MOST_LOOKED_AT]
        rows = next(iter(self._first(paths)), None) if paths else None
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
            elif is_all_rewards(path) or (
                is_named_as_reward(path) and all(len(t or "") <= LONGEST for t in array.to_pylist())
            ):
                texts.append(path)
        return numeric, texts

    def _logged(self) -> dict[str, str]:
        """Return the columns that TRL's log names as rewards."""
        taken = self.known.taken()
        names = logged_rewards(self._file.path)
        return {n: n for n in names if n in self._schema.names and n not in taken}

    def _floats(self) -> list[str]:
        """Return the columns of a TRL file that may be rewards, which TRL writes as floats."""
        free = [field for field in self._schema if field.name not in self.known.taken()]
        return [field.name for field in free if pa.types.is_floating(field.type)]

    def _few(self, rewards: Mapping[str, str]) -> dict[str, str]:
        if len(rewards) > MOST:
            self._file.note(None, _many("columns"))
        return dict(islice(rewards.items(), MOST))

    def _report_missing(self, asked: ReaderOptions, numbers: Sequence[str]) -> None:
        schema = self._schema
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, t) for t in schema.types], schema=schema)
        for name, path in self.paths.items():
            found = path in self._kinds or entered(empty, path) is not None
            if not found:
                has = listed(schema.names)
                self._file.note(None, f"no column {path!r}; the columns are {has}")
            if name in (asked.rewards or ()):
                self._file.report.seek(name, numbers, found=found)


def _values_in(batch: Any, path: str) -> Values:
    column = entered(batch, path)
    return np.full(batch.num_rows, nan) if column is None else column_in(column).values


def _joined(arrays: Sequence[np.ndarray]) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _checked_ids(file: FileReport, steps: Key, ids: Key, prompts: Key, *, given: bool) -> Key:
    """Return the groups of the first rollouts of a run, and record what contradicts their ids.

    With `given`, the user named the field with the ids, which is then used if each id is alone.
    """
    none = np.full(len(ids), NO_KEY)
    found = grouping(steps, ids, prompts, none, none)
    if found.split or (found.alone and not given):
        file.report.ids[file.run] = BY_BOTH if found.split else BY_PROMPT
    return prompts if found.alone and not given else found.keys


def _named(file: FileReport, sample: Sample, known: Layout, asked: Sequence[str]) -> Inferred:
    """Return the rewards that the user named, and report a total that contradicts them."""
    found = named_by_user(sample, known, asked)
    _report_contradiction(file, found)
    return found


def _report_contradiction(file: FileReport, found: Inferred) -> None:
    if found.contradicts:
        what = (
            f"{found.contradicts!r} is not the sum of the rewards, and their weights cannot be "
            "found in it: give the weights (--weights), or judge the total alone (--rewards)"
        )
        file.note(None, what)


def _inferred(
    file: FileReport,
    sample: Sample,
    texts: Sequence[str],
    known: Layout,
    kind: Where,
    *,
    described: bool,
) -> tuple[Inferred, Layout]:
    """Return the rewards that are inferred from the first rollouts, and the other meanings."""
    for path in texts:
        file.note(None, f"{path!r} contains text, not numbers, and is not read as a reward")
    if known.total in texts:
        known = replace(known, total=None)
    found = infer(sample, known, texts=texts, kind=kind, described=described)
    file.guessed, file.refused, file.choices = True, found.refused, found.choices
    file.left_out = found.left_out
    if found.refused:
        what = f"no reward can be inferred: {found.refused}; name the rewards (--rewards)"
        file.note(None, what)
        file.report.refused[file.run, file.format, file.shape] = found
    else:
        file.report.inferred[file.run, file.format] = found
    _report_contradiction(file, found)
    for path, twin in found.copied:
        what = f"{path!r} repeats {twin!r} in another unit: only {twin!r} is read as a reward"
        file.note(None, what)
    for name in sorted(found.zeros):
        file.note(None, f"reward {name!r} counts as 0 where it is missing, as in {found.total!r}")
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
            if is_number(value) or (is_text_of_number(value) and may_be_text(path)):
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
