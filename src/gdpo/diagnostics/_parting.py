r"""Finds where a trained reward rises while a watch-only reward (weight 0) falls.

The course of a run is kept as blocks of steps. All pairs of neighbouring windows "before" and
"after" are compared, where "after" ends with the current step. In a window of $n$ groups with group
means $m_g$, mean $\bar m$ and variance $s^2$ of the group means, a reward changes by

$$ t = \frac{\bar m_{after} - \bar m_{before}}{\sqrt{s^2_{before} / n_{before} + s^2_{after} /
n_{after}}} $$

standard errors. A falling mean alone is no proof, because the prompts can become harder. So the
update itself must lower the watched reward: its correlation $\rho$ with the advantage, over the
groups of "after", must be below 0 by as much as for a reversed reward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import copysign
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from gdpo.diagnostics.diagnosis import Finding, Kind, Severity
from gdpo.diagnostics.influence import Influence, Sums, pooled, with_rewards

MOST_BLOCKS = 64
"""Maximum number of blocks. If there are more, neighbouring blocks are merged in pairs."""
LEAST_STEPS, LEAST_GROUPS = 5, 32
"""Minimum number of steps and groups in each of the two windows."""
FALL, RISE, AGAINST = 4.5, 3.0, 3.0
"""Minimum number of standard errors by which the watched reward falls, the trained reward rises,
and the correlation of the watched reward with the advantage is below 0. The first is the largest,
because the windows are chosen where the watched reward falls most."""
_NORMAL_95 = 1.959964

PerPair = Float[np.ndarray, "start end"]


@dataclass(frozen=True, slots=True)
class Block:
    """Stores the sums over some consecutive steps."""

    first: int
    """Number of the first step."""
    steps: int
    sums: Influence

    def then(self, later: "Block") -> "Block":
        """Return this block and the next one as one block."""
        return Block(self.first, self.steps + later.steps, pooled([self.sums, later.sums]))


class Course:
    """Keeps the group means of all rewards of a run, and compares watched with trained rewards.

    Nothing is kept before the first step that has a reward of weight 0.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._size = 1

    def add(self, step: Influence, number: int) -> None:
        """Add the next step.

        Args:
            step: Sums of the step.
            number: Number of the step.
        """
        if not self.blocks and np.all(step.sums.weight != 0):
            return
        block = Block(number, 1, step)
        if self.blocks and self.blocks[-1].steps < self._size:
            block = self.blocks.pop().then(block)
        self.blocks.append(block)
        if len(self.blocks) > MOST_BLOCKS:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=False)
            odd = self.blocks[len(self.blocks) // 2 * 2 :]
            self.blocks = [*(one.then(other) for one, other in pairs), *odd]
            self._size *= 2

    def findings(self) -> Iterator[tuple[Finding, int]]:
        """Yield each parting of a trained and a watched reward, with its number of steps so far."""
        if sum(block.steps for block in self.blocks) < 2 * LEAST_STEPS:
            return
        names = tuple(dict.fromkeys(name for block in self.blocks for name in block.sums.names))
        windows = _Windows.of(self.blocks, names)
        weights = Sums(*windows.up_to[:, -1]).weight
        for watched in np.flatnonzero(weights == 0):
            falls = windows.falls(watched)
            for trained in np.flatnonzero(weights) if np.any(falls) else ():
                rises = windows.change(trained).errors * copysign(1, weights[trained]) >= RISE
                if np.any(falls & rises):
                    split = windows.clearest(watched, falls & rises)
                    yield self._finding(windows, split, names, (int(trained), int(watched)))

    def _finding(
        self,
        windows: "_Windows",
        split: tuple[int, int],
        names: Sequence[str],
        rewards: tuple[int, int],
    ) -> tuple[Finding, int]:
        (a, b), step = (names[k] for k in rewards), self.blocks[split[1]].first
        rise, fall = (windows.change(k).at(split) for k in rewards)
        gained = "rises" if rise.size > 0 else "falls, as its weight demands,"
        finding = Finding(
            Kind.PARTED,
            Severity.WARNING,
            (a, b),
            f"`{a}` {gained} while the watched `{b}` falls: from about step {step} on, `{a}` is "
            f"{_moved(rise)} and `{b}` is {_moved(fall)} than before. The update lowers `{b}`",
            f"gate `{a}` on `{b}`, lower the weight of `{a}`, or give `{b}` a weight, so that it "
            "is trained",
            {
                "step": step,
                "fall": -fall.size,
                "fall_margin": fall.margin,
                "rise": rise.size,
                "rise_margin": rise.margin,
            },
        )
        return finding, sum(block.steps for block in self.blocks[split[1] :])

    def restore(self, blocks: Sequence[Block]) -> None:
        """Load the blocks of another course."""
        self.blocks = list(blocks)
        self._size = max((block.steps for block in blocks), default=1)


class _Change(NamedTuple):
    """Stores the change of a mean from one window to the next."""

    size: Any
    error: Any
    """Standard error of `size`."""

    @property
    def errors(self) -> Any:
        with np.errstate(all="ignore"):
            return self.size / self.error

    @property
    def margin(self) -> float:
        return float(_NORMAL_95 * self.error)

    def at(self, split: tuple[int, int]) -> "_Change":
        return _Change(float(self.size[split]), float(self.error[split]))


def _moved(change: _Change) -> str:
    where = "higher" if change.size > 0 else "lower"
    return f"{abs(change.size):.3g} ± {change.margin:.2g} {where}"


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Compares all pairs of windows: the blocks [start, end), and all blocks from end on."""

    up_to: Float[np.ndarray, "sum end reward"]
    """Sums over all blocks before the end, and over all blocks in the last place."""
    allowed: Bool[np.ndarray, "start end"]
    """Whether both windows have enough steps."""

    @staticmethod
    def of(blocks: Sequence[Block], names: tuple[str, ...]) -> "_Windows":
        tables = [with_rewards(block.sums, names).table for block in blocks]
        up_to = np.cumsum([np.zeros_like(tables[0]), *tables], axis=0)
        steps = np.cumsum([0, *(block.steps for block in blocks)])
        before = steps[None, :-1] - steps[:-1, None] >= LEAST_STEPS
        return _Windows(up_to.swapaxes(0, 1), before & (steps[-1] - steps[:-1] >= LEAST_STEPS))

    def change(self, reward: int) -> _Change:
        """Return the change of a reward's mean between the windows of each pair."""
        sums = Sums(*self.up_to[:, :, reward])
        three = np.stack([sums.applies, sums.mean, sums.mean_square])
        before, after = three[:, None, :-1] - three[:, :-1, None], three[:, -1:] - three[:, :-1]
        (old, of_old), (new, of_new) = map(_mean_and_variance, (before, after[:, None]))
        size = np.where(self.allowed, new - old, np.nan)
        return _Change(size, np.sqrt(of_old + of_new))

    def lowered(self, reward: int) -> Bool[np.ndarray, " end"]:
        """Return for which windows "after" the update lowers a reward."""
        sums = Sums(*(self.up_to[:, -1:, reward] - self.up_to[:, :-1, reward]))
        with np.errstate(all="ignore"):
            rho = sums.influence / np.sqrt(sums.squares * sums.z_squares)
            return rho * np.sqrt(sums.degrees) <= -AGAINST

    def falls(self, reward: int) -> Bool[np.ndarray, "start end"]:
        """Return in which pairs a reward falls, and the update lowers it."""
        lowered = self.lowered(reward)
        if not np.any(lowered):
            return np.zeros_like(self.allowed)
        return (self.change(reward).errors <= -FALL) & lowered

    def clearest(self, reward: int, among: Bool[np.ndarray, "start end"]) -> tuple[int, int]:
        """Return the pair in which a reward falls by the most standard errors."""
        errors = np.where(among, self.change(reward).errors, np.inf)
        start, end = np.unravel_index(np.argmin(errors), errors.shape)
        return int(start), int(end)


def _mean_and_variance(sums: Float[np.ndarray, "three start end"]) -> tuple[PerPair, PerPair]:
    """Return the mean over the groups of each window and its squared standard error, or NaN."""
    with np.errstate(all="ignore"):
        groups = np.where(sums[0] >= LEAST_GROUPS, sums[0], np.nan)
        mean, square = sums[1:] / groups
        # The difference of two large numbers is not known better than to their rounding error.
        variance = np.maximum(square - mean**2, 8 * np.finfo(np.float64).eps * square)
        return mean, variance / (groups - 1)
