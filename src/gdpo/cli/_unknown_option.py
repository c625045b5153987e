"""What is said of an option that there is not."""

from difflib import get_close_matches
from typing import Any

from cyclopts import CycloptsError, CycloptsPanel, UnknownOptionError
from rich.panel import Panel

_SURE = 0.8
"""Likeness from which on an option is meant; below it, a key of the recipe may be."""


def error_panel(error: CycloptsError) -> Panel:
    """The panel of a mistake on the command line.

    Options of other trainers, such as `--max-steps`, are keys of a recipe here.
    """
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        error = CycloptsError(msg=_told(option, error.argument_collection))
    return CycloptsPanel(error)


def _told(option: str, arguments: Any) -> str:
    name = option.lstrip("-")
    options = [each[2:] for argument in arguments for each in argument.names if each[:2] == "--"]
    meant = _near(name, options, _SURE) or _set(name, options) or _near(name, options, 0.6)
    return f"Unknown option: {option}." + (f" Did you mean {meant}?" if meant else "")


def _near(name: str, options: list[str], likeness: float) -> str:
    near = get_close_matches(name, options, n=1, cutoff=likeness)
    return f"--{near[0]}" if near else ""


def _set(name: str, options: list[str]) -> str:
    """How a recipe's key of this name is set, where the verb takes a recipe."""
    if "set" not in options:
        return ""
    from gdpo.recipes.read import recipe_key

    key = recipe_key(name.replace("-", "_"))
    return f"--set {key}=..." if key else ""
