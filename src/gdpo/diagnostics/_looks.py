r"""Decides when the sums over groups prove something, however often a run is looked at.

A run is cut into blocks of 64, 128, 256, ... groups. Each block is tested once, when it is full.
All tests of a run share one probability of a false alarm: the i-th block (from 1) of the m-th
size (from 0) may err with

$$ \alpha_{m,i} = \alpha \cdot \frac{6}{\pi^2 (m + 1)^2} \cdot \frac{1}{i (i + 1)}, $$

and these add up to $\alpha$ over all blocks of an endless run. Short blocks find a large fault
soon, long blocks find a small one. A test of a share spends a tenth of its error (`OF_SHARES`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log, log1p, pi
from statistics import NormalDist

import numpy as np

from gdpo.diagnostics.influence import Influence, pooled

LEAST_GROUPS = 64
"""Number of groups in a block of the smallest size, and in a measurement."""

ERROR = 0.025
"""Probability of a false alarm about a reward whose true value is at the limit: of one look at a
batch or at a finished run, and of all looks at a running one."""

OF_SHARES = 0.1
"""Part of its error that a test of a share spends in a running run. So a reward whose share is a
little above the limit is left alone too, and an approximation that errs far out in the tail does no
harm."""


@dataclass(frozen=True, slots=True)
class Look:
    """Describes one test: the probability of a false alarm, and whether it is one of many."""

    error: float = ERROR
    one_of_many: bool = False
    """Whether the test must hold far out in the tail, where few varying groups mislead."""

    @staticmethod
    def at(m: int, i: int) -> "Look":
        """Return the test of the i-th block (from 1) of the m-th size (from 0) of a running run."""
        return Look(ERROR * 6 / (pi * (m + 1)) ** 2 / (i * (i + 1)), one_of_many=True)

    @property
    def errors(self) -> float:
        """Return the number of standard errors by which a share must be below its limit."""
        error = self.error * OF_SHARES if self.one_of_many else self.error
        return NormalDist().inv_cdf(1 - error)


@dataclass(slots=True)
class Size:
    """Stores the blocks of one size: how many were full, and the one that waits for its pair."""

    full: int = 0
    waiting: Influence | None = None
    steps: int = 0


@dataclass(slots=True)
class Looks:
    """Cuts a run into blocks of doubling size, and returns each block once, when it is full."""

    sizes: list[Size] = field(default_factory=list[Size])
    begun: Influence | None = None
    """Sums of the smallest block that is not yet full."""
    begun_steps: int = 0

    def add(self, step: Influence) -> Iterator[tuple[Influence, Look, int]]:
        """Add the next step, and yield each block that it fills, with its test and its steps."""
        self.begun = step if self.begun is None else pooled([self.begun, step])
        self.begun_steps += 1
        if self.begun.groups < LEAST_GROUPS:
            return
        block, steps, m = self.begun, self.begun_steps, 0
        self.begun, self.begun_steps = None, 0
        while True:
            if m == len(self.sizes):
                self.sizes.append(Size())
            size = self.sizes[m]
            size.full += 1
            yield block, Look.at(m, size.full), steps
            if size.waiting is None:
                size.waiting, size.steps = block, steps
                return
            block, steps = pooled([size.waiting, block]), size.steps + steps
            size.waiting, size.steps = None, 0
            m += 1


def few(count: int, of: int, share: float) -> float:
    r"""Return the probability of at most this count of events, if each has this probability.

    $$ P(X \le c) = \sum_{i=0}^{c} \binom{n}{i} p^i (1 - p)^{n - i} $$

    >>> few(0, 64, 0.1) < 0.0012, round(few(1, 2, 0.5), 2), few(3, 3, 0.1)
    (True, 0.75, 1.0)
    """
    i = np.arange(1, count + 1)
    steps = np.log((of - i + 1) / i) + log(share) - log1p(-share)
    terms = of * log1p(-share) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(min(1.0, np.sum(np.exp(terms))))
