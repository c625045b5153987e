"""Memory of a training in bfloat16 on a CPU, which ever new shapes must not let grow.

Every micro-batch and every decoding step may have another shape. For products in bfloat16 oneDNN
compiles a kernel for each shape. It keeps 1,024 of them, PyTorch's layer above it (ideep) as many
once more, and one takes 0.3 to 0.6 MB. What is freed, glibc keeps for blocks that may never come
again. Here both caches are smaller, and freed memory goes back to the system after every step. No
number changes. float32 has neither kernels by shape nor this growth, and is left alone.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

KERNELS = 64
"""Kernels that each cache keeps: those of a micro-batch (about 20) and of the last decoding steps.

With 16, 64, 128 and 1,024 a step took the same time.
"""

_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN's cache and of ideep's. Kernels are freed when neither holds them any more."""


def bound_memory(trainer: Any) -> None:
    """Let the resident memory of a training in bfloat16 on a CPU stay as it is, step by step.

    Args:
        trainer: Has its model, and has computed nothing yet: the libraries read the sizes of their
            caches when they compile the first kernel. Sizes that the user has set stay.
    """
    if trainer.accelerator.device.type != "cpu" or not _in_bfloat16(trainer):
        return
    bound_kernels()
    if trim := _malloc_trim():
        trainer.add_callback(_GiveBack(trim))


def bound_kernels() -> None:
    """Let the caches hold few kernels. Sizes that the user has set stay."""
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(KERNELS))


def _in_bfloat16(trainer: Any) -> bool:
    mixed = trainer.accelerator.mixed_precision == "bf16"
    return mixed or trainer.model.dtype == torch.bfloat16


def _malloc_trim() -> Callable[[int], int] | None:
    """The function of glibc that gives freed memory back; None where there is another library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, or no symbols, or Windows
        return None


class _GiveBack(TrainerCallback):
    """Gives freed memory back to the system after every step."""

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim = trim

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._trim(0)
