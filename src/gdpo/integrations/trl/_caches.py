"""Defines caches for generation and training, whose prompts are read once and repeated.

Only this module and `_sampling.py` use private parts of transformers.
"""

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

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

    It copies rows of the layer that contains the prompts, which is emptied to free its memory. The
    layer cannot be cropped or reset.
    """

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, *, longest: int) -> None:
        super().__init__()
        keys, values = layer.keys, layer.values
        assert keys is not None, "the layer contains no prompts"
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
        *args: Any,  # noqa: ARG002  signature of transformers' caches
        **kwargs: Any,  # noqa: ARG002
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
        size = max(self._length, min(self._length + ROOM, self._longest))
        larger = states.new_empty((*states.shape[:-2], size, states.shape[-1]))
        larger[..., : states.shape[-2], :] = states
        return larger

    def _show(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = self._all_keys[..., : self._length, :]
        self.values = self._all_values[..., : self._length, :]
        return self.keys, self.values


class PromptLayer(DynamicLayer):
    """Stores the keys and values of prompts, with their autograd graph.

    With gradient checkpointing, the backward pass calls `update` again, which then stores nothing.
    """

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002  signature of transformers' caches
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of the first call, and return those of this call."""
        if not self.is_initialized:
            self.keys, self.values = key_states, value_states
            self.is_initialized = True
        return key_states, value_states


class ContinuedLayer(DynamicLayer):
    """Puts the keys and values of each row's prompt before those of the row. It stores nothing."""

    def __init__(self, prompts: PromptLayer, rows: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self._rows = prompts.keys, prompts.values, rows
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None, "the prompts were not read"
        assert self.values is not None
        keys = torch.cat([self.keys[self._rows], key_states], dim=-2)
        return keys, torch.cat([self.values[self._rows], value_states], dim=-2)


def continued(prompts: Cache, rows: torch.Tensor) -> Cache:
    layers: Any = prompts.layers
    return Cache(layers=[ContinuedLayer(layer, rows) for layer in layers])


def cache_argument(model: Any) -> str:
    """Return the cache argument's name: `cache`, or `past_key_values` before transformers 5.24."""
    parameters = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


_KEEPS_CACHE = "_can_checkpoint_with_cache"
"""Attribute of transformers' layers. True: gradient checkpointing does not drop the cache."""


@contextmanager
def caches_in_checkpoints(model: Any) -> Generator[None]:
    layers = [layer for layer in model.modules() if hasattr(layer, _KEEPS_CACHE)]
    for layer in layers:
        setattr(layer, _KEEPS_CACHE, True)
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop(_KEEPS_CACHE, None)
