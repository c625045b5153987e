"""Stores rollouts as columns of numbers and by group, in the same form for every framework.

Everything that has rewards becomes a `RolloutTable`, which is checked once, where it is made. A
rollout without turns has one turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo._text import Setting
from gdpo.advantages import Weights
from gdpo.errors import DataError
from gdpo.rewards.gates import Range

Values: TypeAlias = Float[np.ndarray, " rollout"]
Flags: TypeAlias = Bool[np.ndarray, " rollout"]
"""A number, or a truth value, for each rollout."""
ByReward: TypeAlias = Float[np.ndarray, "rollout reward"]
"""A number for each rollout and reward."""
NO_KEY = -(2**63)
"""Key for rollouts with neither a group nor a prompt. No other value has this key."""
BY_IDS, BY_PROMPT, BY_NOTHING = "group id", "equal prompts", "nothing"
BY_BOTH = "group id and prompt"
"""How rollouts are grouped."""
RECORDED, FOUND = "recorded", "found in the total"
UNKNOWN_WEIGHTS = "not recorded, so 1 for each reward"
"""How the weights of the rewards were obtained."""
Bounds: TypeAlias = Mapping[str, float] | None
"""Known bounds, by the name of the reward."""
Ends: TypeAlias = tuple[list[float] | None, list[float] | None]
"""Lowest and highest values in the order of the rewards. NaN, or None for all: unknown."""
MOST = 2**26
"""Maximum number of values in the arrays for the turns that are read at once. Each takes 8
bytes."""
_SAME_RATIO = 0.99
"""Ratio of two weights, divided by their ratio in the total, above which the weights agree."""


@dataclass(frozen=True, slots=True)
class TableTurns:
    """Stores the turns of rollouts, in a row or by group, padded to the largest number of turns."""

    counts: Int[np.ndarray, "*rollout"]
    """Number of turns of each rollout. 0: the rollout has no turns, or they are unknown."""
    rewards: Float[np.ndarray, "*rollout turn reward"]
    """Raw rewards of the turns. NaN beyond the last turn, and as in `RolloutTable.rewards`."""
    advantages: Float[np.ndarray, "*rollout turn"]
    """Recorded advantages. NaN beyond the last turn, or if unknown."""
    num_tokens: Float[np.ndarray, "*rollout turn"]
    """Number of tokens that the model generated. NaN as in `advantages`."""

    @property
    def taken(self) -> Bool[np.ndarray, "*rollout turn"]:
        """True for the turns of each rollout, False beyond its last turn."""
        return np.arange(self.num_tokens.shape[-1]) < self.counts[..., None]

    @property
    def columns(self) -> tuple[Any, Any, Any]:
        """Rewards, advantages and numbers of tokens of the turns."""
        return self.rewards, self.advantages, self.num_tokens

    def take(self, rows: Int[np.ndarray, " some"] | slice) -> "TableTurns":
        """Return the turns of some of the rollouts."""
        counts = self.counts[rows]
        longest = int(counts.max(initial=0))
        return TableTurns(counts, *(values[rows, :longest] for values in self.columns))


@dataclass(frozen=True, slots=True)
class RewardArrays:
    """Stores the rollouts of a table by group. Smaller groups are padded."""

    table: "RolloutTable"
    placed: Int[np.ndarray, "prompt sample"]
    """Row of each rollout in the table, or -1 for padding."""
    there: Bool[np.ndarray, "prompt sample"]
    """True where the arrays contain a rollout, False for padding."""
    rewards: Float[np.ndarray, "prompt sample reward"]
    """Raw rewards. NaN means that the reward does not apply, or that the entry is padding."""
    weights: tuple[float, ...] | Float[np.ndarray, "prompt reward"]
    """One weight per reward, 1 if the table has none, or the weights of each prompt if they differ.
    NaN: the reward does not apply to the prompt."""
    weights_from: str
    """How the weights were obtained, as a phrase."""
    advantages: Float[np.ndarray, "prompt sample"] | None
    """Recorded advantages, with 0 as padding, or None if some are missing."""
    num_tokens: Float[np.ndarray, "prompt sample"]
    """Number of tokens in each completion. NaN if unknown, and for padding."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards, in the order of the last axis."""
        return self.table.names

    def weights_or(self, configured: Weights) -> Weights:
        """Return the weights of the table, or else the configured ones."""
        return configured if self.table.weights is None else self.weights

    @property
    def turns(self) -> TableTurns:
        """The turns of all rollouts. Advantages are 0 beyond the last turn, and counts in padding.

        Without turns, each rollout has one.
        """
        given = self.table.by_turn
        return TableTurns(
            by_group(given.counts, self.placed, padding=0),
            by_group(given.rewards, self.placed),
            by_group(np.where(given.taken, given.advantages, 0.0), self.placed, padding=0),
            by_group(given.num_tokens, self.placed),
        )

    def by_rollout(self, values: Any) -> Any:
        """Return values `[prompt, sample, ...]` in the order of the table."""
        found = np.empty((len(self.table), *values.shape[2:]))
        found[self.placed[self.there]] = values[self.there]
        return found


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
    """How `weights` were obtained, if there are any."""
    left_out: int = 0
    """Number of rollouts of the step that were left out, because they were not trained on."""
    turns: TableTurns | None = None
    """The turns, if the files have rewards for each turn. `rewards` are then totals: the sums in
    gdpo's record, the means of the metrics of the turns in tinker's files. None: each rollout has
    one turn."""

    def __post_init__(self) -> None:
        turns = self.by_turn
        columns = [turns.counts, *(getattr(self, name) for name in _COLUMNS)]
        assert {len(each) for each in columns if each is not None} == {len(self)}, "rows differ"
        wide = [self.rewards, turns.rewards, self.rewards if self.weights is None else self.weights]
        assert {each.shape[-1] for each in wide} == {len(self.names)}, "names and rewards differ"

    @staticmethod
    def of(
        names: Sequence[str],
        rewards: Float[np.ndarray, "rollout reward"],
        groups: Int[np.ndarray, " rollout"],
        **columns: Any,
    ) -> "RolloutTable":
        """Return a table of rollouts that are in no file. Other columns are unknown."""
        size = len(rewards)
        given: dict[str, Any] = dict.fromkeys(("steps", "file"), np.zeros(size, np.int64))
        given |= dict.fromkeys(("total", "advantages", "num_tokens", "cut"), np.full(size, nan))
        given |= {"weights": None, "trained": np.ones(size, np.bool_), "row": np.arange(size)}
        given |= {"run": "", "format": "", "files": (), "names": tuple(names)}
        given |= {"rewards": rewards, "groups": groups, **columns}
        return RolloutTable(**given)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def by_turn(self) -> TableTurns:
        """The turns of all rollouts, without a copy."""
        columns = (self.rewards[:, None], self.advantages[:, None], self.num_tokens[:, None])
        return self.turns or TableTurns(np.ones(len(self), np.int64), *columns)

    def take(self, rows: Int[np.ndarray, " some"]) -> "RolloutTable":
        """Return a table of some of the rollouts."""
        found = ((name, getattr(self, name)) for name in _COLUMNS)
        columns: dict[str, Any] = {name: v[rows] for name, v in found if v is not None}
        return replace(self, turns=self.turns and self.turns.take(rows), **columns)

    def weighted(self, weights: Mapping[str, float]) -> "RolloutTable":
        """Return the table with these weights. The other rewards keep theirs."""
        named = np.array([weights.get(name, nan) for name in self.names])
        unnamed = np.isnan(named)
        own = np.ones_like(self.rewards) if self.weights is None else self.weights
        others = "1" if self.weights is None else self.weights_from
        given = f"as given, others {others}" if unnamed.any() else "as given"
        found = np.where(unnamed, own, named)
        return replace(self, weights=found, weights_from=given)

    def bounds(self, low: Bounds, high: Bounds) -> Ends:
        """Return the given bounds of each reward, or else the declared ones."""
        found: list[list[float] | None] = []
        for end, given in enumerate((low, high)):
            known = {name: ends[end] for name, ends in self.ranges.items()} | dict(given or {})
            bounds = [known.get(name, nan) for name in self.names]
            found.append(None if np.all(np.isnan(bounds)) else bounds)
        return found[0], found[1]

    def grouped(self) -> RewardArrays:
        """Return the rollouts by group.

        Raises:
            DataError: If most of a large array would be padding.
        """
        prompt, sample = places(self.groups)
        shape = (int(prompt.max(initial=-1)) + 1, int(sample.max(initial=-1)) + 1)
        cells, values = shape[0] * shape[1], self.by_turn.rewards[:1].size
        if cells > 2 * len(self) and cells * values > _PADDED:
            raise DataError(
                f"step {self.steps[0]}: the {shape[0]:,} groups have {len(self) / shape[0]:.1f} "
                f"rollouts on average, but one has {shape[1]:,}",
                {
                    "check the group ids or prompts": None,
                    "or give the number of rollouts per prompt": Setting.GROUP_SIZE,
                },
            )
        placed = np.full(shape, -1)
        placed[prompt, sample] = np.arange(len(self))
        known = bool(np.all(np.isfinite(self.advantages)))
        weights = np.full((shape[0], len(self.names)), 1.0 if self.weights is None else nan)
        for k, column in enumerate(() if self.weights is None else self.weights.T):
            given = np.flatnonzero(~np.isnan(column))[::-1]  # the first of a group is written last
            weights[prompt[given], k] = column[given]
        same = shape[0] and np.all(weights == weights[0])
        how = UNKNOWN_WEIGHTS if self.weights is None else self.weights_from
        return RewardArrays(
            table=self,
            placed=placed,
            there=placed >= 0,
            rewards=by_group(self.rewards, placed),
            weights=tuple(weights[0].tolist()) if same else weights,
            weights_from=how if same else f"{how}, different between prompts",
            advantages=by_group(self.advantages, placed, padding=0) if known else None,
            num_tokens=by_group(self.num_tokens, placed),
        )


