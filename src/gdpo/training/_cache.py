"""Things that are made once per user and kept: in `$XDG_CACHE_HOME/gdpo`, or `~/.cache/gdpo`."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


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
