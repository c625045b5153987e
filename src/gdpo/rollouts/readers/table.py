"""Stores the rollouts of a step as columns of numbers, in the same form for every framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo.errors import DataError
from gdpo.rewards.gates import Range
from gdpo.rollouts.arrow import pa
from gdpo.rollouts.readers.columns import Column, RolloutBatch, Rows, column_in, entered, inside
from gdpo.rollouts.readers.keys import NO_KEY, Values
from gdpo.rollouts.readers.records import ONE_TURN, ParsedRollout, RowTurns
from gdpo.rollouts.readers.report import BY_IDS, FileReport, ReadProblem
from gdpo.rollouts.record import RewardArrays, common_weights

RECORDED, FOUND = "recorded", "found in the total"
"""How the weights of the rewards were obtained."""
MOST = 2**26
"""Maximum number of values in the arrays for the turns of a step. Each value takes 8 bytes."""
_NO_TURNS = RowTurns(0, {}, ())
_Lines = Int[np.ndarray, " rollout"]
Whole: TypeAlias = tuple[Float[np.ndarray, "rollout reward"], Values]


@dataclass(frozen=True, slots=True)
class TableTurns:
    """Stores the turns of a table's rollouts, padded to the largest number of turns."""

    counts: Int[np.ndarray, " rollout"]
    """Number of turns of each rollout. 0: the rollout has no turns, or they are unknown."""
    rewards: Float[np.ndarray, "rollout turn reward"]
    """Raw rewards of the turns. NaN beyond the last turn, and as in `RolloutTable.rewards`."""
    advantages: Float[np.ndarray, "rollout turn"]
    """Recorded advantages. NaN beyond the last turn, or if unknown."""
    num_tokens: Float[np.ndarray, "rollout turn"]
    """Number of tokens that the model generated. NaN as in `advantages`."""

    def take(self, rows: Int[np.ndarray, " some"] | slice) -> "TableTurns":
        """Return the turns of some of the rollouts."""
        counts = self.counts[rows]
        longest = int(counts.max(initial=0))
        columns = (self.rewards, self.advantages, self.num_tokens)
        return TableTurns(counts, *(values[rows, :longest] for values in columns))


