"""Defines caches for generation, whose prompts are read once and repeated.

Only this module, `_flat.py` and `_sampling.py` use private parts of transformers.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

ROW_BY_ROW = (DynamicLayer, DynamicSlidingWindowLayer)
"""Cache layers whose rows can be repeated and removed without affecting the other rows."""


def cache_not_covered(model: Any) -> str | None:
    """Return why rows of a model's cache cannot be repeated and removed, or None if they can."""
    if not model._supports_default_dynamic_cache():
        return f"{type(model).__name__} creates its own kind of cache"
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) not in ROW_BY_ROW:
            return f"the cache of {type(model).__name__} has {type(layer).__name__} layers"
    return None


ROOM = 32
"""Number of positions to add when the preallocated tensors are full."""


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` that stores keys and values in preallocated tensors.

    It copies the layer that contains the prompts, which is emptied to free its memory. The layer
    cannot be cropped or reset.
    """

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        keys, values = layer.keys, layer.values
        assert keys is not None, "the layer contains no prompts"
        assert values is not None
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._length = keys.shape[-2]
        layer.keys = layer.values = None
        self._all_keys, self._all_values = self._with_room(keys), self._with_room(values)
        self._show()

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self._length > self._all_keys.shape[-2]:
            self._all_keys = self._with_room(self._all_keys)
            self._all_values = self._with_room(self._all_values)
        self._all_keys[..., start : self._length, :] = key_states
        self._all_values[..., start : self._length, :] = value_states
        return self._show()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._all_keys = self._all_keys[indices]
        self._all_values = self._all_values[indices]
        self._show()

    def _with_room(self, states: torch.Tensor) -> torch.Tensor:
        size = self._length + ROOM
        larger = states.new_empty((*states.shape[:-2], size, states.shape[-1]))
        larger[..., : states.shape[-2], :] = states
        return larger

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = self._all_keys[..., : self._length, :]
        self.values = self._all_values[..., : self._length, :]
        return self.keys, self.values
