"""Keys and values with room to grow: a decoding step writes one position of them.

transformers' own layer concatenates, which copies all positions so far in every step.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

ROOM = 32
"""Positions that are added at once when there is no room left."""


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` whose keys and values are the beginning of larger tensors.

    For a decoding loop: it appends and chooses rows. It cannot be cropped or reset.

    Args:
        layer: The layer that holds the prompts. It is emptied, so that nothing is kept twice.
        rows: Its rows to take over, in this order; a row may come several times.
        longest: Positions that it will hold at most.
    """

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, *, longest: int) -> None:
        super().__init__()
        keys, values = layer.keys, layer.values
        assert keys is not None, "the prompts come before the rows"
        assert values is not None
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._longest = longest
        self._length = keys.shape[-2]
        layer.keys = layer.values = None
        self._all_keys = self._with_room(keys[rows])
        self._all_values = self._with_room(values[rows])
        self._show()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  what transformers' caches are called with
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append positions; returns the keys and values of all positions so far."""
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self._length > self._all_keys.shape[-2]:
            self._all_keys = self._with_room(self._all_keys)
            self._all_values = self._with_room(self._all_values)
        self._all_keys[..., start : self._length, :] = key_states
        self._all_values[..., start : self._length, :] = value_states
        return self._show()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in this order."""
        self._all_keys = self._all_keys[indices]
        self._all_values = self._all_values[indices]
        self._show()

    def _with_room(self, states: torch.Tensor) -> torch.Tensor:
        size = max(self._length, min(self._length + ROOM, self._longest))
        larger = states.new_empty((*states.shape[:-2], size, states.shape[-1]))
        larger[..., : states.shape[-2], :] = states
        return larger

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = self._all_keys[..., : self._length, :]
        self.values = self._all_values[..., : self._length, :]
        return self.keys, self.values
