"""Finds what a recipe names: its task, estimator, rewards, gates and the options of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gdpo.advantages import AdvantageRule, resolve_estimator
from gdpo.errors import ConfigError
from gdpo.recipes.recipe import Recipe, RewardConfig
from gdpo.rewards import BUILT_IN, Gate, Reward, Scorer
from gdpo.rewards.gates import check_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import find_reward
from gdpo.rewards.scorer import OnError, check_distinct
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
    rule: AdvantageRule
    """The estimator with its options."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards, as logs have them."""
        return tuple(reward.name for reward in self.rewards)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the rewards, in the recipe's order."""
        return tuple(entry.weight for entry in self.recipe.rewards)

    @property
    def ranges(self) -> tuple[list[float], list[float]]:
        """Lowest and highest value of each reward; a gated one's hold the 0 of a closed gate."""
        return declared_ranges(self.rewards, gated=self.gates)

    def under(self, recipe: Recipe) -> "Resolved":
        """Return the same rewards under a recipe of other settings that names the same ones.

        Raises:
            ConfigError: An option of its estimator is wrong.
        """
        return replace(self, recipe=recipe, rule=_rule(recipe, self.rewards, self.gates))

    def described(self) -> dict[str, dict[str, Any]]:
        """Return the ranges and gates of the rewards, as a run keeps them."""
        low, high = self.ranges
        return describe_rewards(self.names, low, high, self.gates)

    def scorer(self, *, on_error: OnError | None = None) -> Scorer:
        """Return the scorer that the recipe describes. It starts nothing before it scores.

        Args:
            on_error: Instead of the recipe's.

        Raises:
            ConfigError: An option of it is wrong.
        """
        return _scorer(self.recipe, self.rewards, on_error)


def resolve(recipe: Recipe | Resolved) -> Resolved:
    """Find the task, the estimator and the rewards of a recipe, and check the options of each.

    Args:
        recipe: What is resolved already is returned as it is.

    Raises:
        ConfigError: One of them does not exist, or two rewards share a name.
    """
    if isinstance(recipe, Resolved):
        return recipe
    task = find_task(recipe)
    try:
        resolve_estimator(recipe.advantage)
    except ConfigError as error:
        raise ConfigError(f"{recipe.place('advantage')}: {error}") from error
    written_out = recipe.rewards or tuple(RewardConfig(name=r.name) for r in task.rewards)
    recipe = recipe.model_copy(update={"rewards": written_out})
    rewards = find_rewards(recipe, task)
    gates = _gates(recipe, task, rewards)
    rule = _rule(recipe, rewards, gates)
    _scorer(recipe, rewards)
    return Resolved(recipe, task, rewards, gates, rule)


def _scorer(recipe: Recipe, rewards: Sequence[Reward], on_error: OnError | None = None) -> Scorer:
    instead = {} if on_error is None else {"on_error": on_error}
    try:
        return Scorer.from_options(rewards, {**recipe.scorer, **instead})
    except ConfigError as error:
        named = [name for name in recipe.scorer if name in str(error)]
        raise ConfigError(f"{recipe.place('scorer', *named[:1])}: {error}") from error


def _rule(recipe: Recipe, rewards: Sequence[Reward], gates: Mapping[str, Gate]) -> AdvantageRule:
    low, high = declared_ranges(rewards, gated=gates)
    names = [reward.name for reward in rewards]
    try:
        return AdvantageRule(recipe.advantage, names, recipe.advantage_options, low=low, high=high)
    except ConfigError as error:
        # Where the option was given that the message is about, or all of them.
        named = [name for name in recipe.advantage_options if name in str(error)]
        place = recipe.place("advantage_options", *named[:1])
        raise ConfigError(f"{place}: {error}") from error


def _gates(recipe: Recipe, task: Task, rewards: Sequence[Reward]) -> dict[str, Gate]:
    by_name = {reward.name: reward for reward in rewards}
    gates: dict[str, Gate] = {}
    for i, (entry, reward) in enumerate(zip(recipe.rewards, rewards, strict=True)):
        if entry.gate is None:
            continue
        try:
            _refuse_unlisted_gate(recipe, task, rewards, reward.name, entry.gate.on)
            gate = Gate(entry.gate.on, entry.gate.at_least)
            check_gates(list(by_name), {reward.name: gate})
            _refuse_constant_gate(gate, by_name[gate.on])
            gates[reward.name] = gate
        except ConfigError as error:
            place = recipe.place("rewards", i, "gate", "on")
            raise ConfigError(f"{place}: {error}") from error
    return gates


def _refuse_unlisted_gate(
    recipe: Recipe, task: Task, rewards: Sequence[Reward], gated: str, on: str
) -> None:
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
    if ":" in on or on in BUILT_IN or task.reward(on) is not None:
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
    of_task = {reward.name: reward for reward in task.rewards}
    found: list[Reward] = []
    for i, entry in enumerate(recipe.rewards):
        place = recipe.place("rewards", i, "name")
        try:
            found.append(find_reward(entry.name, entry.options, of_task))
            check_distinct([reward.name for reward in found])
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    return tuple(found)
