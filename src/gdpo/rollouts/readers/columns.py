"""Converts rollouts, from records or from rows of a table, into columns of numbers."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite, nan
from typing import Any, TypeAlias, cast

import numpy as np

from gdpo._files import from_json
from gdpo._shapes import Bool, Int
from gdpo.rollouts.arrow import pa, pc
from gdpo.rollouts.readers.keys import (
    Key,
    group_keys,
    grouping,
    key_of,
    pair,
    restarted,
)
from gdpo.rollouts.readers.names import (
    GDPO,
    NAME_LISTS,
    NOTHING_KNOWN,
    WEIGHTS,
    Inner,
    Kind,
    Layout,
    spread,
)
from gdpo.rollouts.readers.records import TRUTHS, DoubtfulText, ParsedRollout, number, plain
from gdpo.rollouts.readers.report import FileReport, ReadProblem
from gdpo.rollouts.record import opened
from gdpo.rollouts.table import BY_BOTH, BY_IDS, BY_NOTHING, BY_PROMPT, NO_KEY, Values

LARGEST = 1e60
"""Numbers above this limit count as missing, so that sums of squares stay finite."""
_MISSING = frozenset(
    {"", "nan", "-nan", "null", "none", "na", "n/a", "#na", "#n/a", "#n/a n/a"}
    | {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
)
_LOOKED_AT = 4096
"""Number of rows at the start of a CSV file that determine which columns are numeric."""
_CUT = frozenset(
    {"length", "max_tokens", "max_length", "truncated", "context_length", "max_sampled_tokens"}
)
_ENDED = frozenset({"stop", "completed", "eos", "stop_sequence", "tool_calls", "end_turn"})
Rows: TypeAlias = Int[np.ndarray, " some"] | slice


@dataclass(frozen=True, slots=True)
class Column:
    """Stores the values of one field for some rollouts."""

    values: Values
    """The values as numbers. NaN if a value is missing or is not a number."""
    missing: Bool[np.ndarray, " rollout"]
    wrong: Bool[np.ndarray, " rollout"]
    """True where the value is not a number."""
    texts: Bool[np.ndarray, " rollout"]
    """True where a record contains a number as text."""

    def take(self, rows: Rows) -> "Column":
        """Return the column for some of the rollouts."""
        return Column(self.values[rows], self.missing[rows], self.wrong[rows], self.texts[rows])

    def usable(self, what: str, lines: Int[np.ndarray, " rollout"], file: FileReport) -> Values:
        """Return the numbers, with NaN for unusable values, and add a notice for each problem."""
        size = np.abs(self.values)
        good = size <= LARGEST
        if good.all() and not self.texts.any():
            return self.values
        for odd, problem in (
            (self.wrong, ReadProblem.NO_NUMBER),
            (np.isnan(self.values) & ~self.missing & ~self.wrong, ReadProblem.NAN),
            (np.isinf(self.values), ReadProblem.INFINITE),
            (np.isfinite(size) & ~good, ReadProblem.BEYOND),
            (self.texts & good, ReadProblem.TEXT),
        ):
            file.note_where(odd, lines, problem, {"field": what, "limit": LARGEST})
        return np.where(good, self.values, nan)


def column_of(given: Sequence[Any]) -> Column:
    """Return the values of one field of some records as a column."""
    kinds = set(map(type, given))
    none = np.zeros(len(given), np.bool_)
    missing = np.array([value is None for value in given]) if type(None) in kinds else none
    if kinds <= {float, int, bool, type(None)}:
        try:
            return Column(np.array(given, np.float64), missing, none, none)
        except OverflowError:
            pass
    values = np.array([number(value) for value in given])
    own = np.array([isinstance(value, float) for value in given], np.bool_)
    wrong = ~missing & ~np.isfinite(values) & ~own
    texts = np.array([type(value) is DoubtfulText for value in given], np.bool_)
    return Column(np.where(wrong, nan, values), missing, wrong, texts & ~wrong)


def column_in(column: Any) -> Column:
    """Return an Arrow array as a column. Strings such as `n/a` count as missing values."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    none = np.zeros(len(column), np.bool_)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    numbers = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    try:
        values = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = column.to_pylist()
        values = np.array(list(map(number, texts)))
        missing |= np.array([str(value).strip().lower() in _MISSING for value in texts])
        return Column(values, missing, np.isnan(values) & ~missing, none)
    if not pa.types.is_floating(column.type):
        missing = missing | np.isnan(values)
    return Column(values, missing, none, none)


