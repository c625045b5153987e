"""Reads `.pt` files with torch, which `gdpo.rollouts` never imports."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from gdpo.errors import DataError, MissingExtraError

_UNPACKED = 2**27
"""Maximum size, in bytes after decompression, of a compressed `.pt` file."""


def load_dump(path: Path) -> Any:
    """Return the contents of a `.pt` file that `--save-debug-rollout-data` wrote.

    Raises:
        DataError: If the file contains anything except tensors, numbers and text, or is compressed.
    """
    # A compressed file could decompress to an enormous size. torch does not compress its files.
    try:
        with ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
    except (BadZipFile, OSError, NotImplementedError):  # torch reports what is wrong with it
        size = 0
    if size > max(path.stat().st_size, _UNPACKED):
        raise DataError(
            f"the file has {path.stat().st_size:,} bytes on disk and {size:,} bytes unpacked, but "
            "torch does not compress files: save it again with torch.save"
        )
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "train", "to read .pt files") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        kind = type(error).__name__
        raise DataError(
            f"the file is not a torch file with only tensors, numbers and text ({kind}): write the "
            "file with --save-debug-rollout-data"
        ) from error
