"""Finds what a recipe names: its task, estimator, rewards, gates and the options of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from gdpo._naming import find
from gdpo.advantages import AdvantageRule, resolve_estimator
from gdpo.errors import ConfigError, GdpoError
from gdpo.recipes.recipe import Recipe, RewardConfig
from gdpo.rewards import (
    BUILT_IN,
    Gate,
    OnError,
    Reward,
    Scorer,
    check_distinct,
    check_gates,
    declared_ranges,
)
from gdpo.rewards._declared import describe_rewards
from gdpo.tasks import Task, resolve_task


@dataclass(frozen=True, slots=True)
class Resolved:
    """A recipe and what it names, found once: to find a reward again may make another one."""

    recipe: Recipe
    """With its rewards written out."""
    task: Task
    rewards: tuple[Reward, ...]
    """In the recipe's order."""
    gates: Mapping[str, Gate]
    """By the name of the gated reward."""


def resolve(recipe: Recipe) -> Resolved:
    """Find the task, the estimator and the rewards of a recipe, and check the options of each.

    Raises:
        ConfigError: One of them does not exist, or two rewards share a name.
    """
    task = find_task(recipe)
    try:
        resolve_estimator(recipe.advantage)
    except ConfigError as error:
        raise ConfigError(f"{recipe.place('advantage')}: {error}") from error
    written_out = recipe.rewards or tuple(RewardConfig(name=r.name) for r in task.rewards)
    recipe = recipe.model_copy(update={"rewards": written_out})
    rewards = find_rewards(recipe, task)
    _check_gates(recipe, rewards)
    _check_options(recipe, rewards)
    scorer_of(recipe, rewards)
    return Resolved(recipe, task, rewards, gates_of(recipe, rewards))


def scorer_of(
    recipe: Recipe, rewards: Sequence[Reward], *, on_error: OnError | None = None
) -> Scorer:
    """The scorer that the recipe describes. It starts nothing before it scores.

    Args:
        recipe: Whose `scorer` is meant.
        rewards: What the recipe rewards.
        on_error: Instead of the recipe's.

    Raises:
        ConfigError: An option of it is wrong.
    """
    instead = {} if on_error is None else {"on_error": on_error}
    try:
        return Scorer.from_options(rewards, {**recipe.scorer, **instead})
    except ConfigError as error:
        named = [name for name in recipe.scorer if name in str(error)]
        raise ConfigError(f"{recipe.place('scorer', *named[:1])}: {error}") from error


def gates_of(recipe: Recipe, rewards: Sequence[Reward]) -> dict[str, Gate]:
    """The gates of the recipe, by the name of the gated reward."""
    pairs = zip(recipe.rewards, rewards, strict=True)
    gated = ((reward.name, entry.gate) for entry, reward in pairs if entry.gate is not None)
    return {name: Gate(gate.on, gate.at_least) for name, gate in gated}


def describe(recipe: Recipe, rewards: Sequence[Reward]) -> dict[str, dict[str, Any]]:
    """Return the ranges and gates of the rewards, as a run keeps them."""
    gates = gates_of(recipe, rewards)
    low, high = declared_ranges(rewards, gated=gates)
    return describe_rewards([reward.name for reward in rewards], low, high, gates)


def _check_options(recipe: Recipe, rewards: Sequence[Reward]) -> None:
    low, high = declared_ranges(rewards, gated=gates_of(recipe, rewards))
    try:
        AdvantageRule(
            recipe.advantage,
            [reward.name for reward in rewards],
            recipe.advantage_options,
            low=low,
            high=high,
        )
    except ConfigError as error:
        raise ConfigError(f"{_place_of(recipe, str(error))}: {error}") from error


def _place_of(recipe: Recipe, message: str) -> str:
    """Where the option was given that the message is about, or all of them."""
    named = [name for name in recipe.advantage_options if name in message]
    return recipe.place("advantage_options", *named[:1])


def _check_gates(recipe: Recipe, rewards: Sequence[Reward]) -> None:
    by_name = {reward.name: reward for reward in rewards}
    for i, (entry, reward) in enumerate(zip(recipe.rewards, rewards, strict=True)):
        if entry.gate is None:
            continue
        try:
            _refuse_unlisted_gate(recipe, rewards, reward.name, entry.gate.on)
            gate = Gate(entry.gate.on, entry.gate.at_least)
            check_gates(list(by_name), {reward.name: gate})
            _refuse_constant_gate(gate, by_name[gate.on])
        except ConfigError as error:
            place = recipe.place("rewards", i, "gate", "on")
            raise ConfigError(f"{place}: {error}") from error


