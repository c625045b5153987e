"""Whether the disk has room for checkpoints, before a training and when it fails."""

import shutil
from pathlib import Path
from typing import Any

from gdpo.errors import ConfigError

_STATES_OF_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused")
"""Optimizers that keep two numbers for each weight. For others only the weights are counted."""


def estimate_checkpoint(model: Any, optimizer: str) -> int:
    """Estimate the bytes of a checkpoint: the trained weights, and what the optimizer keeps."""
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return trained * (3 if optimizer in _STATES_OF_ADAM else 1)


def refuse_small_disk(folder: Path, checkpoint: int, remedy: str) -> None:
    """Raise a ConfigError where two checkpoints have no room.

    The older one goes when the new one is complete, and not before.

    Args:
        folder: Where they will be.
        checkpoint: Bytes of one.
        remedy: What else to do than to make room.
    """
    free = shutil.disk_usage(folder).free
    if free < 2 * checkpoint:
        raise ConfigError(
            f"the disk of {folder} has {megabytes(free)} free, and two checkpoints of this run "
            f"take {megabytes(2 * checkpoint)}: make room, or {remedy}"
        )


def has_no_room(folder: Path, checkpoint: int) -> bool:
    """Return whether the disk of a folder has less room than a checkpoint takes."""
    return shutil.disk_usage(folder).free < checkpoint


def megabytes(count: int) -> str:
    """Write bytes in MB or GB.

    >>> [megabytes(count) for count in (400_000, 52_000_000, 84_000_000_000)]
    ['0.4 MB', '52 MB', '84.0 GB']
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"
