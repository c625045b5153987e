"""Finds rewards and gates by the names used in recipes, framework configurations and rescoring."""

from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from inspect import signature
from typing import Any

from gdpo._naming import find, refuse_unknown
from gdpo.errors import ConfigError, GdpoError, boundary, spelled
from gdpo.rewards.gates import Gate
from gdpo.rewards.reward import Reward

BUILT_IN = {
    "token_limit": "gdpo.rewards.length:token_limit",
    "soft_overlong": "gdpo.rewards.length:soft_overlong",
    "token_range": "gdpo.rewards.length:token_range",
    "maths_answer": "gdpo.rewards.maths:maths_answer",
    "pass_rate": "gdpo.lab.rewards.code:pass_rate",
    "pass_all": "gdpo.lab.rewards.code:pass_all",
    "no_bug": "gdpo.lab.rewards.code:no_bug",
}
"""Maps the recipe names of the rewards that do not belong to a task to the rewards' locations."""

_PLAIN = (
    "is a plain function. Wrap it: `Reward('name', function, low=0, high=1)`, where "
    "function(completion, reference) scores one completion"
)


def find_reward(name: str, options: Mapping[str, Any], of_task: Mapping[str, Reward]) -> Reward:
    """Return the reward with this name. If the name refers to a factory, call it with the options.

    The name is a reward of the task, which takes precedence, a key in `BUILT_IN`, or
    `module:attribute`.
    """
    place = name if name in of_task else BUILT_IN.get(name, name)
    found = find(place, dict.fromkeys(BUILT_IN) | dict(of_task), "reward")
    if callable(found) and not isinstance(found, Reward):
        if not options and _scores(found):
            raise ConfigError(f"reward {name!r} {_PLAIN}")
        found = make(f"reward {name!r}", found, options)
    elif options:
        raise ConfigError(
            f"reward {name!r} takes no options, because it is a gdpo.Reward and not a function "
            "that returns one. Remove `options`"
        )
    if not isinstance(found, Reward):
        raise ConfigError(
            f"reward {name!r} is, or its function returned, a {type(found).__name__} instead of a "
            "gdpo.Reward. If the function scores completions itself, it " + _PLAIN
        )
    return found


def make(what: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call a user's function with these options, and return the result.

    `what` describes the function in error messages.
    """
    try:
        signature(function).bind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what}: {getattr(function, '__name__', 'the function')}{signature(function)} does "
            f"not accept the options {dict(options)}: {error}. It must be a gdpo.Reward, or a "
            "function that returns one for these options"
        ) from error
    with boundary(
        ConfigError,
        lambda error: (
            f"{what}: creating it with the options {dict(options)} failed with {spelled(error)}. "
            f"If the function scores completions itself, it {_PLAIN}"
        ),
        passed=GdpoError,
    ):
        return function(**options)


def read_gates(gates: Any) -> dict[str, Gate]:
    """Return the gates in a configuration that maps reward names to the fields of `Gate`."""
    allowed = [field.name for field in dataclass_fields(Gate)]
    for name, fields in gates.items() if isinstance(gates, Mapping) else ():
        keys = fields if isinstance(fields, Mapping) else ()
        refuse_unknown(keys, allowed, f"gates: {name}: unknown key")
    try:
        return {name: Gate(**fields) for name, fields in (gates or {}).items()}
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"gates must have the form {{length: {{on: correct, at_least: 1}}}}, and may add "
            f"otherwise: missing and of: group; got {gates!r}"
        ) from error


def _scores(function: Callable[..., Any]) -> bool:
    try:
        arguments = signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    return not arguments.keys().isdisjoint({"completion", "completions", "reference"})
