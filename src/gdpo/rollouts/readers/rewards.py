"""Determines which fields of a file are rewards: requested, known from the format, or proposed."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from math import isfinite, nan
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from gdpo.errors import DataError
from gdpo.rewards.gates import Range, described_ranges
from gdpo.rollouts.arrow import pa
from gdpo.rollouts.readers.columns import (
    LARGEST,
    RolloutBatch,
    Rows,
    column_in,
    entered,
    holds_numbers,
    names_in,
    paths_in,
    spread_column,
)
from gdpo.rollouts.readers.formats import ReaderOptions
from gdpo.rollouts.readers.keys import Key, grouping, pair
from gdpo.rollouts.readers.names import (
    NEVER,
    WEIGHTS,
    Inner,
    Kind,
    Layout,
    container_of,
    fits_reward,
    is_all_rewards,
    is_container,
    is_named_as_reward,
    listed,
    may_be_text,
    name_in,
    unlikelihood,
)
from gdpo.rollouts.readers.propose import (
    LOOKED_AT,
    FirstNumbers,
    Proposal,
    Reason,
    Where,
    contradicting,
    found_in_total,
    named_totals,
    propose,
)
from gdpo.rollouts.readers.records import (
    LONGEST,
    TOO_LONG,
    DoubtfulText,
    ParsedRollout,
    Record,
    as_object,
    is_number,
    number,
)
from gdpo.rollouts.readers.report import NAMED, FileReport, ReadProblem
from gdpo.rollouts.record import read_declared
from gdpo.rollouts.table import BY_BOTH, BY_PROMPT, NO_KEY

MOST = 64
"""Maximum number of rewards to infer from a file. Each reward adds a column for all rollouts."""
_MANY_FIELDS = {"most": MOST, "which": "fields of its records"}
_MOST_LOOKED_AT = 256
"""Maximum number of numeric fields to examine in a file in an unrecognized format."""
_LONGEST_NAME = 200
"""Maximum length of a reward's name, in characters."""
STATE = "trainer_state.json"
_LOGGED = re.compile(r"(?:eval_)?rewards/(.+)/mean")
_First: TypeAlias = Callable[[Sequence[str]], Iterator[RolloutBatch]]
"""Function that yields the first rollouts of a file, and those of the later files of its run, with
the fields at some paths."""
_KINDS: Mapping[str, Where] = {"columns": "none", "trl": "function", "ms-swift": "function"}
"""Where the rewards of a format are, if not every number may be one (see `infer`)."""
_LARGEST_LOG = 32 * 2**20
"""Maximum size of a log to read, in bytes. Parsing takes 30 times its size in memory."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """Stores the rewards of some rollouts."""

    paths: Mapping[str, str]
    how: str
    scalar: bool = False
    ranges: Mapping[str, Range] = field(default_factory=dict)


class RecordRewards:
    """Determines the rewards of a file of records: the requested or all numeric components.

    Args:
        known: Meanings of the fields, if the rewards are proposed. None: the format defines them.
        more: Function that returns the rows of the later files of the run.
    """

    def __init__(
        self,
        asked: ReaderOptions,
        file: FileReport,
        known: Layout | None,
        more: Callable[[int], Sequence[ParsedRollout]] = lambda _: (),
    ) -> None:
        self._asked, self._file, self._known, self._more = asked, file, known, more
        self._proposal: Proposal | None = None
        self._paths: dict[str, str | None] = {}
        """Name of the reward at each path that has occurred so far. None: it is not a reward."""
        self._found: dict[str, None] = {}
        """Fields in which a number has occurred so far."""

    @property
    def needed(self) -> int:
        """Number of rollouts needed to determine the rewards."""
        return LOOKED_AT if self._known is not None and self._proposal is None else 0

    def narrow(self, row: ParsedRollout) -> None:
        """Drop fields of a rollout with more fields than the maximum number of rewards."""
        if len(row.rewards) <= MOST:
            return
        names, proposed = list(row.rewards), self._known is not None
        if proposed:
            names.sort(key=unlikelihood)
        if self._asked.rewards is None and not (proposed and unlikelihood(names[MOST]) == NEVER):
            self._file.note_once(ReadProblem.MANY, _MANY_FIELDS)
        kept = {*names[:MOST], *(self._asked.rewards or ())}
        row.rewards = {name: value for name, value in row.rewards.items() if name in kept}
        if row.weights:
            row.weights = {name: w for name, w in row.weights.items() if name in kept}
        if row.turns is not None:
            row.turns = row.turns.only({*kept, row.total_name})

    def settle(self, rows: Sequence[ParsedRollout]) -> None:
        """Replace the records' fields with their rewards by name, if these are proposed.

        The proposal is made at the first call, from the first rollouts of the file.
        """
        known = self._known
        if known is None:
            return
        if self._proposal is None:
            self._proposal = self._file.proposed(lambda: self._propose(rows[:LOOKED_AT], known))
        found, asked = self._proposal, self._asked.rewards or ()
        paths, totals = set[str]().union(*(row.rewards for row in rows)), {*found.names.values()}
        beside = {n: at for n, path in found.names.items() if (at := _beside(n, path, paths))}
        for path in (paths | {row.total_name for row in rows}) - self._paths.keys():
            self._paths[path] = found.name_of(path) or (path if path in asked else None)
        for row in rows:
            row.total = None if known.total in found.texts else row.total
            row.weights = row.weights or _weights_beside(row, beside)
            if row.total_name in totals:
                row.rewards = {row.total_name: row.total, **row.rewards}
            if found.total is not None and found.total != known.total:
                row.total, row.total_name = row.rewards.get(found.total), found.total
            named = ((self._paths[path], value) for path, value in row.rewards.items())
            row.rewards = {name: value for name, value in named if name is not None}

    def _propose(self, rows: Sequence[ParsedRollout], known: Layout) -> Proposal:
        looked = [*rows, *self._more(LOOKED_AT - len(rows))]
        batch = RolloutBatch(np.arange(len(looked)), self._file, looked)
        numbers, texts = _looked_at(looked, known)
        self._file.numbers = tuple(islice(numbers, MOST))
        return _proposed(self._asked, self._file, known, [batch], numbers, texts)

    def of(self, batch: RolloutBatch, rows: Rows) -> Rewards:
        """Return the rewards of some rollouts.

        They are the requested rewards, else all fields in which a number has occurred in these or
        earlier rollouts, else the scalar reward. Calls must follow the order of the file.
        """
        part, line = batch.part(rows), int(batch.lines[rows][0])
        names, how, scalar = self._names(part)
        numbers = list(self._file.numbers)
        if self._known is None:
            numbers = [n for n, v in part[0].rewards.items() if type(v) is not DoubtfulText]
            numbers += [part[0].total_name] if part[0].total is not None else []
        elif self._file.format != "columns":
            numbers.sort(key=lambda name: name == part[0].total_name)
        has = {n: any(n in row.rewards or n == row.total_name for row in part) for n in names}
        numbers = list(dict.fromkeys(numbers))
        _seek(self._asked, self._file, has, line, ReadProblem.NO_REWARD, numbers, numbers)
        return Rewards({name: name for name in names}, how, scalar)

    def _names(self, rows: Sequence[ParsedRollout]) -> tuple[Sequence[str], str, bool]:
        """Return the names, how they were determined, and whether there is only a scalar."""
        found = self._file.proposal
        if self._asked.rewards is not None:
            return self._asked.rewards, "as given", False
        if found.refused:
            return (), "", False
        self._look(rows)
        if found.kind == "total":
            return tuple(found.names), found.how, True
        if not self._found:
            totals = tuple(dict.fromkeys(row.total_name for row in rows if row.total is not None))
            return totals, "scalar reward only: the files contain no reward components", True
        weighted = any(row.weights for row in rows)
        how = "as the files name them, with weights" if weighted else "all numeric components"
        return tuple(self._found), how if self._known is None else found.how, False

    def _look(self, rows: Sequence[ParsedRollout]) -> None:
        """Add the fields with numbers to the rewards."""
        proposed = self._file.proposal.names
        numbers = {
            name: None
            for row in rows
            for name, value in row.rewards.items()
            if type(value) is not DoubtfulText or (name in proposed and is_text_of_number(value))
            if value is not None or self._known is None
        }
        for name in [name for name in (*proposed, *numbers) if name not in self._found]:
            if len(self._found) >= MOST or len(name) > _LONGEST_NAME:
                self._file.note_once(ReadProblem.MANY, _MANY_FIELDS)
            else:
                self._found[name] = None


class TableRewards:
    """Determines the rewards of a table. All rows have the same reward columns."""

    def __init__(
        self, asked: ReaderOptions, file: FileReport, known: Layout, schema: Any, first: _First
    ) -> None:
        self._file, self._schema, self._asked = file, schema, asked
        kinds = paths_in(schema)
        numbers = [path for path, kind in kinds.items() if kind in ("number", "empty")]
        inside = [  # lists or JSON texts that may hold all rewards
            path
            for path, kind in kinds.items()
            if kind in ("other", "text") and not isinstance(path, Inner) and is_container(path)
        ]
        inside = inside if file.format == "columns" else []
        texts = [path for path, kind in kinds.items() if kind == "text" and may_be_text(path)]
        others = [path for path in (known.group, known.prompt, known.step) if path is not None]
        looked = sorted(numbers, key=unlikelihood)[:_MOST_LOOKED_AT]
        self._first = first([*looked, *inside, *texts[:_MOST_LOOKED_AT], *others])
        self._kinds, self._unread = self._opened(kinds, inside)
        self.known = known if known.total in self._kinds else replace(known, total=None)
        self.split = True
        """Whether the prompts of the first rows contradict the group ids, or are not known yet."""
        self._numbers = [p for p, kind in self._kinds.items() if kind in ("number", "empty")]
        self._texts = [path for path in texts if self._kinds.get(path) == "text"]
        found = self._find()
        declared = described_ranges(read_declared(schema))
        ranges = {name: declared.get(p.removeprefix("rewards.")) for name, p in found.paths.items()}
        ranges = {name: each for name, each in ranges.items() if each is not None}
        self.found = replace(found, ranges=ranges)
        file.found_rewards(found.paths, found.how, scalar=found.scalar)
        every = {*self._kinds, *schema.names}
        has = {
            name: path in every or any(each.startswith(f"{path}.") for each in every)
            for name, path in found.paths.items()
        }
        full = [path for path, kind in self._kinds.items() if kind == "number"]
        _seek(asked, file, has, None, ReadProblem.NO_COLUMN, schema.names, full)

    def of(self, _batch: RolloutBatch, _rows: Rows) -> Rewards:
        """Return the rewards, which are those of all rows."""
        return self.found

    def _rows(self) -> Any:
        """Return the first rows of the file as a table, or None."""
        batch = next(self._first, None)
        if batch is None:
            return None
        self._first = chain([batch], self._first)
        return batch.table

    def _opened(
        self, kinds: dict[str, Kind], inside: Sequence[str]
    ) -> tuple[dict[str, Kind], list[str]]:
        """Return the columns, with those inside lists and JSON text, and columns with neither."""
        found, unread = dict(kinds), list[str]()
        for path in inside:
            table = self._rows()
            column = None if table is None else entered(table, path)
            inner = {} if column is None else spread_column(column, names_in(table))
            if inner:
                if "0" in inner:  # a list without names, which may have a value for each turn
                    found[path] = "number"
                else:
                    del found[path]
                found |= {Inner(f"{path}.{name}"): "number" for name in inner}
            elif kinds[path] == "other" and is_all_rewards(path):
                unread.append(path)
        return found, unread

    def _find(self) -> Rewards:
        file, asked, own = self._file, self._asked.rewards, self._numbers
        if asked is not None:
            if file.format in ("columns", "trl"):
                file.proposed(lambda: self._propose(own, (), ()))
            return Rewards(resolved(asked, [*own, *self._texts]), "as given")
        if file.format == "gdpo":
            record = self._schema.field("rewards").type
            names = [each.name for each in record] if pa.types.is_struct(record) else []
            return Rewards({name: f"rewards.{name}" for name in names}, "as recorded by gdpo")
        return self._guess(self._floats() if file.format == "trl" else own)

    def _floats(self) -> list[str]:
        """Return the columns that TRL may have written for a reward."""
        logged, taken = logged_rewards(self._file.path), self.known.taken()
        return [
            each.name
            for each in self._schema
            if each.name not in taken and (pa.types.is_floating(each.type) or each.name in logged)
        ]

    def _guess(self, own: Sequence[str]) -> Rewards:
        file, (texts, unread) = self._file, self._named_texts()
        found = file.proposed(lambda: self._propose(own, texts, [*unread, *self._unread]))
        for name, path in found.names.items():
            if path in texts:
                file.note(None, ReadProblem.TEXT, {"field": f"reward {name!r}", "limit": LARGEST})
        if found.total is not None or self.known.total in found.texts:
            self.known = replace(self.known, total=found.total)
        named = {name: path for name, path in found.names.items() if path in self._kinds}
        known = [*named.values(), *found.left_out]
        more = {path: found.name_of(path) for path in (*own, *texts) if path not in known}
        named |= {name: path for path, name in more.items() if name is not None}
        if len(named) > MOST:
            file.note(None, ReadProblem.MANY, {"most": MOST, "which": "columns"})
        return Rewards(dict(islice(named.items(), MOST)), found.how, found.kind == "total")

    def _propose(self, own: Sequence[str], texts: Sequence[str], unread: Sequence[str]) -> Proposal:
        """Return the proposal among some columns with numbers or texts of numbers."""
        file, total = self._file, self.known.total
        paths = [*own, *([total] if total is not None and total not in own else []), *texts]
        found = _proposed(self._asked, file, self.known, list(self._first), paths, unread)
        self.split = file.run in file.report.ids
        if file.format != "trl":
            return found
        taken = {*own, *self.known.taken()}
        full = [p for p, kind in self._kinds.items() if kind == "number" and p not in taken]
        left_out: dict[str, Reason] = dict.fromkeys(full, "name")
        return replace(found, left_out={**left_out, **found.left_out})

    def _named_texts(self) -> tuple[list[str], list[str]]:
        paths = self._texts[:_MOST_LOOKED_AT]
        rows = self._rows() if paths else None
        numeric, texts = list[str](), list[str]()
        for path in () if rows is None else paths:
            array = entered(rows, path)
            column = column_in(array)
            is_total = path == self.known.total and np.isfinite(column.values).any()
            if is_total or array.null_count == len(array):
                continue
            if holds_numbers(column):
                numeric.append(path)
            elif is_all_rewards(path) or (
                is_named_as_reward(path) and all(len(t or "") <= LONGEST for t in array.to_pylist())
            ):
                texts.append(path)
        return numeric, texts


def _proposed(
    asked: ReaderOptions,
    file: FileReport,
    known: Layout,
    batches: Sequence[RolloutBatch],
    paths: Sequence[str],
    texts: Sequence[str],
) -> Proposal:
    """Return the rewards among the numbers of the first rollouts, and their weights in a total.

    `paths` are the fields with numbers, and `texts` those named as rewards that contain text. What
    the values contradict is reported.
    """
    kept = {*sorted(paths, key=unlikelihood)[:_MOST_LOOKED_AT], known.total}
    numbers = {
        path: _joined(
            [
                np.full(len(batch), nan) if (found := batch.column(path)) is None else found.values
                for batch in batches
            ]
        )
        for path in paths
        if path in kept
    }
    texts = [path for path in texts if not np.isfinite(numbers.get(path, nan)).any()]
    first = FirstNumbers(numbers, _first_groups(asked, file, batches))
    if asked.rewards is not None:
        found, texts = Proposal("asked", resolved(asked.rewards, list(numbers))), []
    elif file.format in NAMED and (logged := set(logged_rewards(file.path)) & numbers.keys()):
        names = {name: name for name in numbers if name in logged}
        left_out: dict[str, Reason] = {path: "name" for path in numbers if path not in logged}
        found = Proposal("logged", names, left_out=left_out)
    else:
        known = replace(known, total=None) if known.total in texts else known
        kind = _KINDS.get(file.format, "every")
        described = asked.columns is not None
        found = propose(first, known, texts=texts, kind=kind, described=described)
    found = replace(found, texts=tuple(texts))
    problems = [(ReadProblem.TEXTS, {"path": path}) for path in texts]
    problems += [(ReadProblem.NOT_INFERRED, {"why": found.refused})] if found.refused else []
    if found.names and found.kind not in ("logged", "total"):
        known = replace(known, total=found.total or known.total)
        totals = named_totals(found.names, numbers, known)
        in_total = found_in_total(found.names, numbers, totals)
        if in_total is not None:
            found = replace(found, total=in_total.total, in_total=in_total)
            zeros = sorted(in_total.zeros)
            problems += [(ReadProblem.ZERO, {"name": n, "total": in_total.total}) for n in zeros]
        elif total := contradicting(found.names, numbers, totals):
            problems.append((ReadProblem.CONTRADICTED, {"total": total}))
    for problem, values in problems:
        file.note(None, problem, values)
    return found


def _first_groups(asked: ReaderOptions, file: FileReport, batches: Sequence[RolloutBatch]) -> Key:
    """Return the group of each of the first rollouts, and record if prompts contradict the ids."""
    steps, keys = _joined([b.steps() for b in batches]), [b.keys() for b in batches]
    ids, prompts = _joined([k for k, _ in keys]), _joined([k for _, k in keys])
    none = np.full(len(ids), NO_KEY)
    groups = grouping(steps, ids, prompts, none, none)
    alone = groups.alone and "group" not in (asked.columns or {})
    if groups.split or alone:
        file.report.ids[file.run] = BY_BOTH if groups.split else BY_PROMPT
    return pair(steps, prompts if alone else groups.keys)


def _joined(arrays: Sequence[np.ndarray]) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _seek(
    asked: ReaderOptions,
    file: FileReport,
    found: Mapping[str, bool],
    line: int | None,
    problem: ReadProblem,
    fields: Sequence[str],
    numbers: Sequence[str],
) -> None:
    """Report the rewards that were found, and otherwise the existing fields."""
    for name, is_there in found.items():
        if not is_there:
            file.note(line, problem, {"name": name, "fields": listed(fields)})
        if name in (asked.rewards or ()):
            sought = file.report.sought
            sought[name] = is_there or sought.get(name, False)
            file.report.offered |= {} if is_there else dict.fromkeys(numbers)


def _beside(name: str, path: str, among: Set[str]) -> list[str]:
    places = [*(f"{each}.{name}" for each in WEIGHTS), f"{path.rpartition('.')[0]}.weight"]
    return [place for place in places if place in among]


def _weights_beside(
    row: ParsedRollout, beside: Mapping[str, Sequence[str]]
) -> dict[str, float] | None:
    """Return the weights in an object `weights`, or next to each value, or None."""
    weights: dict[str, float] = {}
    for name, places in beside.items():
        value = next((row.rewards[place] for place in places if place in row.rewards), None)
        if is_number(value):
            weights[name] = number(value)
    return weights or None


def _looked_at(rows: Sequence[ParsedRollout], known: Layout) -> tuple[list[str], list[str]]:
    """Return the fields of records with numbers, and those named as rewards with texts."""
    numbers, shorts = dict[str, None](), dict[str, bool]()
    for row in rows:
        total = {} if known.total is None else {known.total: row.total}
        for path, value in (*total.items(), *row.rewards.items()):
            if isinstance(value, str):
                shorts[path] = value is not TOO_LONG and shorts.get(path, True)
            is_text = is_text_of_number(value) and may_be_text(path)
            is_text |= value is None and fits_reward(path)
            if is_number(value) or is_text or (path == known.total and value is not None):
                numbers[path] = None
    rewarded = any(is_named_as_reward(path) for path in numbers)
    return list(numbers), [
        path
        for path, short in shorts.items()
        if (short or not rewarded)
        and (is_all_rewards(path) or (short and is_named_as_reward(path)))
    ]


def resolved(asked: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Return the paths of requested rewards."""
    prefix = container_of(paths)
    inside = {name: p for p in paths if prefix and (name := name_in(p, prefix))}
    return {name: name if name in paths else inside.get(name, name) for name in asked}


