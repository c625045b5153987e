r"""Finds where a trained reward rises while a watch-only reward (weight 0) falls.

The course of a run is kept as blocks of steps. All pairs of neighbouring windows "before" and
"after" are compared, where "after" ends with the current step. With the mean $\bar m$ of the group
means over the $n$ groups of each window, and their variance $s^2$ over both windows together, a
reward changes by

$$ t = \frac{\bar m_{after} - \bar m_{before}}{s \sqrt{1 / n_{before} + 1 / n_{after}}} $$

standard errors. (Alone, a window without a rare event has almost no variance.) If the means of the
steps vary more within the windows than those of independent groups, their variance counts instead.
Prompts can also become harder. So the update itself must lower the watched reward: its correlation
$\rho$ with the advantage, over the groups of "after", must be clearly below 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import copysign
from typing import Any, NamedTuple

import numpy as np

from gdpo._shapes import Bool, Float, Int
from gdpo.diagnostics.diagnosis import Finding, Kind
from gdpo.diagnostics.findings import finding
from gdpo.diagnostics.influence import NORMAL_95, Influence, Sums, pooled, with_rewards

MOST_BLOCKS = 64
"""Maximum number of blocks. If there are more, neighbouring blocks are merged in pairs."""
LEAST_STEPS, LEAST_GROUPS = 10, 64
"""Minimum number of steps and groups in each of the two windows."""
FALL, RISE, AGAINST = 5.0, 3.0, 4.0
"""Minimum number of standard errors by which the watched reward falls, the trained reward rises,
and the correlation of the watched reward with the advantage is below 0. The first is the largest,
because the windows are chosen where the watched reward falls most."""

Rows = Float[np.ndarray, "five start end"]
"""Number of groups, sum of the group means, sum of their squares, `Block.squares` and number of
steps, for each pair of windows."""


@dataclass(frozen=True, slots=True)
class Block:
    first: int
    steps: int
    sums: Influence
    squares: Mapping[str, float]
    """Sum over the steps of (sum of the group means)² / groups, by reward."""

    def then(self, later: "Block") -> "Block":
        squares = {
            name: self.squares.get(name, 0.0) + later.squares.get(name, 0.0)
            for name in {**self.squares, **later.squares}
        }
        return Block(self.first, self.steps + later.steps, pooled([self.sums, later.sums]), squares)


class Course:
    """Keeps the group means of all rewards, and compares watched with trained rewards.

    Nothing is kept before the first step that has a reward of weight 0.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._size = 1

    def add(self, step: Influence, number: int) -> None:
        if not self.blocks and np.all(step.sums.weight != 0):
            return
        squares = step.sums.mean**2 / np.maximum(step.sums.applies, 1)
        of_step = dict(zip(step.names, squares.tolist(), strict=True))
        block = Block(number, 1, step, of_step)
        if self.blocks and self.blocks[-1].steps < self._size:
            block = self.blocks.pop().then(block)
        self.blocks.append(block)
        if len(self.blocks) > MOST_BLOCKS:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=False)
            odd = self.blocks[len(self.blocks) // 2 * 2 :]
            self.blocks = [*(one.then(other) for one, other in pairs), *odd]
            self._size *= 2

    def findings(self) -> Iterator[tuple[Finding, int]]:
        """Yield a finding, with its age in steps, per trained and watched reward that diverge."""
        if sum(block.steps for block in self.blocks) < 2 * LEAST_STEPS:
            return
        names = tuple(dict.fromkeys(name for block in self.blocks for name in block.sums.names))
        windows = _Windows.of(self.blocks, names)
        weights = Sums(*windows.up_to[:, -1]).weight
        for watched in np.flatnonzero(weights == 0).tolist():
            falls = windows.falls(watched)
            for trained in np.flatnonzero(weights).tolist() if np.any(falls) else ():
                rises = windows.change(trained).errors * copysign(1, weights[trained]) >= RISE
                if np.any(falls & rises):
                    split = windows.clearest(watched, falls & rises)
                    yield self._finding(windows, split, names, (trained, watched))

    def _finding(
        self,
        windows: "_Windows",
        split: tuple[int, int],
        names: Sequence[str],
        rewards: tuple[int, int],
    ) -> tuple[Finding, int]:
        (a, b), step = (names[k] for k in rewards), self.blocks[split[1]].first
        rise, fall = (windows.change(k).at(split) for k in rewards)
        gained = "rises" if rise.size > 0 else "falls (negative weight)"
        found = finding(
            Kind.PARTED,
            (a, b),
            {
                "step": float(step),
                "fall": -fall.size,
                "fall_margin": fall.margin,
                "rise": rise.size,
                "rise_margin": rise.margin,
            },
            gained=gained,
            step=step,
            rise=_moved(rise),
            fall=_moved(fall),
        )
        return found, sum(block.steps for block in self.blocks[split[1] :])

    def restore(self, blocks: Sequence[Block]) -> None:
        self.blocks = list(blocks)
        self._size = max((block.steps for block in blocks), default=1)


class _Change(NamedTuple):
    size: Any
    error: Any

    @property
    def errors(self) -> Any:
        with np.errstate(all="ignore"):
            return self.size / self.error

    @property
    def margin(self) -> float:
        return float(NORMAL_95 * self.error)

    def at(self, split: tuple[int, int]) -> "_Change":
        return _Change(float(self.size[split]), float(self.error[split]))


def _moved(change: _Change) -> str:
    where = "higher" if change.size > 0 else "lower"
    return f"{abs(change.size):.3g} ± {change.margin:.2g} {where}"


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Compares all pairs of windows: the blocks [start, end), and all blocks from end on."""

    up_to: Float[np.ndarray, "sum edge reward"]
    """Sums over all blocks before each end. The last entry is the sum over all blocks."""
    squares: Float[np.ndarray, "edge reward"]
    """Sums of `Block.squares` in the same way."""
    steps: Int[np.ndarray, " edge"]
    """Number of steps in the same way."""

    @staticmethod
    def of(blocks: Sequence[Block], names: tuple[str, ...]) -> "_Windows":
        tables = [np.stack(with_rewards(block.sums, names).sums) for block in blocks]
        up_to = np.cumsum([np.zeros_like(tables[0]), *tables], axis=0)
        steps = np.cumsum([0, *(block.steps for block in blocks)])
        squares = [[block.squares.get(name, 0.0) for name in names] for block in blocks]
        squares = np.cumsum([[0.0] * len(names), *squares], axis=0)
        return _Windows(up_to.swapaxes(0, 1), squares, steps)

    def change(self, reward: int) -> _Change:
        sums = Sums(*self.up_to[:, :, reward])
        rows = (sums.applies, sums.mean, sums.mean_square, self.squares[:, reward], self.steps)
        all_of = np.stack(rows)
        before: Rows = all_of[:, None, :-1] - all_of[:, :-1, None]
        to_end = all_of[:, -1:] - all_of[:, :-1]
        after: Rows = np.broadcast_to(to_end[:, None], before.shape)
        with np.errstate(all="ignore"):
            shorter = np.minimum(before, after)
            known = (shorter[0] >= LEAST_GROUPS) & (shorter[4] >= LEAST_STEPS)
            size = np.where(known, after[1] / after[0] - before[1] / before[0], np.nan)
            groups, total, square, _, steps = before + after
            mean, rounding = total / groups, 8 * np.finfo(np.float64).eps * square / groups
            of_groups = square / groups - mean**2
            around = sum(one[3] - one[1] ** 2 / one[0] for one in (before, after))
            of_steps = around / (steps - 2)
            # The difference of two large numbers has at least their rounding error.
            variance = np.maximum(np.maximum(of_groups, of_steps), rounding)
            return _Change(size, np.sqrt(variance * (1 / before[0] + 1 / after[0])))

    def falls(self, reward: int) -> Bool[np.ndarray, "start end"]:
        """Return the pairs in which a reward falls, and the update lowers it in the second."""
        sums = Sums(*(self.up_to[:, -1:, reward] - self.up_to[:, :-1, reward]))
        with np.errstate(all="ignore"):
            rho = sums.influence / np.sqrt(sums.squares * sums.z_squares)
            lowered = rho * np.sqrt(sums.degrees) <= -AGAINST
        if not np.any(lowered):
            return np.zeros((len(lowered), len(lowered)), np.bool_)
        return (self.change(reward).errors <= -FALL) & lowered

    def clearest(self, reward: int, among: Bool[np.ndarray, "start end"]) -> tuple[int, int]:
        errors = np.where(among, self.change(reward).errors, np.inf)
        start, end = np.unravel_index(np.argmin(errors), errors.shape)
        return int(start), int(end)
