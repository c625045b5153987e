"""Resolves names: suggests the nearest valid name, and imports objects from `module:attribute`."""

import sys
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar

from gdpo._left import LEFT
from gdpo.errors import ConfigError, boundary, spelled

Named = TypeVar("Named")

_SHOWN = 100
"""Maximum number of names to list in a message."""

_searched: list[str] = []
"""Folders that `find` searches after `sys.path`."""


def search_also(folder: Path) -> None:
    """Make `find` also search this folder for modules, after `sys.path`.

    It is added to `sys.path` only when first needed: libraries search for plugins there.
    """
    _searched[:] = [str(folder)]


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that was probably meant, or None if none is similar.

    >>> nearest("gpdo", ["grpo", "gdpo"])
    'gdpo'
    >>> nearest("GDPO", ["grpo", "gdpo"])
    'gdpo'
    >>> nearest("my_rewards:brevity", ["brevity", "correctness"])
    'brevity'
    """
    names = sorted(allowed)
    attribute = (other for other in names if name.endswith(f":{other}"))
    transposed = (o for o in names if sorted(o.lower()) == sorted(name.lower()))
    return next(iter((*attribute, *transposed, *get_close_matches(name, names, n=1))), None)


def did_you_mean(name: str, allowed: Iterable[str], *, is_setting: bool = False) -> str:
    r"""Return the end of an unknown-name message: what was meant or removed, and what is allowed.

    `is_setting`: the name is a key or an option, which may have been removed, and not that of a
    user's reward.

    >>> did_you_mean("gpdo", ["grpo", "gdpo"])
    "did you mean 'gdpo'? Allowed: gdpo, grpo"
    >>> did_you_mean("format", ["a\nb"])
    "Allowed: 'a\\nb'"
    """
    names = sorted(allowed)
    near = nearest(name, names)
    meant = f"did you mean {near!r}? " if near is not None else ""
    if is_setting and name in LEFT:
        meant = f"it was removed: {LEFT[name]}. "
    # Reward names can come from a file, so they may contain control characters.
    shown = [other if other.isprintable() else ascii(other) for other in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{meant}Allowed: {', '.join(shown)}{more}"


def refuse_unknown(
    names: Iterable[Any], allowed: Collection[str], what: str, *, is_setting: bool = False
) -> None:
    """Raise a ConfigError for the first of the names that is not allowed.

    `what` begins the message: "unknown option". `is_setting` is that of `did_you_mean`.
    """
    for name in names:
        if name not in allowed:
            meant = did_you_mean(str(name), allowed, is_setting=is_setting)
            raise ConfigError(f"{what} {name!r}: {meant}")


def find(name: str, known: Mapping[str, Named], what: str) -> Named | Any:
    """Return the known object with this name, or import it from `module:attribute`.

    `what` names the kind of object, such as "task". What cannot be found or imported raises a
    ConfigError.
    """
    if name in known:
        return known[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(
            f"unknown {what} {name!r}: {did_you_mean(name, known)}, or module:attribute for your "
            "own"
        )
    if not module_name or module_name.startswith("."):
        raise ConfigError(
            f"{what} {name!r} has no full module name: write it as package.module:attribute"
        )
    sys.path += [folder for folder in _searched if folder not in sys.path]
    with boundary(ConfigError, lambda e: f"{what} {name!r}: {_not_imported(module_name, e)}"):
        found: Any = import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{what} {name!r}: {getattr(found, '__name__', module_name)!r} has no {part!r}: "
                f"{did_you_mean(part, _attributes(found))}"
            )
        found = getattr(found, part)
    return found


def _attributes(found: Any) -> list[str]:
    """Return the public attributes of an object, without modules, numbers and texts."""
    return [
        name
        for name in dir(found)
        if not name.startswith("_")
        if not isinstance(getattr(found, name, None), ModuleType | float | int | str)
    ]


def _not_imported(module: str, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        return (
            f"module {module!r} cannot be imported ({error}). Install it, or put its folder on "
            "PYTHONPATH. The command line also searches the current folder"
        )
    remedy = "Install the package" if isinstance(error, ImportError) else "Fix the module"
    return (
        f"module {module!r} failed when it was imported: {spelled(error)} ({last_line(error)}). "
        f"{remedy}"
    )


def last_line(error: BaseException) -> str:
    """Return the file and line where the error was raised."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frame = extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}, line {frame.lineno}"