def is_text_of_number(value: Any) -> bool:
    """Return whether a value is the text of a finite number."""
    return type(value) is DoubtfulText and isfinite(number(value))


def logged_steps(state: Path, *, most: int) -> list[Record]:
    """Return what a `trainer_state.json` of at most `most` bytes logged, or raise a DataError."""
    if state.stat().st_size > most:
        raise DataError(f"the file is larger than {most:,} bytes")
    try:
        history = as_object(json.loads(state.read_bytes())).get("log_history")
    except (ValueError, RecursionError) as error:
        raise DataError("not a readable JSON file") from error
    steps = cast("list[Any]", history) if isinstance(history, list) else []
    return [step for step in steps if isinstance(step, dict)]


def logged_rewards(file: Path) -> tuple[str, ...]:
    """Return the reward names in the newest log of the run that wrote a completions file.

    TRL logs `rewards/<name>/mean` for each reward, and nothing for other columns, in the
    `trainer_state.json` of every checkpoint.
    """
    run = file.parent.parent if file.parent.name == "completions" else file.parent
    logs = [run / STATE, *run.glob(f"checkpoint-*/{STATE}")]
    try:
        times = {log: log.stat().st_mtime_ns for log in logs if log.is_file()}
    except OSError:  # a checkpoint that is being deleted
        return ()
    newest = max(times, key=times.__getitem__, default=None)
    return () if newest is None else _logged_names(newest, times[newest])


@lru_cache(maxsize=16)
def _logged_names(log: Path, _changed: int) -> tuple[str, ...]:
    try:
        keys = (str(key) for step in logged_steps(log, most=_LARGEST_LOG) for key in step)
    except (OSError, DataError):
        return ()
    return tuple(dict.fromkeys(match[1] for key in keys if (match := _LOGGED.fullmatch(key))))
