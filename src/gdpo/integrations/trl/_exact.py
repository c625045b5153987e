"""Keeps the values that reward functions return. TRL rounds rewards to float32.

In float32, a reward that varies between 100,000 and 100,001 looks constant except for rounding. A
function may also return one number for each turn of a completion, of which TRL gets the total.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object

from gdpo.integrations._turns import is_per_turn
from gdpo.integrations.trl._adapter import is_async_callable
from gdpo.integrations.trl._groups import Ranks
from gdpo.integrations.trl._turns import Located, spread, total_of


@dataclass(frozen=True)
class Returned:
    """Stores what the reward functions returned for a batch, on all ranks, on the CPU."""

    rewards: torch.Tensor
    """Rewards `[rollout, reward]`. The total, if a reward was given for each turn."""
    turns: torch.Tensor | None = None
    """Rewards `[rollout, turn, reward]`. A reward that was not given for each turn is at the last
    turn. None: no reward was given for each turn, and turns are not needed."""
    counts: tuple[int, ...] = ()
    """Number of turns of each rollout. Empty: `turns` is None."""


def exact_where_kept(
    exact: torch.Tensor, for_trl: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards to train on, and a mask of the unchanged ones.

    The exact reward is used where TRL gets it rounded (`for_trl`), and the changed one where a
    subclass or a script changed it. All arrays are `[rollout, reward]`.
    """
    rounded = (exact.to(for_trl.dtype), exact.float().to(for_trl.dtype))
    kept = (rounded[0] == for_trl) | (rounded[1] == for_trl) | (exact.isnan() & for_trl.isnan())
    return torch.where(kept, exact, for_trl), kept


class ExactRewards:
    """Stores the return values of reward functions while TRL scores a batch.

    With `wants_turns`, the rewards of each turn are needed even if every reward is one number per
    rollout.
    """

    def __init__(self, located: Located, *, wants_turns: bool) -> None:
        self._located, self._wants_turns = located, wants_turns
        self._returned: dict[int, list[Any]] = {}
        self._totals: dict[int, list[Any]] = {}

    def watched(self, functions: Sequence[Any], names: Sequence[str]) -> list[Any]:
        pairs = zip(functions, names, strict=True)
        return [self._watched(column, *pair) for column, pair in enumerate(pairs)]

    def of_all_ranks(self, rounded: torch.Tensor, ranks: Ranks) -> Returned:
        """Return the rewards of the latest batch. Every process must call this method.

        The dtype is float64, or float32 if all rewards come from reward models. `rounded` holds the
        rewards `[rollout, reward]` that TRL gathered.
        """
        if not self._returned and not self._wants_turns:
            return Returned(rounded.cpu())
        local: Any = ranks.own(rounded.cpu())  # pyright: ignore[reportArgumentType]
        exact = local.double() if self._returned else local
        of_turns: list[dict[int, list[float]]] = [{} for _ in range(len(local))]
        for column, values in self._totals.items():
            numbers = [math.nan if value is None else float(value) for value in values]
            given = torch.tensor(numbers, dtype=torch.float64)
            same = given.to(local.dtype) == local[:, column]  # False for NaN
            exact[:, column] = torch.where(same, given, exact[:, column])
            for i, value in enumerate(self._returned[column]):
                if is_per_turn(value) and same[i]:
                    of_turns[i][column] = [float(each) for each in value]
        self._returned.clear()
        self._totals.clear()
        counts = self._located.counts
        everything: Any = gather_object(list(zip(exact.tolist(), of_turns, counts, strict=True)))
        rows, per_turn, all_counts = zip(*everything, strict=True)
        rewards = torch.tensor(rows, dtype=exact.dtype)
        if not self._wants_turns and not any(per_turn):
            return Returned(rewards)
        return Returned(rewards, spread(rewards, per_turn, all_counts), all_counts)

    def _watched(self, column: int, function: Any, name: str) -> Any:
        if isinstance(function, torch.nn.Module):
            return function
        if is_async_callable(function):

            @functools.wraps(function, updated=())
            async def later(*args: Any, **kwargs: Any) -> list[Any]:
                return self._kept(column, await function(*args, **kwargs), name)

            return later

        @functools.wraps(function, updated=())
        def now(*args: Any, **kwargs: Any) -> list[Any]:
            return self._kept(column, function(*args, **kwargs), name)

        return now

    def _kept(self, column: int, values: Any, name: str) -> list[Any]:
        """Store what a function returned. Return what TRL gets: one value per completion."""
        returned, counts = list(values), self._located.counts
        if len(returned) != len(counts):
            return returned  # TRL raises an error
        self._returned[column] = returned
        self._totals[column] = [
            total_of(name, value, i, count)
            for i, (value, count) in enumerate(zip(returned, counts, strict=True))
        ]
        return self._totals[column]
