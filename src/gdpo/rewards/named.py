"""Rewards and gates by name: what recipes, frameworks' configurations and rescoring write."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from gdpo._naming import find
from gdpo.errors import ConfigError, GdpoError
from gdpo.rewards.gates import Gate
from gdpo.rewards.reward import Reward

BUILT_IN = {
    "token_limit": "gdpo.rewards.length:token_limit",
    "soft_overlong": "gdpo.rewards.length:soft_overlong",
    "token_range": "gdpo.rewards.length:token_range",
    "maths_answer": "gdpo.rewards.maths:maths_answer",
    "pass_rate": "gdpo.rewards.code:pass_rate",
    "pass_all": "gdpo.rewards.code:pass_all",
    "no_bug": "gdpo.rewards.code:no_bug",
}
"""Rewards that need no task, by the name that recipes call them: where each lies."""

_PLAIN = (
    "is a plain function. Wrap it: `Reward('name', function, low=0, high=1)`, where "
    "function(completion, reference) scores one completion"
)


def find_reward(name: str, options: Mapping[str, Any], of_task: Mapping[str, Reward]) -> Reward:
    """Return the reward of a name, made with its options where a function makes it.

    Args:
        name: One of the task's, one of `BUILT_IN`, or `module:attribute`.
        options: Arguments of the function that makes the reward.
        of_task: The task's rewards, by name; they go before the built-in ones.

    Raises:
        ConfigError: There is no such reward, it is something else, or the options do not fit.
    """
    place = name if name in of_task else BUILT_IN.get(name, name)
    found = find(place, dict.fromkeys(BUILT_IN) | dict(of_task), "reward")
    if callable(found) and not isinstance(found, Reward):
        if not options and _scores(found):
            raise ConfigError(f"reward {name!r} {_PLAIN}")
        made = make(f"reward {name!r}", found, options)
        if not isinstance(made, Reward):
            raise ConfigError(
                f"reward {name!r} gave something of type {type(made).__name__}, and it must be a "
                "function that returns a gdpo.Reward. If the function scores completions itself, "
                f"it {_PLAIN}"
            )
        return made
    if options:
        raise ConfigError(f"reward {name!r} takes no options: it is made already")
    if not isinstance(found, Reward):
        raise ConfigError(
            f"reward {name!r} is of type {type(found).__name__}; it must be a gdpo.Reward, as in: "
            f"mine = Reward('mine', function, low=0, high=1), or a function that returns one"
        )
    return found


def make(what: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return what a function makes of options.

    Args:
        what: Names the function in messages.
        function: Code of the user's, which may do anything.
        options: Its arguments, by name.

    Raises:
        ConfigError: It does not take these options, or it fails.
    """
    try:
        signature(function).bind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what}: it must be a gdpo.Reward, or a function that returns one; "
            f"{getattr(function, '__name__', 'this one')}{signature(function)} does not take the "
            f"options {dict(options)}: {error}"
        ) from error
    try:
        return function(**options)
    except GdpoError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{what}: making it with the options {dict(options)} failed with "
            f"{type(error).__name__}: {error}. If the function scores completions itself, it "
            f"{_PLAIN}"
        ) from error


def read_gates(gates: Any) -> dict[str, Gate]:
    """Return gates of a configuration: by reward name, each with `on` and `at_least`.

    Raises:
        ConfigError: It holds something else.
    """
    try:
        return {name: Gate(**fields) for name, fields in (gates or {}).items()}
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"gates must be like {{length: {{on: correct, at_least: 1}}}}, got {gates!r}"
        ) from error


def _scores(function: Callable[..., Any]) -> bool:
    """Whether a function, by what its arguments are called, scores completions itself."""
    try:
        arguments = signature(function).parameters
    except (TypeError, ValueError):  # some of C's have no signature to look at
        return False
    return not arguments.keys().isdisjoint({"completion", "completions", "reference"})
