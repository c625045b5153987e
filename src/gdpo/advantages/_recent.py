from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import is_torch_array

from gdpo._shapes import Float
from gdpo.errors import ConfigError

LEAST_GROUPS = 64
"""Minimum number of groups for a decision about a mean, because the mean of fewer is noisy."""


class RecentMean:
    """Stores the most recent batches that together contain `LEAST_GROUPS` groups with a reward."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int, float]] = deque()  # groups, values, sum of the values

    @property
    def value(self) -> float | None:
        if sum(groups for groups, _, _ in self._batches) < LEAST_GROUPS:
            return None
        return sum(total for _, _, total in self._batches) / sum(n for _, n, _ in self._batches)

    def add(self, values: Float[np.ndarray, "prompt sample"]) -> None:
        there = ~np.isnan(values)
        groups = int(np.sum(np.any(there, axis=1)))
        if not groups:
            return
        self._batches.append((groups, int(np.sum(there)), float(np.sum(values[there]))))
        while sum(n for n, _, _ in self._batches) - self._batches[0][0] >= LEAST_GROUPS:
            self._batches.popleft()

    def state(self) -> list[list[float | int]]:
        return [list(batch) for batch in self._batches]

    def restore(self, state: Sequence[Sequence[float | int]]) -> None:
        self._batches = deque((int(g), int(n), float(total)) for g, n, total in state)


def as_numpy(values: Any) -> Float[np.ndarray, "..."]:
    if is_torch_array(values):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def wrong_state(kind: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the saved state does not fit the {kind} of this run ({type(error).__name__}: {error}): "
        "resume with the same rewards and options"
    )