@dataclass(frozen=True, slots=True)
class RolloutText:
    """Stores a rollout's prompt and completion as text, chat messages or tokens."""

    prompt: Any
    completion: Any
    truth: Any = None
    """Reference that was used to score the completion."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    num_tokens: float | None = None
    row: int = -1
    """Index of the rollout within its file, counted from 0, or -1 if unknown."""
    mixed: bool = False
    """Whether the completion is one text that also contains tool results."""
    restored: bool = False
    """Whether prompt and completion are as in training, so that a text is not JSON."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """Stores recomputed rewards by name, and the problems during scoring."""

    rewards: Mapping[str, Sequence[float | None]]
    problems: Mapping[str, Sequence[int]]
    """Positions of the rollouts with each problem, keyed by message."""


Rescore: TypeAlias = Callable[[Sequence[RolloutText]], Rescored]


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Stores consecutive rollouts of a file: parsed records, or rows of an Arrow table."""

    lines: Int[np.ndarray, " rollout"]
    """Line number of each rollout, or row number from 0 if the file has no lines."""
    file: FileReport
    rows: Sequence[ParsedRollout] = ()
    table: Any = None
    """Arrow record batch. None: the rollouts are `rows`."""
    known: Layout = NOTHING_KNOWN
    read: dict[str, Column | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, rows: Rows) -> Sequence[ParsedRollout]:
        """Return some of the records."""
        return self.rows if isinstance(rows, slice) else [self.rows[i] for i in rows]

    def column(self, path: str) -> Column | None:
        """Return the numbers at a path, or None if a table has no such column."""
        if path not in self.read:
            if self.table is None:
                values = (
                    row.rewards.get(path, row.total if path == row.total_name else None)
                    for row in self.rows
                )
                self.read[path] = column_of(list(values))
            else:
                found = entered(self.table, path)
                if found is not None and not is_numeric(found.type):
                    found = _added_up(found)
                self.read[path] = None if found is None else column_in(found)
        return self.read[path]

    def weight(self, name: str, rows: Rows) -> Values | None:
        """Return the weights of a reward for some rollouts, NaN where unknown, or None."""
        if self.table is None:
            given = [row.weights.get(name) if row.weights else None for row in self.part(rows)]
            return None if all(each is None for each in given) else np.array(given, np.float64)
        columns = (entered(self.table, f"{each}.{name}") for each in WEIGHTS)
        found = next((c for c in columns if c is not None and is_numeric(c.type)), None)
        return None if found is None else column_in(found).values[rows]

    def meant(self, meaning: str) -> Any:
        """Return the column with this meaning, a list or an Arrow array, or None if absent."""
        if self.table is None:
            return [getattr(row, meaning) for row in self.rows]
        path = getattr(self.known, meaning)
        return None if path is None else entered(self.table, path)

    def has(self, meaning: str, rows: Rows) -> Bool[np.ndarray, " rollout"]:
        """Return whether each of some rollouts has a `group` or a `prompt`."""
        if self.table is None:
            part = self.part(rows)
            return np.array([getattr(row, meaning) is not None for row in part], np.bool_)
        prompted = meaning == "prompt" and self.known.prompt is not None
        there = prompted or self.meant(meaning) is not None
        return np.full(len(self.lines[rows]), there)

    def grouped_by(self, rows: Rows) -> str:
        """Return how some rollouts are grouped. A few may lack the group field."""
        alone = self.file.report.ids.get(self.file.run) == BY_PROMPT
        if self.has("group", rows).any() and not alone:
            return BY_BOTH if self.file.split else BY_IDS
        return BY_PROMPT if self.has("prompt", rows).any() else BY_NOTHING

    def numbers(self, meaning: str) -> Values:
        """Return the column with this meaning, NaN where unusable, and report those."""
        values = self.meant(meaning)
        if values is None:
            return np.full(len(self), nan)
        column = column_of(values) if isinstance(values, list) else column_in(values)
        return column.usable(meaning, self.lines, self.file)

    def text(self, row: int) -> RolloutText:
        """Return the texts of one rollout. Of a table, only prompt and completion are read."""
        if self.table is None:
            return text_of_row(self.rows[row])
        paths = (self.known.prompt, self.known.completion)
        columns = (None if path is None else entered(self.table, path) for path in paths)
        values = (None if column is None else column[row].as_py() for column in columns)
        return RolloutText(*(_opened_text(value, self.known) for value in values))

    def texts(self) -> list[RolloutText]:
        """Return the texts, and the fields without a known meaning. Records lose their texts."""
        if self.table is None:
            texts = [text_of_row(row) for row in self.rows]
            for row in self.rows:
                forget_texts(row, checked=self.file.format == "columns")
            return texts
        known, taken = self.known, self.known.taken()
        others = self.table.select([n for n in self.table.schema.names if n not in taken])
        values = [self.meant(meaning) for meaning in ("prompt", "completion", "num_tokens")]
        columns = [[None] * len(self) if each is None else each.to_pylist() for each in values]
        extras = others.to_pylist() if others.num_columns else [{}] * len(self)
        return [
            RolloutText(
                _opened_text(prompt, known),
                _opened_text(completion, known),
                extras=_opened(extra),
                num_tokens=count_of(tokens),
                restored=known is GDPO,
            )
            for prompt, completion, tokens, extra in zip(*columns, extras, strict=True)
        ]

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns of a `RolloutTable`, except those for rewards and files."""
        steps = self.steps()
        return {
            "steps": steps,
            **self._groups(steps),
            "total": self.numbers("total"),
            "advantages": self.numbers("advantage"),
            "num_tokens": self.numbers("num_tokens"),
            "cut": self._cut(),
            "trained": self._trained(),
        }

    def steps(self) -> Key:
        """Return the step of each rollout, -1 if invalid."""
        given, of_file = self.meant("step"), np.full(len(self), self.file.number or 0)
        if given is None:
            return of_file
        if self.table is None:
            known = [nan if isinstance(value, bool) else number(value) for value in given]
            missing = np.array([value is None for value in given])
            return np.where(missing, of_file, _whole_steps(np.array(known)))
        steps, of_booleans = self.numbers("step"), pa.types.is_boolean(given.type)
        if pa.types.is_string(given.type):
            truths = pc.is_in(pc.utf8_lower(given), pa.array(list(TRUTHS)))
            of_booleans = truths.to_numpy(zero_copy_only=False)
        return _whole_steps(np.where(of_booleans, nan, steps))

    def keys(self) -> tuple[Key, Key]:
        """Return the keys of the group ids and of the prompts, and report missing ones.

        A table's prompts are left out if there are ids in a known format, which are not checked.
        """
        if self.table is None:
            return keys(self.meant("group")), keys(self.meant("prompt"))
        checked = self.known.group is None or self.file.format == "columns"
        prompts = self._keys_of("prompt") if checked else np.full(len(self), NO_KEY)
        return self._keys_of("group"), prompts

    def _keys_of(self, meaning: str) -> Key:
        column = self.meant(meaning)
        if column is None:
            return np.full(len(self), NO_KEY)
        if pa.types.is_floating(column.type):  # ids, of which some are missing
            column = pc.if_else(column.is_nan(), None, column)
            with suppress(pa.ArrowInvalid):
                column = column.cast(pa.int64())
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            values = {"path": str(getattr(self.known, meaning))}
            self.file.note_where(missing, self.lines, ReadProblem.SOME_WITHOUT, values)
        return group_keys(column)

    def _groups(self, steps: Key) -> dict[str, Key]:
        file, of_rows, (ids, prompts) = self.file, self.table is None, self.keys()
        rollouts, turns = np.full(len(self), NO_KEY), np.zeros(len(self), np.int64)
        if file.turns and (given := self.meant("rollout")) is not None:
            rollouts = keys(given) if of_rows else group_keys(given)
            of_turns = column_of(self.meant("turn")).values if of_rows else self.numbers("turn")
            turns = np.nan_to_num(np.clip(of_turns, -1, 2**53), nan=-1).astype(np.int64)
        how = "" if file.turns else file.report.ids.get(file.run, "")
        if how == BY_PROMPT:
            file.note(None, ReadProblem.ALONE)
            ids = np.full(len(ids), NO_KEY)
        found = grouping(steps, ids, prompts, rollouts, turns, split=how == BY_BOTH)
        if not found.split and np.all(steps == steps[:1]):
            found, file.seen = restarted(found, ids, prompts, file.seen)
        file.split |= found.split
        if found.split:
            file.note(None, ReadProblem.SPLIT, count=max(found.differing, 1))
        if not file.turns:
            return {"groups": found.keys}
        of = np.where(rollouts == NO_KEY, NO_KEY, pair(pair(found.keys, steps), rollouts))
        return {"groups": found.keys, "parts": np.stack([of, turns], axis=-1)}

    def _cut(self) -> Values:
        given = self.meant("finish_reason")
        if given is None:
            return np.full(len(self), nan)
        if isinstance(given, list):
            return np.array([cut_of(reason) for reason in given])
        encoded = given if pa.types.is_dictionary(given.type) else given.dictionary_encode()
        reasons = [cut_of(value) for value in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(reasons)).to_numpy(zero_copy_only=False)
        return np.array([*reasons, nan])[codes]

    def _trained(self) -> Bool[np.ndarray, " rollout"]:
        if self.table is None:
            return np.array([row.trained for row in self.rows], np.bool_)
        given = entered(self.table, "trained")
        if given is None or not pa.types.is_boolean(given.type):
            return np.ones(len(self), np.bool_)
        return given.fill_null(True).to_numpy(zero_copy_only=False)


def _whole_steps(steps: Values) -> Key:
    whole = np.isfinite(steps) & (steps == np.floor(steps)) & (np.abs(steps) < 2**62)
    return np.where(whole, steps, -1).astype(np.int64)


def keys(given: Sequence[int | None]) -> Key:
    """Return keys as an array, with `NO_KEY` for missing ones."""
    return np.array([NO_KEY if key is None else key for key in given], np.int64)


def forget_texts(row: ParsedRollout, *, checked: bool) -> None:
    """Replace the texts of a row with a key for its group, and other values with numbers.

    With `checked`, the key of the prompt is kept next to that of the group.
    """
    row.completion, row.truth, row.extras = None, None, {}
    row.group = None if row.group is None or row.group != row.group else key_of(row.group)
    forgotten = row.prompt is None or (row.group is not None and not checked)
    row.prompt = None if forgotten else key_of(row.prompt)
    row.rollout = None if row.rollout is None else key_of(row.rollout)
    row.step, row.total, row.advantage = plain(row.step), plain(row.total), plain(row.advantage)
    row.num_tokens, row.finish_reason = plain(row.num_tokens), plain(row.finish_reason)


def text_of_row(row: ParsedRollout) -> RolloutText:
    """Return the texts of a parsed record."""
    tokens = count_of(row.num_tokens)
    return RolloutText(row.prompt, row.completion, row.truth, row.extras, tokens, mixed=row.mixed)


def _opened_text(value: Any, known: Layout) -> Any:
    if known is not GDPO or not isinstance(value, list):
        return value
    messages = cast("list[Any]", value)
    return opened(messages) if all(isinstance(each, Mapping) for each in messages) else messages


def _opened(extras: dict[str, Any]) -> dict[str, Any]:
    extra = extras.get("extra")
    inner = from_json(extra) if isinstance(extra, str) else None
    return extras | inner if isinstance(inner, dict) else extras


def count_of(tokens: Any) -> int | None:
    """Return a number of tokens, or None if the value is not finite."""
    count = number(tokens)
    return int(count) if isfinite(count) else None


def cut_of(reason: Any) -> float:
    """Return 1 if the completion was truncated, 0 if the model ended it, NaN if unknown."""
    if isinstance(reason, bool):
        return float(reason)
    text = reason.lower() if isinstance(reason, str) else ""
    return 1.0 if text in _CUT else 0.0 if text in _ENDED else nan


def entered(batch: Any, path: str) -> Any:
    """Return the column with this name or at this dotted path, or None."""
    if path in batch.schema.names:
        return batch.column(path)
    name, dot, rest = path.partition(".")
    if not dot or name not in batch.schema.names:
        return None
    return inside(batch.column(name), rest, names_in(batch))


def names_in(batch: Any) -> Any:
    """Return the column with the lists of reward names, or None."""
    found = next((name for name in NAME_LISTS if name in batch.schema.names), None)
    return None if found is None else batch.column(found)


def spread_column(column: Any, names: Any) -> dict[str, list[Any]]:
    """Return the rewards in lists, pairs or JSON texts by name, or {}."""
    if pa.types.is_struct(column.type) or is_numeric(column.type):
        return {}
    given = [None] * len(column) if names is None else names.to_pylist()
    pairs = zip(column.to_pylist(), given, strict=True)
    rows = [({} if value is None else spread(value, name)) or {} for value, name in pairs]
    found = {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain(*rows))}
    for key, values in found.items():
        inner = (cast("Any", v).get("value") if isinstance(v, Mapping) else v for v in values)
        found[key] = list(inner)
    return {key: each for key, each in found.items() if any(map(isfinite, map(number, each)))}


def _added_up(column: Any) -> Any:
    """Return the sums of a column of lists or their JSON texts, and any other column unchanged."""
    is_text = kind_of_type(column.type) == "text"
    if is_text:
        column = column.cast(pa.string())
        if not pc.any(pc.starts_with(column, "[")).as_py():
            return column
    elif kind_of_type(column.type) != "other":
        return column
    values = column.to_pylist()
    opened = [from_json(each or "") for each in values] if is_text else values
    sums = [
        sum(number(v) for v in each if v is not None) if isinstance(each, list) else number(each)
        for each in opened
    ]
    return pa.array(sums, from_pandas=True)


def inside(column: Any, path: str, names: Any = None) -> Any:
    """Return the field of a struct at this name or dotted path, or None if there is none.

    The column may also contain rewards in another form (see `spread_column`); `names` is then the
    column with the names of the rewards in a list.
    """
    if not pa.types.is_struct(column.type):
        values = spread_column(column, names).get(path)
        return None if values is None else pa.array([number(v) for v in values], from_pandas=True)
    rest, dot = path, "."
    while dot:
        names = [f.name for f in column.type] if pa.types.is_struct(column.type) else []
        if rest in names:
            name, dot, rest = rest, "", ""
        else:
            name, dot, rest = rest.partition(".")
        if name not in names:
            return None
        column = column.flatten()[names.index(name)]
    return column


def numeric(batch: Any) -> Any:
    """Return the schema of a CSV batch, with a numeric type for columns with mostly numbers."""

    def kind(column: Any) -> Any:
        if column.null_count == len(column):
            return pa.null()
        return pa.float64() if holds_numbers(column_in(column)) else column.type

    kinds = [kind(column[:_LOOKED_AT]) for column in batch.columns]
    fields = zip(batch.schema.names, kinds, strict=True)
    return pa.schema([pa.field(*each) for each in fields])


def holds_numbers(column: Column) -> bool:
    """Return whether most of the texts in a column are numbers."""
    return int(np.sum(~np.isnan(column.values))) > int(np.sum(column.wrong))


def is_numeric(kind: Any) -> bool:
    """Return whether columns of this Arrow type contain numbers or booleans."""
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)


def kind_of_type(kind: Any) -> Kind:
    """Return the kind of the values in columns of an Arrow type."""
    if is_numeric(kind):
        return "number"
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_struct(kind):
        return "object"
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
    return "text" if any(is_text(kind) for is_text in texts) else "other"


def paths_in(schema: Any, above: str = "") -> dict[str, Kind]:
    """Return the kind of each column of a schema by path, also inside structs."""
    found: dict[str, Kind] = {}
    for column in schema:
        path = Inner(above + column.name) if above else column.name
        if pa.types.is_struct(column.type):
            found |= paths_in(column.type, f"{path}.")
        else:
            found[path] = kind_of_type(column.type)
    return found
