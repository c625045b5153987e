"""Stores the separate rewards of a batch of verl, and finds its groups and turns.

A reward may be a list with one number for each turn of the rollout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Any

import numpy as np

from gdpo._naming import did_you_mean
from gdpo._shapes import Bool, Int
from gdpo.errors import ConfigError
from gdpo.integrations._turns import check_count, is_per_turn, summed, tokens_of_turns
from gdpo.integrations.rows import Columns, Groups, Settings, as_groups, reward_columns
from gdpo.rewards.weights_column import weights_of_cells
from gdpo.rollouts.table import RolloutTable, TableTurns


def _in_order(keys: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the index and the rollout of each row, in the order of the outputs.

    verl's row keys have the format `<prompt>_<rollout>_<output number>`.
    """
    parts = [key.rpartition("_") for key in keys]
    for row in sorted(range(len(keys)), key=lambda row: int(parts[row][2])):
        yield row, parts[row][0]


def last_outputs(keys: Sequence[str]) -> list[int]:
    """Return, for each row, the index of the last output that belongs to the same rollout."""
    last = {rollout: row for row, rollout in _in_order(keys)}
    return [last[key.rpartition("_")[0]] for key in keys]


def first_turns(keys: Sequence[str], counts: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    found, so_far = np.zeros(len(keys), dtype=np.int64), dict[str, int]()
    for row, rollout in _in_order(keys):
        found[row] = so_far.get(rollout, 0)
        so_far[rollout] = int(found[row] + counts[row])
    return found


def has_turns(columns: Columns, names: Sequence[str]) -> bool:
    return any(any(map(is_per_turn, columns[name])) for name in names if name in columns)


@dataclass(frozen=True, slots=True)
class Carried:
    columns: Columns
    """Maps each reward name to the rewards of all rows."""
    keys: Sequence[str] | None = None
    """verl's row keys. None: every row is a separate rollout."""
    padding: Bool[np.ndarray, " row"] | None = None
    """True for padding rows. None: the batch has no padding rows."""
    masks: Sequence[Any] | None = None
    """1 for the tokens that the model generated, for each row, before verl rejects tokens. None:
    the mask that verl passes."""

    def groups(self, settings: Settings, prompt_ids: Any, response_mask: Any) -> Groups:
        names, column = settings.names, settings.weights_column
        totals = {name: summed(self.columns[name]) for name in names if name in self.columns}
        rewards = reward_columns(
            {**self.columns, **totals},
            names,
            asked_by="algorithm.gdpo_reward_keys",
            given_by="compute_score, next to 'score'",
        )
        lengths = response_mask.sum(-1).cpu().numpy()
        outputs = None if self.keys is None else last_outputs(self.keys)
        groups = as_groups(
            rewards, list(prompt_ids), lengths, outputs=outputs, padding=self.padding
        )
        table = replace(groups.arrays.table, names=names)
        if column is not None:
            if column not in self.columns:
                raise ConfigError(
                    f"algorithm.gdpo_weights_column is {column!r}, but the batch has no such "
                    f"column: {did_you_mean(column, list(self.columns))}. Add the column to the "
                    "data files"
                )
            cells = self.columns[column]
            weights = weights_of_cells(cells, names, settings.weights, column=column)[table.row]
            applying = np.where(np.isnan(weights), nan, table.rewards)
            table = replace(table, rewards=applying, weights=np.nan_to_num(weights))
        starts = groups.starts
        if settings.rule.wants_turns or has_turns(self.columns, names):
            lengths = tokens_of_turns(self.written(response_mask).cpu().numpy())
            if self.keys is not None:
                starts = first_turns(self.keys, np.count_nonzero(lengths, axis=1))
            table = replace(table, turns=self._turns(table, lengths, groups.rollouts, starts))
        return Groups(table.grouped(), groups.rollouts, starts)

    def _turns(
        self,
        table: RolloutTable,
        lengths: Int[np.ndarray, "row turn"],
        rollouts: Int[np.ndarray, " row"],
        starts: Int[np.ndarray, " row"],
    ) -> TableTurns:
        """Return the turns of each rollout, with rewards of 0 beyond the last one.

        A reward of the whole rollout is at the last turn. `lengths` are the numbers of tokens.
        """
        rows, own = np.nonzero(lengths)
        longest = int((starts[rows] + own).max(initial=0)) + 1
        num_tokens = np.zeros((len(table) + 1, longest))  # the last row is that of padding rows
        num_tokens[rollouts[rows], starts[rows] + own] = lengths[rows, own]
        num_tokens = num_tokens[:-1]
        counts = np.count_nonzero(num_tokens, axis=1)
        rewards = np.zeros((*num_tokens.shape, len(table.names)))
        rewards[np.arange(len(table)), np.maximum(counts - 1, 0)] = table.rewards
        for place, (row, count) in enumerate(zip(table.row.tolist(), counts.tolist(), strict=True)):
            rollout = f"row {row}" if self.keys is None else f"row {row} ({self.keys[row]})"
            for k, name in enumerate(table.names):
                value = self.columns[name][row]
                check_count(name, value, count, rollout=rollout)
                if is_per_turn(value) and isfinite(table.rewards[place, k]):
                    rewards[place, :count, k] = value
        rewards = np.where(np.isnan(table.rewards)[:, None], nan, rewards)
        return TableTurns(counts, rewards, np.full(num_tokens.shape, nan), num_tokens)

    def written(self, response_mask: Any) -> Any:
        """Return 1 for the tokens that the model generated, even if verl rejects them."""
        if self.masks is None:
            return response_mask
        found = response_mask.new_zeros(response_mask.shape)
        for row, mask in enumerate(self.masks):
            found[row, : len(mask)] = mask
        return found
