"""A reward against the length of the completion: means of the reward in bins of equal width."""

from math import nan

import numpy as np
from jaxtyping import Float

_BINS = 24
"""At most; there are at least half as many once lengths reach that."""


class LengthBins:
    """Rewards by length, added to step by step. The width of the bins doubles when it has to."""

    def __init__(self) -> None:
        self.width = 1.0
        self._sums: dict[str, tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]] = {}

    def add(
        self,
        name: str,
        lengths: Float[np.ndarray, " rollout"],
        rewards: Float[np.ndarray, " rollout"],
    ) -> None:
        """Take in the rollouts of a step; those without a length or the reward are left out."""
        known = np.isfinite(lengths) & np.isfinite(rewards) & (lengths >= 0)
        if not np.any(known):
            return
        while float(np.max(lengths[known])) >= self.width * _BINS:
            self._widen()
        places = (lengths[known] / self.width).astype(np.int64)
        counts, sums = self._sums.get(name, (np.zeros(_BINS), np.zeros(_BINS)))
        self._sums[name] = (
            counts + np.bincount(places, minlength=_BINS),
            sums + np.bincount(places, weights=rewards[known], minlength=_BINS),
        )

    def widened(self, width: float) -> "LengthBins":
        """The same rollouts in bins of that width, which is its own or that doubled some times."""
        wide = LengthBins()
        wide.width, wide._sums = self.width, self._sums
        while wide.width < width:
            wide._widen()
        return wide

    @property
    def middles(self) -> Float[np.ndarray, " bin"]:
        """The length in the middle of each bin, up to the last that holds a rollout."""
        filled = [np.flatnonzero(counts) for counts, _ in self._sums.values()]
        last = max((int(places[-1]) for places in filled if len(places)), default=-1)
        return (np.arange(last + 1) + 0.5) * self.width

    def counts(self, name: str) -> Float[np.ndarray, " bin"]:
        """Rollouts in each bin that have the reward."""
        return self._sums.get(name, (np.zeros(_BINS),))[0][: len(self.middles)]

    def means(self, name: str) -> Float[np.ndarray, " bin"]:
        """Mean reward in each bin; NaN: it holds none."""
        counts, sums = self._sums.get(name, (np.zeros(_BINS), np.zeros(_BINS)))
        means = np.where(counts > 0, sums / np.maximum(counts, 1), nan)
        return means[: len(self.middles)]

    def _widen(self) -> None:
        self.width *= 2
        self._sums = {key: (_halved(n), _halved(s)) for key, (n, s) in self._sums.items()}


def _halved(values: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " bin"]:
    """Two neighbouring bins as one, and empty ones at the end."""
    return np.concatenate([values.reshape(-1, 2).sum(axis=1), np.zeros(_BINS // 2)])