def _refuse_unlisted_gate(recipe: Recipe, rewards: Sequence[Reward], gated: str, on: str) -> None:
    """A gate goes by the names of what the recipe rewards, as logs have them."""
    names = [reward.name for reward in rewards]
    if on in names:
        return
    for entry, reward in zip(recipe.rewards, rewards, strict=True):
        if entry.name == on:
            raise ConfigError(
                f"the gate of {gated!r} names {on!r}, which is called {reward.name!r} here: write "
                f"`on: {reward.name}`"
            )
    if ":" in on or on in BUILT_IN or find_task(recipe).reward(on) is not None:
        raise ConfigError(
            f"the gate of {gated!r} names {on!r}, which this recipe does not reward; list it, with "
            f"weight 0 if it should only gate: {{name: {on}, weight: 0}}. Rewarded: "
            f"{', '.join(names)}"
        )


def _refuse_constant_gate(gate: Gate, on: Reward) -> None:
    if not on.low < gate.at_least <= on.high:
        state = "always open" if gate.at_least <= on.low else "never open"
        raise ConfigError(
            f"a gate at {gate.on} >= {gate.at_least:g} is {state}: {gate.on} ranges from "
            f"{on.low:g} to {on.high:g}"
        )


def find_task(recipe: Recipe) -> Task:
    """The task that the recipe names."""
    try:
        return resolve_task(recipe.task)
    except ConfigError as error:
        raise ConfigError(f"{recipe.place('task')}: {error}") from error


def find_rewards(recipe: Recipe, task: Task) -> tuple[Reward, ...]:
    """The rewards that the recipe names, in its order.

    Raises:
        ConfigError: One does not exist, is no `Reward`, or two share a name.
    """
    found: list[Reward] = []
    for i, entry in enumerate(recipe.rewards):
        place = recipe.place("rewards", i, "name")
        try:
            found.append(_find_reward(entry, task))
            check_distinct([reward.name for reward in found])
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    return tuple(found)


def _find_reward(entry: RewardConfig, task: Task) -> Reward:
    name = entry.name
    of_task = {reward.name: reward for reward in task.rewards}
    if name in BUILT_IN and name not in of_task:
        reward = find(BUILT_IN[name], {}, "reward")
    else:
        reward = find(name, dict.fromkeys(BUILT_IN) | of_task, "reward")
    if callable(reward) and not isinstance(reward, Reward):
        reward = _made(name, reward, entry.options)
    elif entry.options:
        raise ConfigError(f"reward {name!r} takes no options: it is made already")
    if not isinstance(reward, Reward):
        raise ConfigError(
            f"reward {name!r} is of type {type(reward).__name__}; it must be a gdpo.Reward, as in: "
            f"mine = Reward('mine', function, low=0, high=1), or a function that returns one"
        )
    return reward


def _made(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Reward:
    """What a function makes of the options of a reward."""
    if not options and _scores(function):
        raise ConfigError(f"reward {name!r} {_PLAIN}")
    try:
        signature(function).bind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"reward {name!r}: it must be a gdpo.Reward, or a function that returns one; "
            f"{getattr(function, '__name__', 'this one')}{signature(function)} does not take the "
            f"options {dict(options)}: {error}"
        ) from error
    try:
        made = function(**options)
    except GdpoError:
        raise
    except Exception as error:
        raise ConfigError(
            f"reward {name!r}: making it with the options {dict(options)} failed with "
            f"{type(error).__name__}: {error}. If the function scores completions itself, it "
            f"{_PLAIN}"
        ) from error
    if not isinstance(made, Reward):
        raise ConfigError(
            f"reward {name!r} gave something of type {type(made).__name__}, and it must be a "
            "function that returns a gdpo.Reward. If the function scores completions itself, it "
            f"{_PLAIN}"
        )
    return made


_PLAIN = (
    "is a plain function. Wrap it: `Reward('name', function, low=0, high=1)`, where "
    "function(completion, reference) scores one completion"
)


def _scores(function: Callable[..., Any]) -> bool:
    """Whether a function, by what its arguments are called, scores completions itself."""
    try:
        arguments = signature(function).parameters
    except (TypeError, ValueError):  # some of C's have no signature to look at
        return False
    return not arguments.keys().isdisjoint({"completion", "completions", "reference"})
