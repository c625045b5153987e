"""Stores the rollouts of a step as columns of numbers, in the same form for every framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from gdpo.errors import DataError
from gdpo.rewards.gates import Range
from gdpo.rollouts.readers.report import BY_IDS
from gdpo.rollouts.record import RewardArrays, common_weights


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Stores the rollouts of one step of a run without their texts, in the order of the files."""

    run: str
    """Folder of the run, relative to the path that was read. Empty if the path is the folder of the
    run."""
    format: str
    names: tuple[str, ...]
    """Names of the rewards, in the order of the columns of `rewards`."""
    weights: Float[np.ndarray, "rollout reward"] | None
    """Weights that are recorded in the files, or None if there are none. NaN where the reward does
    not apply to the rollout."""
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

    def __len__(self) -> int:
        return len(self.steps)

    def take(self, rows: Int[np.ndarray, " some"]) -> "RolloutTable":
        """Return a table of some of the rollouts."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, weights=weights, **columns)

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
        if self.weights is None:
            return RewardArrays(self.names, (1.0,) * len(self.names), rewards, advantages)
        weights = np.full((shape[0], len(self.names)), np.nan)
        for k, column in enumerate(self.weights.T):
            known = np.flatnonzero(~np.isnan(column))[::-1]  # the first of a group is written last
            weights[prompt[known], k] = column[known]
        return RewardArrays(self.names, common_weights(weights), rewards, advantages)


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
    columns["rewards"] = np.concatenate([_in_order(t.rewards, t.names, names) for t in tables])
    columns["file"] = np.concatenate(
        [np.array([files.index(path) for path in t.files])[t.file] for t in tables]
    )
    weights = [_in_order(t.weights, t.names, names) for t in tables if t.weights is not None]
    return RolloutTable(
        *(first.run, first.format, names),
        weights=np.concatenate(weights) if len(weights) == len(tables) else None,
        files=files,
        **columns,
        ranges=_ranges_of(tables),
        grouped_by=first.grouped_by,
    )


def _ranges_of(tables: Sequence[RolloutTable]) -> dict[str, Range]:
    """Return the declared ranges, except for rewards whose range differs between tables."""
    found = {(name, known) for table in tables for name, known in table.ranges.items()}
    names = [name for name, _ in found]
    return {name: known for name, known in found if names.count(name) == 1}


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


def _in_order(
    values: Float[np.ndarray, "rollout some"], of: Sequence[str], names: Sequence[str]
) -> Float[np.ndarray, "rollout reward"]:
    """Return the columns in the order of `names`, with NaN for rewards that have no column."""
    columns = np.full((len(values), len(names)), np.nan)
    columns[:, [names.index(name) for name in of]] = values
    return columns
