"""Whether the disk has room for checkpoints, before a training and when it fails."""

import shutil
from pathlib import Path
from typing import Any

from gdpo.errors import ConfigError

_STATES_OF_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused")
"""Optimizers that keep two numbers for each weight. Of others a checkpoint is thought smaller."""


def checkpoint_bytes(model: Any, optimizer: str) -> int:
    """How much a checkpoint takes at least: the weights that are trained, and the optimizer's."""
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
    """Whether the disk of a folder has less room than a checkpoint takes."""
    return shutil.disk_usage(folder).free < checkpoint


def megabytes(count: int) -> str:
    """Bytes as people say them.

    >>> [megabytes(count) for count in (0, 5_200_000, 84_000_000_000)]
    ['0 MB', '5 MB', '84.0 GB']
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
