"""Writes files atomically, writes strict JSON, and manages a cache folder."""

import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically, so that no reader sees a part of it."""
    with written_whole(path, f".{path.name[:100]}.{os.getpid()}.partial") as partial:
        partial.write_text(
            text if text.endswith("\n") or not text else text + "\n", encoding="utf-8"
        )
        sync(partial)


@contextmanager
def written_whole(path: Path, name: str) -> Generator[Path]:
    """Yield a temporary path in the folder of `path`, and rename it to `path` at the end."""
    partial = path.with_name(name)
    with errors_name(path):
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def errors_name(path: Path) -> Generator[None]:
    """Add this path to any OSError, which may name a temporary file or none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return strict JSON, with null for non-finite numbers."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a file of strict JSON, atomically."""
    write_whole(path, to_json(value, indent=2))


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not valid JSON in UTF-8.
        RecursionError: If it is nested too deeply.
    """
    return json.loads(path.read_text(encoding="utf-8"))


def from_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, or None if invalid or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_full(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that a disk is full."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(isinstance(cause, OSError) and cause.errno in _FULL for cause in causes)


def plain(value: Any) -> Any:
    """Return a value as dicts, lists, numbers and strings. Non-finite numbers become None."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def package_folder(name: str) -> Path | None:
    """Return the folder of an installed package, without importing it. None: not installed."""
    spec = find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def cache_folder() -> Path:
    """Return the current user's gdpo cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gdpo"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cache folder with this name, which `make` populates if it does not exist.

    It is created atomically. Use a new name if the contents change.
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
        if not target.is_dir():  # otherwise another process has created the same folder
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target
