"""Finding things by name: the nearest valid name, and objects given as `module:attribute`."""

import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar

from gdpo.errors import ConfigError

Named = TypeVar("Named")

_SHOWN = 100
"""Names that are listed."""

_searched: list[str] = []
"""Folders that `find` looks in, after all others."""


def search_also(folder: Path) -> None:
    """Let `find` look for modules in this folder, after all others.

    The folder comes onto Python's path when a module is first asked for, and not before: libraries
    look for plugins on that path, and a command that only shows a folder must run nothing in it.
    """
    _searched[:] = [str(folder)]


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The name that is probably meant, if one is near.

    >>> nearest("gpdo", ["grpo", "gdpo"])
    'gdpo'
    """
    names = sorted(allowed)
    transposed = (other for other in names if sorted(other) == sorted(name))
    return next(iter((*transposed, *get_close_matches(name, names, n=1))), None)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    r"""The end of a message about an unknown name: the nearest valid one, or all of them.

    >>> did_you_mean("gpdo", ["grpo", "gdpo"])
    "did you mean 'gdpo'? Allowed: gdpo, grpo"
    >>> did_you_mean("format", ["a\nb"])
    "Allowed: 'a\\nb'"
    """
    names = sorted(allowed)
    near = nearest(name, names)
    # A file names its rewards as it likes.
    shown = [other if other.isprintable() else ascii(other) for other in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    everything = f"Allowed: {', '.join(shown)}{more}"
    return f"did you mean {near!r}? {everything}" if near is not None else everything


def find(name: str, known: Mapping[str, Named], what: str) -> Named | Any:
    """The object of this name among the known ones, or the one at `module:attribute`.

    Args:
        name: A key of `known`, or `module:attribute` (attributes may be dotted).
        known: What goes by a short name.
        what: The kind of thing, for messages: "estimator", "task".

    Raises:
        ConfigError: There is no such name, module or attribute.
    """
    if name in known:
        return known[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(
            f"unknown {what} {name!r}: {did_you_mean(name, known)}, or your own as module:attribute"
        )
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"{what} {name!r}: module:attribute needs the full name of a module")
    sys.path += [folder for folder in _searched if folder not in sys.path]
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module: whatever it raises is its mistake
        raise ConfigError(f"{what} {name!r}: {_not_imported(module_name, error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{what} {name!r}: {getattr(found, '__name__', module_name)!r} has no {part!r}: "
                f"{did_you_mean(part, (n for n in dir(found) if not n.startswith('_')))}"
            )
        found = getattr(found, part)
    return found


def _not_imported(module: str, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        return (
            f"module {module!r} cannot be imported ({error}). It must lie on the Python path; the "
            "command line adds the folder that it is started in"
        )
    remedy = ": install it or correct it" if isinstance(error, ImportError) else ""
    return (
        f"module {module!r} failed when it was imported, with {type(error).__name__}: {error} "
        f"({_last_line(error)}){remedy}"
    )


def _last_line(error: BaseException) -> str:
    """Where it was raised: file and line."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frame = extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}, line {frame.lineno}"