def by_group(values: Any, placed: Int[np.ndarray, "prompt sample"], *, padding: float = nan) -> Any:
    """Return a column of a table in the places of its rollouts."""
    found = np.take(values, placed, axis=0)
    found[placed < 0] = padding
    return found


_PADDED = 5_000_000
"""Maximum number of values in an array of which more than half is padding."""

_COLUMNS = (
    *("steps", "groups", "rewards", "total", "advantages", "num_tokens", "cut", "trained"),
    *("file", "row", "weights", "parts"),
)
"""Fields of a `RolloutTable` that have one value per rollout. The last two may be None."""


def weights_in_total(
    names: Sequence[str],
    in_total: Mapping[str, float],
    recorded: ByReward | None,
) -> Float[np.ndarray, " reward"] | None:
    """Return the weights in a total, 1 where unknown, or None if the recorded weights count.

    Recorded weights count if they are in the proportions of those in the total.
    """
    found = np.array([in_total.get(name, nan) for name in names])
    if recorded is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = recorded / found
        low, high = (f.reduce(ratios, axis=1) for f in (np.fmin, np.fmax))
        if not np.any(low < _SAME_RATIO * high):
            return None
    return np.where(np.isnan(found), 1.0, found)


def joined(tables: Sequence[RolloutTable]) -> RolloutTable:
    """Join several tables of one step. Where a table lacks a reward, the reward is NaN.

    If another table has turns, the rollouts of a table without turns have 0 turns: unknown.
    """
    if len(tables) == 1:
        return tables[0]
    names = tuple(dict.fromkeys(name for table in tables for name in table.names))
    files = tuple(dict.fromkeys(path for table in tables for path in table.files))
    parts = [_as_part(table, names, files) for table in tables]
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        values = [getattr(part, name) for part in parts]
        columns[name] = None if any(each is None for each in values) else np.concatenate(values)
    ranges = {(name, known) for table in tables for name, known in table.ranges.items()}
    declared = [name for name, _ in ranges]
    return replace(
        tables[0],
        names=names,
        files=files,
        **columns,
        # A range that differs between tables is unknown.
        ranges={name: known for name, known in ranges if declared.count(name) == 1},
        turns=_joined_turns(parts),
    )


