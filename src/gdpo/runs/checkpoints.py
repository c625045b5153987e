"""Checkpoints: complete once their files are listed, and whole while every file is as listed."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo._files import sync, to_json, write_whole
from gdpo.errors import ConfigError

_NAME = re.compile(r"checkpoint-(\d+)")

LIST = "files.json"
"""Written last: it lists the other files of a checkpoint, each with its size and digest."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    """Optimizer steps done."""


def complete(folder: Path) -> None:
    """List the files of a checkpoint with size and digest, once all of them are on the disk."""
    files: dict[str, Any] = {}
    for file in _files(folder):
        sync(file)
        size, digest = file.stat().st_size, _digest(file)
        files[str(file.relative_to(folder))] = {"bytes": size, "sha256": digest}
    sync(folder)
    write_whole(folder / LIST, to_json({"files": files}, indent=2))
    sync(folder)
    sync(folder.parent)


def is_complete(folder: Path) -> bool:
    """Whether all of a checkpoint was written. Its files may have been damaged since."""
    return (folder / LIST).is_file()


def unlisted(folder: Path) -> list[Path]:
    """Checkpoints that have all that the Trainer writes, and no list of it: they may be whole."""
    return sorted(
        path
        for path in folder.glob("checkpoint-*")
        if not is_complete(path) and (path / "trainer_state.json").is_file()
    )


def step_of(folder: Path) -> int | None:
    """The step that a checkpoint's folder is named after; None: it is none."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The complete checkpoints in a folder, the newest first."""
    found = [
        Checkpoint(path, step)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (step := step_of(path)) is not None and is_complete(path)
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)


def damage(checkpoint: Checkpoint) -> str | None:
    """What is wrong with a complete checkpoint, in words; None: every file is as it was written."""
    try:
        files = json.loads((checkpoint.path / LIST).read_text(encoding="utf-8"))["files"]
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
            return f"{file.name} does not hold what was written"
    return None


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest whole checkpoint, and a sentence for each one that cannot be used."""
    damaged = [
        f"{path.name} has no {LIST}, so nothing says that it is whole" for path in unlisted(folder)
    ]
    for checkpoint in checkpoints(folder):
        if (wrong := damage(checkpoint)) is None:
            return checkpoint, damaged
        damaged.append(f"{checkpoint.path.name} is damaged: {wrong}")
    return None, damaged


def keep_newest(folder: Path, limit: int | None, also: Iterable[str | None] = ()) -> None:
    """Remove all but the newest complete checkpoints.

    Args:
        folder: Where they are.
        limit: How many stay, at least 1; None: all.
        also: Paths of others that stay; only their names count.
    """
    if limit is None or limit < 1:
        return
    others = {Path(path).name for path in also if path is not None}
    for checkpoint in checkpoints(folder)[limit:]:
        if checkpoint.path.name not in others:
            shutil.rmtree(checkpoint.path)


def best_checkpoint(folder: Path) -> str | None:
    """The path of the best checkpoint, as the Trainer noted it in this one; None: it noted none."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return state.get("best_model_checkpoint")


def size_of(folder: Path) -> int:
    """The bytes that the files of a checkpoint take."""
    return sum(file.stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.name != LIST)


def _digest(file: Path) -> str:
    with file.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
