import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo.errors import RewardError

_ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments that TRL passes to every reward function, besides the columns of the dataset."""

_SOMETIMES = ("environments",)
"""Arguments that TRL passes only in some trainings."""

_RENAMED = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass under their own names."""


def check_parameters(name: str, function: Any, columns: Sequence[str]) -> None:
    columns = [column for column in columns if column not in _RENAMED]
    if problem := _wrong_parameters(function, [*_ALWAYS, *columns], columns):
        raise RewardError(f"reward {name!r} {problem}")


def raised(name: str, function: Any, error: Exception, passed: Mapping[str, Any]) -> RewardError:
    columns = [
        key
        for key, value in passed.items()
        if isinstance(value, list) and key not in (*_ALWAYS, *_SOMETIMES)
    ]
    if problem := _wrong_parameters(function, list(passed), columns):
        return RewardError(f"reward {name!r} {problem}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return RewardError(
        f"reward {name!r} raised {type(error).__name__}: {str(error)[:300]!r} ({frame.filename}, "
        f"line {frame.lineno}). {_remedy(error, passed, columns)}"
    )


def _remedy(error: Exception, passed: Mapping[str, Any], columns: Sequence[str]) -> str:
    if isinstance(error, KeyError) and error.args and error.args[0] not in passed:
        return (
            f"If {error.args[0]!r} is a column of the dataset, add it. The columns are: "
            f"{_listed(columns)}. If the reward does not apply to the completion, return None"
        )
    return (
        "A reward must return a number or None for every completion: catch the exception, and "
        "return None if the reward does not apply"
    )


def _wrong_parameters(function: Any, passed: Sequence[str], columns: Sequence[str]) -> str | None:
    try:
        # Not those of a function that a decorator has wrapped: the decorator may adapt the call.
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_name = {each.name: each for each in parameters if each.kind in named}
    needed = [name for name, each in by_name.items() if each.default is each.empty]
    if missing := [name for name in needed if name not in (*passed, *_SOMETIMES)]:
        return (
            f"needs the argument {_listed(missing)}, which is neither a column of the dataset nor "
            f"an argument of TRL. Add the column, or rename the parameter. Columns: "
            f"{_listed(columns)}. TRL's arguments: {_listed(_ALWAYS)}"
        )
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    if not takes_all and (refused := [name for name in passed if name not in by_name]):
        return (
            f"does not take {_listed(refused)}, which TRL passes to every reward function: add "
            "**kwargs to its parameters"
        )
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