def _joined_turns(parts: Sequence[RolloutTable]) -> TableTurns | None:
    given = [part.turns for part in parts if part.turns is not None]
    if not given:
        return None
    counts = [
        np.zeros(len(part), np.int64) if part.turns is None else part.turns.counts for part in parts
    ]
    flat = [np.column_stack([each[turns.taken] for each in turns.columns]) for turns in given]
    return padded(np.concatenate(counts), [*np.concatenate(flat).T])


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


def _as_part(table: RolloutTable, names: tuple[str, ...], files: tuple[Path, ...]) -> RolloutTable:
    """Return a table with all rewards and files of its step."""
    order = [names.index(name) for name in table.names]

    def wide(values: Any) -> Any:
        found = np.full((*values.shape[:-1], len(names)), nan)
        found[..., order] = values
        return found

    return replace(
        table,
        names=names,
        file=np.array([files.index(path) for path in table.files])[table.file],
        rewards=wide(table.rewards),
        weights=None if table.weights is None else wide(table.weights),
        turns=table.turns and replace(table.turns, rewards=wide(table.turns.rewards)),
    )


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
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(order)) - 1
    counts = last - first + 1
    back = np.argsort(order[last])
    rewards = table.rewards[order]
    low, high = (f.reduceat(rewards, first) for f in (np.fmin, np.fmax))
    none = np.isnan(low)
    repeated = np.all((low == high) | none, axis=0)
    sums = np.add.reduceat(np.nan_to_num(rewards), first)
    whole = np.where(repeated, rewards[last], np.where(none, nan, sums))
    tokens = table.num_tokens[order]
    turns = None
    if not repeated.all() and fits(len(first), int(counts.max()), len(table.names)):
        by_turn = np.where(repeated, 0.0, rewards)
        by_turn[last] = rewards[last]
        turns = padded(counts, [*by_turn.T, table.advantages[order], tokens]).take(back)
    return replace(
        table.take(order[last[back]]),
        groups=table.groups[order[first[back]]],
        rewards=whole[back],
        num_tokens=np.add.reduceat(tokens, first)[back],
        parts=None,
        turns=turns,
    )


def fits(rollouts: int, turns: int, rewards: int) -> bool:
    """Return whether arrays of this size fit into memory."""
    return rollouts * turns * (rewards + 2) <= MOST


def padded(counts: Int[np.ndarray, " rollout"], columns: Sequence[Values]) -> TableTurns:
    """Return turns from columns with one value per turn, the turns of each rollout in a row.

    The columns are the rewards, the advantages and the numbers of tokens.
    """
    shape = (len(counts), int(counts.max(initial=0)))
    taken = np.arange(shape[1]) < counts[:, None]
    found = np.full((len(columns), *shape), nan)
    for column, values in zip(found, columns, strict=True):
        column[taken] = values
    return TableTurns(counts, np.moveaxis(found[:-2], 0, -1), found[-2], found[-1])
