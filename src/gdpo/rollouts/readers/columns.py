"""Converts rollouts, from records or from rows of a table, into columns of numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite, nan
from typing import Any, TypeAlias

import numpy as np

from gdpo._files import from_json
from gdpo._shapes import Int
from gdpo.rollouts.arrow import pa, pc
from gdpo.rollouts.readers.keys import Key, group_keys, key_of
from gdpo.rollouts.readers.names import NAME_LISTS, Inner, Kind, Layout, spread, weight_places
from gdpo.rollouts.readers.propose import Given
from gdpo.rollouts.readers.records import (
    LONGEST,
    ONE_TURN,
    TRUTHS,
    DoubtfulText,
    ParsedRollout,
    RowTurns,
    is_number,
    number,
    numbers_by_path,
    plain,
)
from gdpo.rollouts.readers.report import FileReport, ReadProblem
from gdpo.rollouts.record import opened
from gdpo.rollouts.table import NO_KEY, ByReward, Flags, TableTurns, Values, fits, padded

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
Lines: TypeAlias = Int[np.ndarray, " rollout"]
"""Line number of each rollout, or row number from 0 if the file has no lines."""


@dataclass(frozen=True, slots=True)
class Column:
    """Stores the values of one field for some rollouts."""

    values: Values
    """The values as numbers. NaN if a value is missing or is not a number."""
    missing: Flags
    wrong: Flags
    """True where the value is not a number."""
    texts: Flags
    """True where a record contains a number as text."""

    def take(self, rows: Rows) -> "Column":
        """Return the column for some of the rollouts."""
        return Column(self.values[rows], self.missing[rows], self.wrong[rows], self.texts[rows])

    def usable(self, what: str, lines: Lines, file: FileReport) -> Values:
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


def absent(size: int) -> Column:
    """Return the column of a field that a file does not have."""
    none = np.zeros(size, np.bool_)
    return Column(np.full(size, nan), ~none, none, none)


def column_in(column: Any) -> Column:
    """Return an Arrow array as a column. Strings such as `n/a` count as missing values."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    none = np.zeros(len(column), np.bool_)
    missing = np.asarray(column.is_null())
    numbers = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    try:
        values = np.asarray(numbers.cast(pa.float64()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = column.to_pylist()
        values = np.array(list(map(number, texts)))
        words = map(str, texts)
        missing |= np.array([len(w) <= LONGEST and w.strip().lower() in _MISSING for w in words])
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
class FlatTurns:
    """Stores the turns of some rollouts one after another."""

    counts: Int[np.ndarray, " rollout"]
    columns: Sequence[Column]
    """The rewards, the advantages and the numbers of tokens, with one value per turn."""
    single: Flags | None = None
    """True for rollouts of one turn, which has the rewards and the tokens of the rollout. None: the
    turns have their own, and add up to those of the rollout."""

    def take(self, rows: Rows) -> "FlatTurns":
        """Return the turns of some of the rollouts."""
        if isinstance(rows, slice):
            return self
        counts = self.counts[rows]
        starts = (np.cumsum(self.counts) - self.counts)[rows]
        flat = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        columns = [column.take(flat) for column in self.columns]
        return FlatTurns(counts, columns, None if self.single is None else self.single[rows])


@dataclass(frozen=True, slots=True)
class Columns:
    """Stores consecutive rollouts of a file as columns, whatever they were read from."""

    lines: Lines
    rewards: Mapping[str, Column]
    there: Mapping[str, Flags]
    """Whether a rollout has the field of the reward, even if the field is empty."""
    weights: Mapping[str, Values | None]
    """Weights of the rewards, NaN where unknown."""
    steps: Key
    """Step of each rollout, -1 if invalid."""
    ids: Key
    prompts: Key
    grouped: Flags
    """Whether a rollout has a group id."""
    prompted: Flags
    rollouts: Key
    turn: Values
    total: Column
    advantage: Column
    num_tokens: Column
    cut: Values
    trained: Flags
    turns: FlatTurns | None


@dataclass(frozen=True, slots=True)
class Part:
    """Holds consecutive rollouts of a file, to be read as columns or as texts."""

    lines: Lines
    columns: Callable[[], Columns]
    texts: Callable[[Sequence[int]], list[RolloutText]]
    """Function that returns the texts of some rollouts, and their fields without a known meaning.
    Records forget them."""


def of_records(
    rows: Sequence[ParsedRollout],
    lines: Lines,
    given: Given,
    file: FileReport,
) -> Columns:
    """Return parsed records as columns."""

    def numbers(path: str) -> Column:
        values = (r.rewards.get(path, r.total if path == scalar else None) for r in rows)
        return column_of(list(values))

    names, total, scalar = given.names, given.known.total, given.scalar
    turned = given.known.of_turns
    ids, prompts = _keys([r.group for r in rows]), _keys([r.prompt for r in rows])
    steps = [nan if isinstance(r.step, bool) else number(r.step) for r in rows]
    no_step = np.array([r.step is None for r in rows])
    return Columns(
        lines,
        rewards={name: numbers(path) for name, path in names.items()},
        there={
            name: np.array([path in r.rewards or path == scalar for r in rows])
            for name, path in names.items()
        },
        weights=_weights_of(rows, names),
        steps=np.where(no_step, file.number or 0, _whole_steps(np.array(steps))),
        ids=ids,
        prompts=prompts,
        grouped=ids != NO_KEY,
        prompted=prompts != NO_KEY,
        rollouts=_keys([r.rollout for r in rows]) if turned else np.full(len(rows), NO_KEY),
        turn=column_of([r.turn for r in rows]).values if turned else np.zeros(len(rows)),
        total=numbers(total or ""),
        advantage=column_of([r.advantage for r in rows]),
        num_tokens=column_of([r.num_tokens for r in rows]),
        cut=np.array([cut_of(r.finish_reason) for r in rows]),
        trained=np.array([r.trained for r in rows], np.bool_),
        turns=_turns_of([r.turns for r in rows], names.values()),
    )


def of_table(table: Any, lines: Lines, given: Given, file: FileReport) -> Columns:
    """Return the rows of an Arrow table as columns. Ids or prompts that are missing are reported.

    The prompts are left out if there are ids in a known format, which are not checked.
    """
    known, none, no_key = given.known, absent(len(table)), np.full(len(table), NO_KEY)
    paths = known.places()
    found = {meaning: entered(table, path) for meaning, path in paths.items()}
    rewards = {name: entered(table, path) for name, path in given.names.items()}

    def meant(meaning: str) -> Column:
        column = found.get(meaning)
        return none if column is None else column_in(column)

    def keys(meaning: str) -> Key:
        column = found.get(meaning)
        return no_key if column is None else _reported_keys(column, paths[meaning], lines, file)

    trained, given_trained = np.ones(len(table), np.bool_), entered(table, "trained")
    if given_trained is not None and pa.types.is_boolean(given_trained.type):
        trained = np.asarray(given_trained.fill_null(True))
    weights = dict[str, Values | None]()
    for name, path in given.names.items():
        columns = (entered(table, place) for place in weight_places(name, path))
        column = next((c for c in columns if c is not None and is_numeric(c.type)), None)
        weights[name] = None if column is None else column_in(column).values
    checked = known.group is None or file.format == "columns"
    turn = meant("turn") if found.get("rollout") is not None else none
    return Columns(
        lines,
        rewards={
            name: none if column is None else column_in(_added_up(column))
            for name, column in rewards.items()
        },
        there={name: np.full(len(table), column is not None) for name, column in rewards.items()},
        weights=weights,
        steps=_steps_in(found.get("step"), lines, file),
        prompts=keys("prompt") if checked else no_key,
        ids=keys("group"),
        grouped=np.full(len(table), found.get("group") is not None),
        prompted=np.full(len(table), known.prompt is not None),
        rollouts=no_key if turn is none else group_keys(found["rollout"]),
        turn=turn.usable("turn", lines, file),
        total=meant("total"),
        advantage=meant("advantage"),
        num_tokens=meant("num_tokens"),
        cut=none.values if found.get("finish_reason") is None else _cut_in(found["finish_reason"]),
        trained=trained,
        turns=_turns_in(table, given, lines, file) if file.format == "gdpo" else None,
    )


def _steps_in(given: Any, lines: Lines, file: FileReport) -> Key:
    """Return the steps in an Arrow array, -1 where invalid. Booleans are no steps."""
    if given is None:
        return np.full(len(lines), file.number or 0)
    steps = column_in(given).usable("step", lines, file)
    of_booleans: Any = pa.types.is_boolean(given.type)
    if pa.types.is_string(given.type):
        truths = pc.is_in(pc.utf8_lower(given), pa.array(list(TRUTHS)))
        of_booleans = np.asarray(truths)
    return _whole_steps(np.where(of_booleans, nan, steps))


def _reported_keys(column: Any, path: str, lines: Lines, file: FileReport) -> Key:
    if pa.types.is_floating(column.type):  # ids, of which some are missing
        column = pc.if_else(column.is_nan(), None, column)
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    if column.null_count:
        missing = np.asarray(column.is_null())
        file.note_where(missing, lines, ReadProblem.SOME_WITHOUT, {"path": path})
    return group_keys(column)


def _cut_in(given: Any) -> Values:
    encoded = given if pa.types.is_dictionary(given.type) else given.dictionary_encode()
    reasons = [cut_of(value) for value in encoded.dictionary.to_pylist()]
    codes = np.asarray(encoded.indices.fill_null(len(reasons)))
    return np.array([*reasons, nan])[codes]


def _weights_of(
    rows: Sequence[ParsedRollout], names: Mapping[str, str]
) -> dict[str, Values | None]:
    """Return the weights of rows: their own, those in an object `weights`, or beside a value."""
    own, paths = any(row.weights for row in rows), paths_of(rows)
    found = dict[str, Values | None]()
    for name, path in names.items():
        places = [place for place in weight_places(name, path) if place in paths]
        given = [_weight_of(row, name, places) for row in rows] if own or places else []
        known = any(each is not None for each in given)
        found[name] = np.array(given, np.float64) if known else None
    return found


def _weight_of(row: ParsedRollout, name: str, places: Sequence[str]) -> float | None:
    if row.weights:
        return row.weights.get(name)
    value = next((row.rewards[place] for place in places if place in row.rewards), None)
    return number(value) if is_number(value) else None


def paths_of(rows: Sequence[ParsedRollout]) -> set[str]:
    """Return the paths of all numbers in some records."""
    return set[str]().union(*(row.rewards for row in rows))


def _turns_in(table: Any, given: Given, lines: Lines, file: FileReport) -> FlatTurns | None:
    """Return the turns in the column of gdpo's own files, or None if it has none."""
    column = entered(table, "turns")
    if column is None:
        return None
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list and pa.types.is_struct(kind.value_type)):
        file.note(int(lines[0]), ReadProblem.NO_TURNS)
        return None
    lengths = column.value_lengths().fill_null(0)
    flat = column.flatten()

    def numbers(path: str) -> Column:
        found = inside(flat, path)
        return absent(len(flat)) if found is None else column_in(found)

    counts = np.asarray(lengths).astype(np.int64)
    return FlatTurns(counts, list(map(numbers, (*given.names.values(), "advantage", "num_tokens"))))


def _turns_of(turns: Sequence[RowTurns], paths: Iterable[str]) -> FlatTurns | None:
    """Return the turns of records, or None if there are none.

    A turn without a reward that another turn of the rollout has earned 0 of it.
    """
    counts = np.array([each.count for each in turns], np.int64)
    if not counts.any():
        return None
    single = np.array([each is ONE_TURN for each in turns])
    starts, size = np.cumsum(counts) - counts, int(counts.sum())
    none = np.zeros(size, np.bool_)
    columns = list[Column]()
    for path in paths:
        earned = [each.rewards.get(path, {}) for each in turns]
        given = np.repeat(np.array(list(map(bool, earned)), np.bool_), counts)
        values = np.where(given, 0.0, nan)
        for start, by_turn in zip(starts.tolist(), earned, strict=True):
            for turn, value in by_turn.items():
                values[start + turn] = value
        columns.append(Column(values, ~given, none, none))
    tokens = np.full(size, nan)
    several = np.repeat(~single, counts)
    tokens[several] = [count for each in turns for count in each.num_tokens]
    columns += [absent(size), Column(tokens, np.isnan(tokens), none, none)]
    return FlatTurns(counts, columns, single)


def turns_of(
    turns: FlatTurns,
    names: Sequence[str],
    lines: Lines,
    rewards: ByReward,
    num_tokens: Values,
    file: FileReport,
) -> TableTurns | None:
    """Return the turns of some rollouts, or None if they have none.

    `names` are those of the rewards, and `lines`, `rewards` and `num_tokens` those of the rollouts.
    """
    counts, single = turns.counts, turns.single
    if not counts.any():
        return None
    if not fits(len(counts), int(counts.max()), len(names)):
        file.note(int(lines[np.argmax(counts)]), ReadProblem.MANY_TURNS)
        return None
    places = np.repeat(lines, counts)
    known = (*(f"reward {name!r}" for name in names), "the advantage", "num_tokens")
    columns = [
        each.usable(f"{what} of a turn", places, file)
        for what, each in zip(known, turns.columns, strict=True)
    ]
    if single is None:
        found = padded(counts, columns)
        _report_apart(found, names, lines, rewards, file)
        return found
    first = (np.cumsum(counts) - counts)[single]
    *earned, _, tokens = columns
    for values, whole in zip((*earned, tokens), (*rewards.T, num_tokens), strict=True):
        values[first] = whole[single]
    return padded(counts, columns)


def _report_apart(
    turns: TableTurns,
    names: Sequence[str],
    lines: Lines,
    rewards: ByReward,
    file: FileReport,
) -> None:
    """Report rewards of turns that do not add up to the reward of the rollout."""
    earned = np.where(turns.taken[..., None], turns.rewards, 0.0)
    apart = np.abs(earned.sum(axis=1) - rewards)
    # NaN is not larger than anything. Records may be in single precision.
    wrong = apart > 1e-4 * (np.abs(earned).sum(axis=1) + np.abs(rewards))
    wrong &= turns.counts[:, None] > 0
    for name, odd in zip(names, wrong.T, strict=True):
        file.note_where(odd, lines, ReadProblem.TURNS_APART, {"name": name})


def texts_in(
    table: Any, known: Layout, rows: Sequence[int], *, restored: bool
) -> list[RolloutText]:
    """Return the texts in some rows of a table, and the fields without a known meaning."""
    taken = known.places().values()
    paths, some = (known.prompt, known.completion, known.num_tokens), pa.array(rows)
    values = [None if path is None else entered(table, path) for path in paths]
    columns = [
        [None] * len(rows) if each is None else each.take(some).to_pylist() for each in values
    ]
    others = table.select([n for n in table.schema.names if n not in taken])
    extras = others.take(some).to_pylist() if others.num_columns else [{}] * len(rows)
    return [
        RolloutText(
            _restored(prompt) if restored else prompt,
            _restored(completion) if restored else completion,
            extras=_opened(extra),
            num_tokens=None if tokens is None else count_of(tokens),
            restored=restored,
        )
        for prompt, completion, tokens, extra in zip(*columns, extras, strict=True)
    ]


def texts_of(
    records: Sequence[ParsedRollout], rows: Sequence[int], *, checked: bool
) -> list[RolloutText]:
    """Return the texts of some parsed records, which are then forgotten."""
    texts = list[RolloutText]()
    for row in (records[place] for place in rows):
        text = RolloutText(
            row.prompt,
            row.completion,
            row.truth,
            row.extras,
            count_of(row.num_tokens),
            mixed=row.mixed,
        )
        texts.append(text)
        forget_texts(row, checked=checked)
    return texts


def _whole_steps(steps: Values) -> Key:
    whole = np.isfinite(steps) & (steps == np.floor(steps)) & (np.abs(steps) < 2**62)
    return np.where(whole, steps, -1).astype(np.int64)


def _keys(given: Sequence[int | None]) -> Key:
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


def _restored(value: Any) -> Any:
    is_messages = isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
    return opened(value) if is_messages else value


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
    """Return the column with this name or at this dotted path, or None if there is not one."""
    place = batch.schema.get_field_index(path)
    if place >= 0:
        return batch.column(place)
    name, dot, rest = path.partition(".")
    place = batch.schema.get_field_index(name)
    return inside(batch.column(place), rest, names_in(batch)) if dot and place >= 0 else None


def names_in(batch: Any) -> Any:
    """Return the column with the lists of reward names, or None."""
    found = next((name for name in NAME_LISTS if name in batch.schema.names), None)
    return None if found is None else batch.column(found)


def spread_column(column: Any, names: Any) -> dict[str, list[Any]]:
    """Return the rewards in lists, pairs or JSON texts by name, or {}.

    An object such as `{"value": 0.5, "weight": 2}` is entered, as in a record.
    """
    if pa.types.is_struct(column.type) or is_numeric(column.type):
        return {}
    given = [None] * len(column) if names is None else names.to_pylist()
    pairs = zip(column.to_pylist(), given, strict=True)
    rows = [spread(value, name) or {} for value, name in pairs]
    if any(isinstance(value, Mapping) for row in rows for value in row.values()):
        rows = list(map(numbers_by_path, rows))
    found = {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain(*rows))}
    return {key: each for key, each in found.items() if any(map(isfinite, map(number, each)))}


def _added_up(column: Any) -> Any:
    """Return the sums of a column of lists or their JSON texts, and any other column unchanged."""
    kind = kind_of_type(column.type)
    if kind == "text":
        column = column.cast(pa.string())
        if not pc.any(pc.starts_with(column, "[")).as_py():
            return column
    elif kind != "other":
        return column
    values = column.to_pylist()
    opened = [from_json(each or "") for each in values] if kind == "text" else values
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
    return pa.schema(zip(batch.schema.names, kinds, strict=True))


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
