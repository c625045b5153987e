"""Reports an unknown option and suggests the option or recipe key that was probably meant."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from cyclopts import CycloptsError, CycloptsPanel, UnknownCommandError, UnknownOptionError
from rich.panel import Panel

_SURE = 0.8
"""Similarity above which an option is suggested. Below this value, recipe keys are tried first."""


def error_panel(error: CycloptsError, note: str = "") -> Panel:
    """Return the error panel for an invalid command line.

    Users often type options of other trainers, such as `--max-steps`, which are recipe keys in
    gdpo. For an unknown option, the panel therefore also suggests recipe keys.

    Args:
        error: The error of cyclopts.
        note: What the panel says instead if the command is unknown.
    """
    if note and isinstance(error, UnknownCommandError):
        return CycloptsPanel(CycloptsError(msg=note))
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        error = CycloptsError(msg=_message(option, error.argument_collection))
    return CycloptsPanel(error)


def _message(option: str, arguments: Any) -> str:
    name = option.lstrip("-")
    options = [each[2:] for argument in arguments for each in argument.names if each[:2] == "--"]
    meant = _near(name, options, _SURE) or _set(name, options) or _near(name, options, 0.6)
    return f"Unknown option: {option}." + (f" Did you mean {meant}?" if meant else "")


def _near(name: str, options: list[str], likeness: float) -> str:
    near = get_close_matches(name, options, n=1, cutoff=likeness)
    return f"--{near[0]}" if near else ""


def _set(name: str, options: list[str]) -> str:
    """Return the --set option for the recipe key with this name.

    The result is empty if the verb has no --set option or recipes have no key with this name.
    """
    if "set" not in options:
        return ""
    key = import_module("gdpo.lab.recipes.read").recipe_key(name.replace("-", "_"))
    return f"--set {key}=..." if key else ""
