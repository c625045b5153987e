"""Reads, checks and deletes checkpoints.

A checkpoint is complete when its list of files has been written, and intact if every file matches
the list.
"""

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo._files import read_json, sync, write_json
from gdpo.errors import ConfigError

_NAME = re.compile(r"checkpoint-(\d+)")

LIST = "files.json"
"""Name of the file that lists the other files of a checkpoint, and is written last."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Stores the folder and the step of a complete checkpoint."""

    path: Path
    step: int
    """Number of finished optimizer steps."""


def complete(folder: Path) -> None:
    """Sync the files of a checkpoint to disk, then write the list with their sizes and digests."""
    files: dict[str, Any] = {}
    for file in _files(folder):
        sync(file)
        size, digest = file.stat().st_size, _digest(file)
        files[str(file.relative_to(folder))] = {"bytes": size, "sha256": digest}
    sync(folder)
    write_json(folder / LIST, {"files": files})
    sync(folder)
    sync(folder.parent)


def is_complete(folder: Path) -> bool:
    """Return whether a checkpoint is complete. Later damage is not detected."""
    return (folder / LIST).is_file()


def unlisted(folder: Path) -> list[Path]:
    """Return checkpoints that have no list of files but may be intact."""
    return sorted(
        path
        for path in folder.glob("checkpoint-*")
        if not is_complete(path) and (path / "trainer_state.json").is_file()
    )


def step_of(folder: Path) -> int | None:
    """Return the step in a checkpoint folder's name, or None for any other folder."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints in a folder, newest first."""
    found = [
        Checkpoint(path, step)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (step := step_of(path)) is not None and is_complete(path)
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)


def damage(checkpoint: Checkpoint) -> str | None:
    """Return what is wrong with a complete checkpoint, or None if it is intact."""
    try:
        files = read_json(checkpoint.path / LIST)["files"]
        expected = [
            (checkpoint.path / n, int(it["bytes"]), it["sha256"]) for n, it in files.items()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{LIST} cannot be read"
    if not expected:
        return f"{LIST} lists no files"
    for file, size, _ in expected:
        if not file.is_file():
            return f"{file.name} is missing"
        if file.stat().st_size != size:
            return f"{file.name} has {file.stat().st_size:,} bytes instead of {size:,}"
    for file, _, digest in expected:
        if _digest(file) != digest:
            return f"the content of {file.name} has changed"
    return None


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint, and a sentence about each unusable checkpoint."""
    damaged = [f"{path.name} has no {LIST}, so it cannot be checked" for path in unlisted(folder)]
    for checkpoint in checkpoints(folder):
        if (wrong := damage(checkpoint)) is None:
            return checkpoint, damaged
        damaged.append(f"{checkpoint.path.name} is damaged: {wrong}")
    return None, damaged


def keep_newest(folder: Path, limit: int | None, best: str | None) -> None:
    """Remove complete checkpoints except `best` and the newest `limit` (None or 0: all)."""
    if limit is None or limit < 1:
        return
    for checkpoint in checkpoints(folder)[limit:]:
        if checkpoint.path.name != best:
            shutil.rmtree(checkpoint.path)


def best_checkpoint(folder: Path) -> str | None:
    """Return the name of the best checkpoint in a checkpoint's state, or None.

    The state has a path, but the run may have been moved since.
    """
    best = read_json(folder / "trainer_state.json").get("best_model_checkpoint")
    return None if best is None else Path(best).name


def size_of(folder: Path) -> int:
    """Return the size of the files of a checkpoint, in bytes."""
    return sum(file.stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.name != LIST)


def _digest(file: Path) -> str:
    with file.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_STATES_OF_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused")
"""Optimizers that store two numbers per weight. The states of others are not counted."""


def estimate_checkpoint(model: Any, optimizer: str) -> int:
    """Estimate the size of a checkpoint in bytes: trained weights and optimizer state."""
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return trained * (3 if optimizer in _STATES_OF_ADAM else 1)


def refuse_small_disk(folder: Path, checkpoint: int, remedy: str) -> None:
    """Raise a ConfigError, with `remedy`, if the disk has no room for two checkpoints of this size.

    An old checkpoint is deleted only after the new one is complete.
    """
    free = shutil.disk_usage(folder).free
    if free < 2 * checkpoint:
        raise ConfigError(
            f"the disk that contains {folder} has {megabytes(free)} free, but two checkpoints of "
            f"this run need {megabytes(2 * checkpoint)}. Free some space, or {remedy}"
        )


def megabytes(count: int) -> str:
    """Format a number of bytes in MB or GB.

    >>> [megabytes(count) for count in (400_000, 52_000_000, 84_000_000_000)]
    ['0.4 MB', '52 MB', '84.0 GB']
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"