@dataclass(frozen=True, slots=True)
class TurnArrays:
    """Stores the turns of one step by group, as the estimators for turns expect them."""

    rewards: Float[np.ndarray, "prompt sample turn reward"]
    """Raw rewards. NaN means that the reward does not apply, or that the entry is padding."""
    turns: Int[np.ndarray, "prompt sample"]
    """Number of turns of each rollout. 0: padding, or a rollout whose turns are unknown."""
    advantages: Float[np.ndarray, "prompt sample turn"]
    """Recorded advantages. NaN if unknown, and 0 beyond the last turn."""


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Stores the rollouts of one step of a run without texts, in file order."""

    run: str
    """Folder of the run, relative to the path that was read."""
    format: str
    names: tuple[str, ...]
    """Names of the rewards, in the order of the columns of `rewards`."""
    weights: Float[np.ndarray, "rollout reward"] | None
    """Weights in the files, or None. NaN where the reward does not apply to the rollout."""
    files: tuple[Path, ...]
    steps: Int[np.ndarray, " rollout"]
    groups: Int[np.ndarray, " rollout"]
    """Key of the group. All samples of a group have the same key."""
    rewards: Float[np.ndarray, "rollout reward"]
    """Raw rewards. NaN if a reward does not apply, or is not a finite number."""
    total: Float[np.ndarray, " rollout"]
    """Scalar reward in the files, or NaN if unknown."""
    advantages: Float[np.ndarray, " rollout"]
    """Recorded advantages, or NaN if unknown. If there is one per token, the last is used."""
    num_tokens: Float[np.ndarray, " rollout"]
    """Number of tokens in the completion, or NaN if unknown."""
    cut: Float[np.ndarray, " rollout"]
    """1 if the completion was truncated, 0 if the model ended it, and NaN if unknown."""
    trained: Bool[np.ndarray, " rollout"]
    """False if the rollout was generated and scored, but left out of the training batch."""
    file: Int[np.ndarray, " rollout"]
    """Index into `files`."""
    row: Int[np.ndarray, " rollout"]
    """Index of the rollout within its file, counted from 0, as `read_texts` expects."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Ranges that the files declare, by reward name."""
    grouped_by: str = BY_IDS
    """How the rollouts are grouped: by `group id`, by `equal prompts`, or by `nothing`."""
    parts: Int[np.ndarray, "rollout 2"] | None = None
    """Key of the rollout and number of the turn of each row, if the rows may be turns. The key is
    `NO_KEY` if a row is a rollout."""
    weights_from: str = RECORDED
    turns: TableTurns | None = None
    """The turns, or None if the files have no rewards for each turn. `rewards` are then totals: the
    sums in gdpo's record, the means of the metrics of the turns in tinker's files."""

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Int[np.ndarray, " some"]) -> "RolloutTable":
        """Return a table of some of the rollouts."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        weights = None if self.weights is None else self.weights[rows]
        turns = None if self.turns is None else self.turns.take(rows)
        parts = None if self.parts is None else self.parts[rows]
        return replace(self, weights=weights, turns=turns, parts=parts, **columns)

    def grouped(self) -> RewardArrays:
        """Return rewards and advantages by group. Smaller groups are padded with NaN.

        Raises:
            DataError: If most of a large array would be padding.
        """
        prompt, sample, shape = self._places(len(self.names))
        rewards = np.full((*shape, len(self.names)), np.nan)
        rewards[prompt, sample] = self.rewards
        advantages = np.zeros(shape)
        advantages[prompt, sample] = np.nan_to_num(self.advantages)
        if self.weights is None:
            return RewardArrays(self.names, (1.0,) * len(self.names), rewards, advantages)
        weights = np.full((shape[0], len(self.names)), np.nan)
        for k, column in enumerate(self.weights.T):
            known = np.flatnonzero(~np.isnan(column))[::-1]  # the first of a group is written last
            weights[prompt[known], k] = column[known]
        return RewardArrays(self.names, common_weights(weights), rewards, advantages)

    def grouped_turns(self) -> TurnArrays | None:
        """Return the turns by group, in the same places as in `grouped`, or None without turns.

        Raises the error of `grouped`.
        """
        if self.turns is None:
            return None
        longest = self.turns.rewards.shape[1]
        prompt, sample, shape = self._places(longest * len(self.names))
        rewards = np.full((*shape, longest, len(self.names)), np.nan)
        rewards[prompt, sample] = self.turns.rewards
        counts = np.zeros(shape, np.int64)
        counts[prompt, sample] = self.turns.counts
        advantages = np.zeros((*shape, longest))
        taken = np.arange(longest) < self.turns.counts[:, None]
        advantages[prompt, sample] = np.where(taken, self.turns.advantages, 0.0)
        return TurnArrays(rewards, counts, advantages)

    def _places(
        self, values: int
    ) -> tuple[Int[np.ndarray, " rollout"], Int[np.ndarray, " rollout"], tuple[int, int]]:
        prompt, sample = places(self.groups)
        shape = (int(prompt.max()) + 1, int(sample.max()) + 1)
        cells = shape[0] * shape[1]
        if cells > 2 * len(self) and cells * values > _PADDED:
            raise DataError(
                f"step {self.steps[0]}: the {shape[0]:,} groups have {len(self) / shape[0]:.1f} "
                f"rollouts on average, but one has {shape[1]:,}. Check the group ids or prompts, "
                "or pass the number of rollouts per prompt (--columns group_size=NUMBER)"
            )
        return prompt, sample, shape


_PADDED = 5_000_000
"""Maximum number of values in an array of which more than half is padding."""

COLUMNS = (
    *("steps", "groups", "rewards", "total", "advantages", "num_tokens", "cut", "trained"),
    *("file", "row"),
)
"""Fields of a `RolloutTable` that have one value per rollout."""


def joined(tables: Sequence[RolloutTable]) -> RolloutTable:
    """Join several tables of one step. Where a table lacks a reward, the reward is NaN.

    If another table has turns, the rollouts of a table without turns have 0 turns: unknown.
    """
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    names = tuple(dict.fromkeys(name for table in tables for name in table.names))
    files = tuple(dict.fromkeys(path for table in tables for path in table.files))
    columns = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in COLUMNS
        if name not in ("rewards", "file")
    }
    columns["rewards"] = np.concatenate([_in_order(t.rewards, t.names, names) for t in tables])
    columns["file"] = np.concatenate(
        [np.array([files.index(path) for path in t.files])[t.file] for t in tables]
    )
    parts = [table.parts for table in tables if table.parts is not None]
    weights = [_in_order(t.weights, t.names, names) for t in tables if t.weights is not None]
    ranges = {(name, known) for table in tables for name, known in table.ranges.items()}
    declared = [name for name, _ in ranges]
    return replace(
        first,
        names=names,
        weights=np.concatenate(weights) if len(weights) == len(tables) else None,
        files=files,
        **columns,
        # A range that differs between tables is unknown.
        ranges={name: known for name, known in ranges if declared.count(name) == 1},
        parts=np.concatenate(parts) if len(parts) == len(tables) else None,
        turns=_joined_turns(tables, names),
    )


def _joined_turns(tables: Sequence[RolloutTable], names: Sequence[str]) -> TableTurns | None:
    parts = [table.turns for table in tables]
    longest = max((each.rewards.shape[1] for each in parts if each is not None), default=None)
    if longest is None:
        return None
    size = sum(map(len, tables))
    counts, rewards = np.zeros(size, np.int64), np.full((size, longest, len(names)), np.nan)
    advantages, num_tokens = np.full((2, size, longest), np.nan)
    start = 0
    for table, part in zip(tables, parts, strict=True):
        if part is not None:
            rows, width = slice(start, start + len(table)), part.rewards.shape[1]
            order = [names.index(name) for name in table.names]
            counts[rows] = part.counts
            rewards[rows, :width, order] = part.rewards
            advantages[rows, :width], num_tokens[rows, :width] = part.advantages, part.num_tokens
        start += len(table)
    return TableTurns(counts, rewards, advantages, num_tokens)


def places(
    groups: Int[np.ndarray, " rollout"],
) -> tuple[Int[np.ndarray, " rollout"], Int[np.ndarray, " rollout"]]:
    """Return each rollout's group and its index within the group."""
    _, prompt, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(prompt, kind="stable")
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    sample = np.empty_like(prompt)
    sample[order] = np.arange(len(groups)) - starts
    return prompt, sample


