"""Rollouts of one step as columns of numbers, in the same form for every framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from gdpo.errors import DataError
from gdpo.rewards.gates import Range
from gdpo.rollouts.readers.report import BY_IDS
from gdpo.rollouts.record import RewardArrays


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Stores the rollouts of one step of one run, in the order of the files, without texts."""

    run: str
    """Folder of the run, relative to the path that was read. Empty: that path itself."""
    format: str
    names: tuple[str, ...]
    """The rewards, in the order of the array."""
    weights: tuple[float, ...] | None
    """Weights in the files. None: not recorded."""
    files: tuple[Path, ...]
    steps: Int[np.ndarray, " rollout"]
    groups: Int[np.ndarray, " rollout"]
    """Key of the group: equal for the samples of one group of a step."""
    rewards: Float[np.ndarray, "rollout reward"]
    """Raw rewards. NaN: does not apply, or not a finite number."""
    total: Float[np.ndarray, " rollout"]
    """Scalar reward in the files. NaN: unknown."""
    advantages: Float[np.ndarray, " rollout"]
    """Recorded advantages; of one advantage per token, the last. NaN: unknown."""
    num_tokens: Float[np.ndarray, " rollout"]
    """Tokens of the completion. NaN: unknown."""
    cut: Float[np.ndarray, " rollout"]
    """1: truncated at the token limit; 0: ended by the model. NaN: unknown."""
    trained: Bool[np.ndarray, " rollout"]
    """False: generated and scored, but left out of the training batch."""
    file: Int[np.ndarray, " rollout"]
    """Index into `files`."""
    row: Int[np.ndarray, " rollout"]
    """Number of the rollout within its file, from 0, for `read_texts`."""
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    """Declared range by reward name, for rewards whose file declares one."""
    grouped_by: str = BY_IDS
    """How the rollouts are put into groups: `group id`, `equal prompts` or `nothing`."""

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Int[np.ndarray, " some"]) -> "RolloutTable":
        """Return a table of some of the rollouts."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
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
                "or give the number of rollouts per prompt (group_size)"
            )
        rewards = np.full((*shape, len(self.names)), np.nan)
        rewards[prompt, sample] = self.rewards
        advantages = np.zeros(shape)
        advantages[prompt, sample] = np.nan_to_num(self.advantages)
        weights = self.weights or (1.0,) * len(self.names)
        return RewardArrays(self.names, weights, rewards, advantages)


_PADDED = 5_000_000
"""Arrays with more numbers than this must not consist of padding for more than half."""

COLUMNS = (
    *("steps", "groups", "rewards", "total", "advantages", "num_tokens", "cut", "trained"),
    *("file", "row"),
)
"""The fields of a table with one value per rollout."""


def joined(tables: Sequence[RolloutTable]) -> RolloutTable:
    """Return several tables of one step as one. A reward that a table lacks is NaN there."""
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
    weights = _weights_of(tables, names)
    return RolloutTable(
        *(first.run, first.format, names, weights, files),
        **columns,
        ranges=_ranges_of(tables),
        grouped_by=first.grouped_by,
    )


def _ranges_of(tables: Sequence[RolloutTable]) -> dict[str, Range]:
    """Return the ranges that no two of the tables contradict each other in."""
    found = {(name, known) for table in tables for name, known in table.ranges.items()}
    names = [name for name, _ in found]
    return {name: known for name, known in found if names.count(name) == 1}


def _weights_of(tables: Sequence[RolloutTable], names: tuple[str, ...]) -> tuple[float, ...] | None:
    """The weights of tables that are one step; None: one has none, or they differ."""
    weights: dict[str, float] = {}
    for table in tables:
        if table.weights is None:
            return None
        for name, weight in zip(table.names, table.weights, strict=True):
            if weights.setdefault(name, weight) != weight:
                return None
    return tuple(weights[name] for name in names)


def places(
    groups: Int[np.ndarray, " rollout"],
) -> tuple[Int[np.ndarray, " rollout"], Int[np.ndarray, " rollout"]]:
    """For each rollout the number of its group, and its number in the group."""
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
