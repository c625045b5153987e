"""slime and miles: the files in which they save rollouts for debugging (`.pt`).

Here and not among the readers of `gdpo.rollouts`, which never import torch.
"""

from pathlib import Path
from typing import Any

from gdpo.errors import DataError, MissingExtraError


def load_dump(path: Path) -> Any:
    """What a `.pt` file holds. Nothing but tensors, numbers and texts is ever unpickled.

    Args:
        path: Written by `--save-debug-rollout-data`.

    Raises:
        MissingExtraError: torch is not installed.
        DataError: The file holds anything else.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "train", "to read .pt files") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        kind = type(error).__name__
        raise DataError(f"it is no file of tensors, numbers and texts alone ({kind})") from error