def _in_order(
    values: Float[np.ndarray, "rollout some"], of: Sequence[str], names: Sequence[str]
) -> Float[np.ndarray, "rollout reward"]:
    columns = np.full((len(values), len(names)), np.nan)
    columns[:, [names.index(name) for name in of]] = values
    return columns


def turns_of(
    batch: RolloutBatch, rewards: Mapping[str, str], *, rows: Rows, whole: Whole, file: FileReport
) -> TableTurns | None:
    """Return the turns of some rollouts, or None. `rewards` are the paths by name."""
    lines = batch.lines[rows]
    if batch.table is not None:
        column = entered(batch.table, "turns") if file.format == "gdpo" else None
        if column is None:
            return None
        column = column if isinstance(rows, slice) else column.take(pa.array(rows))
        return _of_table(column, rewards, lines, whole[0], file)
    part = batch.part(rows)
    turns = [row.turns for row in part]
    if turns.count(None) == len(turns):
        return None
    if turns.count(ONE_TURN) == len(turns):
        ones, unknown = np.ones(len(part), np.int64), np.full((len(part), 1), np.nan)
        return TableTurns(ones, whole[0][:, None], unknown, whole[1][:, None])
    return _of_rows(part, tuple(rewards), lines, whole, file)


def whole_rollouts(table: RolloutTable) -> RolloutTable:
    """Return a table with one row per rollout, if several rows with one rollout id are its turns.

    A reward that all turns of each rollout repeat belongs to the rollout; the values of any other
    reward are added, and kept for each turn.
    """
    if table.parts is None:
        return table
    order = np.lexsort(table.parts.T[::-1])
    keys, turn = table.parts[order].T
    starts = (keys != np.append(keys[:1] + 1, keys[:-1])) | (keys == NO_KEY)
    if starts.all() or np.any(~starts & (turn == np.append(turn[:1], turn[:-1]))):
        return table
    counts = np.diff(np.append(np.flatnonzero(starts), len(order)))
    first, last = np.flatnonzero(starts), np.cumsum(counts) - 1
    kept = np.sort(order[last])
    back = np.argsort(order[last])
    rewards = table.rewards[order]
    low, high = (f.reduceat(rewards, first) for f in (np.fmin, np.fmax))
    repeated = np.all((low == high) | np.isnan(low), axis=0)
    sums = np.add.reduceat(np.nan_to_num(rewards), first)
    whole = np.where(repeated, rewards[last], np.where(np.isnan(low), np.nan, sums))
    tokens = np.add.reduceat(table.num_tokens[order], first)
    turns = None
    if not repeated.all() and fits(len(first), int(counts.max()), len(table.names)):
        by_turn = np.where(repeated, 0.0, rewards)
        by_turn[last] = rewards[last]
        columns = [by_turn[:, k] for k in range(len(table.names))]
        given = (table.advantages[order], table.num_tokens[order])
        turns = _padded(counts, columns, *given).take(back)
    found = replace(table.take(kept), parts=None, rewards=whole[back], num_tokens=tokens[back])
    return replace(found, groups=table.groups[order[first]][back], turns=turns)


