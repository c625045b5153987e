"""Stores the rollouts of a step as columns of numbers, in the same form for every framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from gdpo.errors import DataError
from gdpo.rewards.gates import Range
from gdpo.rollouts.readers.report import BY_IDS
from gdpo.rollouts.record import RewardArrays


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Stores the rollouts of one step of a run without their texts, in the order of the files."""

    run: str
    """Folder of the run, relative to the path that was read. Empty if the path is the folder of the
    run."""
    format: str
    names: tuple[str, ...]
    """Names of the rewards, in the order of the columns of `rewards`."""
    weights: tuple[float, ...] | None
    """Weights that are recorded in the files, or None if there are none. If groups have different
    weights: the weights of the first group."""
    files: tuple[Path, ...]
    steps: Int[np.ndarray, " rollout"]
    groups: Int[np.ndarray, " rollout"]
    """Key of the group. All samples of a group have the same key."""
    rewards: Float[np.ndarray, "rollout reward"]
    """Raw rewards. NaN if a reward does not apply, or is not a finite number."""
    total: Float[np.ndarray, " rollout"]
    """Scalar reward in the files, or NaN if unknown."""
    advantages: Float[np.ndarray, " rollout"]
    """Recorded advantages, or NaN if unknown. If there is one advantage per token, the last
    advantage is used."""
    num_tokens: Float[np.ndarray, " rollout"]
    """Number of tokens in the completion, or NaN if unknown."""
    cut: Float[np.ndarray, " rollout"]
    """1 if the completion was truncated at the token limit, 0 if the model ended it, and NaN if
    unknown."""
    trained: Bool[np.ndarray, " rollout"]
    """False if the rollout was generated and scored, but left out of the training batch."""
    file: Int[np.ndarray, " rollout"]
    """Index into `files`."""
    row: Int[np.ndarray, " rollout"]
    """Index of the rollout within its file, counted from 0, as `read_texts` expects."""
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    """Declared ranges by reward name, for rewards whose range is declared in a file."""
    grouped_by: str = BY_IDS
    """How the rollouts are grouped: by `group id`, by `equal prompts`, or by `nothing`."""
    own_weights: Float[np.ndarray, "rollout reward"] | None = None
    """Weights of each rollout, if groups have different weights."""

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Int[np.ndarray, " some"]) -> "RolloutTable":
        """Return a table of some of the rollouts."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        if self.own_weights is not None:
            columns["own_weights"] = self.own_weights[rows]
        return replace(self, **columns)

    def grouped(self) -> RewardArrays:
        """Return rewards and advantages by group. Smaller groups are padded with NaN.

        Raises:
            DataError: If the largest group is so large that most of the array would be padding.
        """
        prompt, sample = places(self.groups)
        shape = (int(prompt.max()) + 1, int(sample.max()) + 1)
        cells = shape[0] * shape[1]
        if cells > 2 * len(self) and cells * len(self.names) > _PADDED:
            raise DataError(
                f"step {self.steps[0]}: the {shape[0]:,} groups have {len(self) / shape[0]:.1f} "
                f"rollouts on average, but one has {shape[1]:,}. Check the group ids or prompts, "
                "or pass the number of rollouts per prompt (group_size)"
            )
        rewards = np.full((*shape, len(self.names)), np.nan)
        rewards[prompt, sample] = self.rewards
        advantages = np.zeros(shape)
        advantages[prompt, sample] = np.nan_to_num(self.advantages)
        weights: Any = self.weights or (1.0,) * len(self.names)
        if self.own_weights is not None:
            weights = np.zeros((shape[0], len(self.names)))
            weights[prompt] = self.own_weights
        return RewardArrays(self.names, weights, rewards, advantages)


_PADDED = 5_000_000
"""Maximum number of values in an array of which more than half is padding."""

COLUMNS = (
    *("steps", "groups", "rewards", "total", "advantages", "num_tokens", "cut", "trained"),
    *("file", "row"),
)
"""Fields of a `RolloutTable` that have one value per rollout."""


def joined(tables: Sequence[RolloutTable]) -> RolloutTable:
    """Join several tables of one step. Where a table lacks a reward, the reward is NaN."""
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
    columns["rewards"] = np.concatenate([_rewards_of(table, names) for table in tables])
    columns["file"] = np.concatenate(
        [np.array([files.index(path) for path in t.files])[t.file] for t in tables]
    )
    weights, own = _weights_of(tables, names, columns["groups"])
    return RolloutTable(
        *(first.run, first.format, names, weights, files),
        **columns,
        ranges=_ranges_of(tables),
        grouped_by=first.grouped_by,
        own_weights=own,
    )


def _ranges_of(tables: Sequence[RolloutTable]) -> dict[str, Range]:
    """Return the declared ranges, except for rewards whose range differs between tables."""
    found = {(name, known) for table in tables for name, known in table.ranges.items()}
    names = [name for name, _ in found]
    return {name: known for name, known in found if names.count(name) == 1}


Weights: TypeAlias = tuple[tuple[float, ...] | None, Float[np.ndarray, "rollout reward"] | None]
"""The fields `weights` and `own_weights` of a table."""


def weights_of_rows(
    own: Float[np.ndarray, "rollout reward"], groups: Int[np.ndarray, " rollout"]
) -> Weights | None:
    """Return the weights of a table from those of each rollout.

    None: the weights differ within a group, so they are not the weights of prompts.
    """
    first = tuple(own[0].tolist())
    if np.all(own == own[0]):
        return first, None
    _, starts, prompt = np.unique(groups, return_index=True, return_inverse=True)
    return (first, own) if np.array_equal(own, own[starts][prompt]) else None


def _weights_of(
    tables: Sequence[RolloutTable], names: tuple[str, ...], groups: Int[np.ndarray, " rollout"]
) -> Weights:
    """Return the weights of a step, or None if a table has no weights or its weights differ."""
    known: dict[str, float] = {}
    for table in tables:
        if table.weights is None:
            return None, None
        for name, weight in zip(table.names, table.weights, strict=True):
            known.setdefault(name, weight)
    own = np.tile([known[name] for name in names], (len(groups), 1))
    ends = np.cumsum([len(table) for table in tables])
    for table, end in zip(tables, ends, strict=True):
        rows, columns = slice(end - len(table), end), [names.index(name) for name in table.names]
        own[rows, columns] = table.weights if table.own_weights is None else table.own_weights
    return weights_of_rows(own, groups) or (None, None)


def places(
    groups: Int[np.ndarray, " rollout"],
) -> tuple[Int[np.ndarray, " rollout"], Int[np.ndarray, " rollout"]]:
    """Return, for each rollout, the number of its group and its number within the group."""
    _, prompt, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(prompt, kind="stable")
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    sample = np.empty_like(prompt)
    sample[order] = np.arange(len(groups)) - starts
    return prompt, sample


def _rewards_of(table: RolloutTable, names: tuple[str, ...]) -> Float[np.ndarray, "rollout reward"]:
    rewards = np.full((len(table), len(names)), np.nan)
    for place, name in enumerate(table.names):
        rewards[:, names.index(name)] = table.rewards[:, place]
    return rewards
