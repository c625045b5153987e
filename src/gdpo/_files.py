"""Writing what others read: files that are never half there, JSON that every reader takes."""

import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never half of it."""
    with written_whole(path, f".{path.name[:100]}.{os.getpid()}.partial") as partial:
        partial.write_text(
            text if text.endswith("\n") or not text else text + "\n", encoding="utf-8"
        )
        sync(partial)


@contextmanager
def written_whole(path: Path, name: str) -> Generator[Path]:
    """Give a file to write to, of this name, which takes the path's place when all is written."""
    partial = path.with_name(name)
    with errors_name(path):
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def errors_name(path: Path) -> Generator[None]:
    """Have an error of the disk name this file: a failed write names none, or a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Have the disk keep what a file, or a folder's list of names, holds now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that every reader takes: what is not finite becomes null."""
    return json.dumps(
        _finite(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str
    )


def is_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that a disk is full."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(isinstance(cause, OSError) and cause.errno in _FULL for cause in causes)


def _finite(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return value


def cache_folder() -> Path:
    """Where gdpo keeps what it made once for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdpo"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache, made first if it is not there: whole, or not at all.

    Args:
        name: Should change when what is made changes.
        make: Fills an empty folder.
    """
    target = cache_folder() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    try:
        make(partial)
        partial.chmod(0o755)
        partial.rename(target)
    except OSError:
        if (
            not target.is_dir()
        ):  # otherwise another process made it meanwhile, and it is as good as ours
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