def fits(rollouts: int, turns: int, rewards: int) -> bool:
    """Return whether arrays of this size fit into memory."""
    return rollouts * turns * (rewards + 2) <= MOST


def _of_rows(
    rows: Sequence[ParsedRollout],
    names: Sequence[str],
    lines: _Lines,
    whole: Whole,
    file: FileReport,
) -> TableTurns | None:
    """Return the turns of records. A turn without a reward that another turn has earned 0 of it."""
    turns = [row.turns or _NO_TURNS for row in rows]
    counts = np.array([each.count for each in turns], np.int64)
    if not _few(counts, names, lines, file):
        return None
    starts, places = np.cumsum(counts) - counts, np.repeat(lines, counts)
    single = np.array([each is ONE_TURN for each in turns])
    none = np.zeros(len(places), np.bool_)
    columns: list[Values] = []
    for k, name in enumerate(names):
        earned = [each.rewards.get(name) or {} for each in turns]
        given = np.repeat(np.array(list(map(bool, earned)), np.bool_), counts)
        values = np.where(given, 0.0, np.nan)
        for start, by_turn in zip(starts.tolist(), earned, strict=True):
            for turn, value in by_turn.items():
                values[start + turn] = value
        column, what = Column(values, ~given, none, none), f"reward {name!r} of a turn"
        values = column.usable(what, places, file)
        values[starts[single]] = whole[0][single, k]
        columns.append(values)
    tokens = np.full(len(places), np.nan)
    tokens[np.repeat(~single, counts)] = [count for each in turns for count in each.num_tokens]
    tokens[starts[single]] = whole[1][single]
    return _padded(counts, columns, np.full(len(places), np.nan), tokens)


def _of_table(
    column: Any, rewards: Mapping[str, str], lines: _Lines, totals: Values, file: FileReport
) -> TableTurns | None:
    """Return the turns in a column, and report rewards that do not add up to the totals."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list and pa.types.is_struct(kind.value_type)):
        file.note(int(lines[0]), ReadProblem.NO_TURNS)
        return None
    lengths = column.value_lengths().fill_null(0)
    counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if not counts.any() or not _few(counts, tuple(rewards), lines, file):
        return None
    flat, places = column.flatten(), np.repeat(lines, counts)

    def numbers(path: str, what: str) -> Values:
        found = inside(flat, path)
        none = np.full(len(places), np.nan)
        return none if found is None else column_in(found).usable(what, places, file)

    columns = [numbers(path, f"reward {name!r} of a turn") for name, path in rewards.items()]
    advantages = numbers("advantage", "the advantage of a turn")
    turns = _padded(counts, columns, advantages, numbers("num_tokens", "num_tokens of a turn"))
    known = np.arange(turns.rewards.shape[1]) < counts[:, None]
    earned = np.where(known[..., None], turns.rewards, 0.0)
    apart = np.abs(earned.sum(axis=1) - totals)
    # NaN is not larger than anything. Records may be in single precision.
    wrong = apart > 1e-4 * (np.abs(earned).sum(axis=1) + np.abs(totals))
    wrong &= counts[:, None] > 0
    for name, odd in zip(rewards, wrong.T, strict=True):
        file.note_where(odd, lines, ReadProblem.TURNS_APART, {"name": name})
    return turns


def _few(counts: _Lines, names: Sequence[str], lines: _Lines, file: FileReport) -> bool:
    if fits(len(counts), int(counts.max(initial=0)), len(names)):
        return True
    file.note(int(lines[np.argmax(counts)]), ReadProblem.MANY_TURNS)
    return False


def _padded(
    counts: _Lines, rewards: Sequence[Values], advantages: Values, num_tokens: Values
) -> TableTurns:
    shape = (len(counts), int(counts.max(initial=0)))
    taken = np.arange(shape[1]) < counts[:, None]
    columns = np.full((len(rewards) + 2, *shape), np.nan)
    for column, values in zip(columns, (*rewards, advantages, num_tokens), strict=True):
        column[taken] = values
    return TableTurns(counts, np.moveaxis(columns[:-2], 0, -1), columns[-2], columns[-1])
