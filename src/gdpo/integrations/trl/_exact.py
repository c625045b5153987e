"""Keeps the float64 values that reward functions return. TRL rounds rewards to float32.

In float32, a reward that varies between 100,000 and 100,001 looks constant except for rounding.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from gdpo.integrations.trl._adapter import is_async_callable
from gdpo.integrations.trl._groups import Ranks


class ExactRewards:
    """Stores the return values of reward functions while TRL scores a batch.

    The rewards of a reward model stay as TRL computes them.
    """

    def __init__(self) -> None:
        self._returned: dict[int, list[Any]] = {}

    def watched(self, functions: Sequence[Any]) -> list[Any]:
        """Return the reward functions, wrapped so that every call stores its return values."""
        return [self._watched(column, function) for column, function in enumerate(functions)]

    def of_all_ranks(self, rounded: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        """Return the rewards of the latest batch, on the CPU.

        The dtype is float64, or float32 if all rewards come from reward models. Every process must
        call this method.

        Args:
            rounded: Rewards `[rollout, reward]` that TRL gathered. NaN means that a reward does not
                apply.
            ranks: The processes. Every process has the same number of rollouts.
        """
        if not self._returned:
            return rounded.cpu()
        local: Any = ranks.own(rounded.cpu())  # pyright: ignore[reportArgumentType]
        exact = local.double()
        for column, values in self._returned.items():
            given = torch.tensor([_number(value) for value in values], dtype=torch.float64)
            same = given.to(local.dtype) == local[:, column]  # False for NaN
            exact[:, column] = torch.where(same, given, exact[:, column])
        self._returned.clear()
        return torch.tensor(gather_object(exact.tolist()), dtype=torch.float64)

    def _watched(self, column: int, function: Any) -> Any:
        if isinstance(function, torch.nn.Module):
            return function
        if is_async_callable(function):

            @functools.wraps(function, updated=())
            async def later(*args: Any, **kwargs: Any) -> list[Any]:
                return self._kept(column, await function(*args, **kwargs))

            return later

        @functools.wraps(function, updated=())
        def now(*args: Any, **kwargs: Any) -> list[Any]:
            return self._kept(column, function(*args, **kwargs))

        return now

    def _kept(self, column: int, values: Any) -> list[Any]:
        self._returned[column] = list(values)
        return self._returned[column]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
