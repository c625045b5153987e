"""Looks up the task, estimator, rewards and gates of a recipe, with their options."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.advantages import AdvantageRule, resolve_estimator
from gdpo.errors import ConfigError
from gdpo.lab.recipes.recipe import Options, Recipe, RewardConfig
from gdpo.lab.tasks import Task, resolve_task
from gdpo.rewards import Gate, Reward, Scorer
from gdpo.rewards.gates import check_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import find_reward
from gdpo.rewards.scorer import OnError, check_distinct


@dataclass(frozen=True, slots=True)
class Resolved:
    """Stores a recipe and the objects that it refers to.

    Each is looked up once, because a second lookup of a reward may create a new object.
    """

    recipe: Recipe
    """The recipe, with its default rewards filled in."""
    task: Task
    rewards: tuple[Reward, ...]
    """Rewards in the recipe's order."""
    gates: Mapping[str, Gate]
    """Maps the name of each gated reward to its gate."""
    rule: AdvantageRule
    """The estimator with its options."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the rewards' names, as in logs."""
        return tuple(reward.name for reward in self.rewards)

    @property
    def weights(self) -> tuple[float, ...]:
        """Return the weights of the rewards, in the recipe's order."""
        return tuple(entry.factor for entry in self.recipe.rewards)

    @property
    def options(self) -> Options:
        """Return the options of the rule: the estimator's, and the schedules."""
        return _options(self.recipe, self.names)

    @property
    def ranges(self) -> tuple[list[float], list[float]]:
        """Return the lowest and highest value of each reward. A gated reward's range includes 0."""
        return declared_ranges(self.rewards, self.gates)

    def under(self, recipe: Recipe) -> "Resolved":
        """Return a copy with a different recipe that lists the same rewards."""
        return replace(self, recipe=recipe, rule=_rule(recipe, self.rewards, self.gates))

    def described(self) -> dict[str, Options]:
        """Return the ranges and gates of the rewards in the form that `environment.json` stores."""
        low, high = self.ranges
        return describe_rewards(self.names, low, high, self.gates)

    def scorer(self, *, on_error: OnError | None = None) -> Scorer:
        """Return the scorer of the recipe, with another `on_error` if one is given."""
        options, build = self.recipe.scorer, partial(Scorer.from_options, self.rewards)
        try:
            return build(options if on_error is None else {**options, "on_error": on_error})
        except ConfigError as error:
            place = self.recipe.place("scorer", *_culprit(build, options))
            raise ConfigError(f"{place}: {error}") from error


def resolve(recipe: Recipe | Resolved) -> Resolved:
    """Find the task, estimator and rewards of a recipe, and check their options.

    Args:
        recipe: The recipe. A `Resolved` object is returned unchanged.

    Raises:
        ConfigError: If the task, the estimator or a reward does not exist, an option is invalid, or
            two rewards share a name.
    """
    if isinstance(recipe, Resolved):
        return recipe
    with recipe.at("task"):
        task = resolve_task(recipe.task)
    with recipe.at("advantage"):
        resolve_estimator(recipe.advantage, turns=True)
    written_out = recipe.rewards or tuple(RewardConfig(name=r.name) for r in task.rewards)
    recipe = recipe.model_copy(update={"rewards": written_out})
    rewards = find_rewards(recipe, task)
    gates = _gates(recipe, rewards)
    resolved = Resolved(recipe, task, rewards, gates, _rule(recipe, rewards, gates))
    resolved.scorer()  # its options are checked
    return resolved


def _culprit(build: Callable[[Options], object], options: Options) -> list[str]:
    """Return the option without which `build` raises no ConfigError. Empty: no single option."""
    for name in options:
        with suppress(ConfigError):
            build({key: value for key, value in options.items() if key != name})
            return [name]
    return []


def _rule(recipe: Recipe, rewards: Sequence[Reward], gates: Mapping[str, Gate]) -> AdvantageRule:
    low, high = declared_ranges(rewards, gates)
    names = [reward.name for reward in rewards]
    tried: Any = None
    if ":" in recipe.advantage:  # the user's own estimator gets a tensor, as in training
        tried = [entry.factor for entry in recipe.rewards]
        with suppress(ImportError):
            import torch

            tried = torch.tensor(tried, dtype=torch.float64)

    build = partial(
        AdvantageRule, recipe.advantage, names, low=low, high=high, weights=tried, turns=True
    )
    options = _options(recipe, names)
    try:
        rule = build(options)
    except ConfigError as error:
        match _culprit(build, options):
            case ["schedules"]:
                each = options["schedules"]
                wrong = _culprit(lambda some: build(options | {"schedules": some}), each)
                first = (wrong or list(each))[0]
                place = recipe.place("rewards", names.index(first), "weight")
            case [] if ":" in recipe.advantage:
                place = recipe.place("advantage")
            case culprit:
                place = recipe.place("advantage_options", *culprit)
        raise ConfigError(f"{place}: {error}") from error
    if recipe.data.weights_column is not None:
        try:
            rule.check_prompt_weights()
        except ConfigError as error:
            place = recipe.place("data", "weights_column")
            raise ConfigError(f"{place}: data.weights_column: {error}") from error
    return rule


def _options(recipe: Recipe, names: Sequence[str]) -> Options:
    entries = zip(names, recipe.rewards, strict=True)
    schedules = {name: each.weight for name, each in entries if isinstance(each.weight, dict)}
    return recipe.advantage_options | ({"schedules": schedules} if schedules else {})


def _gates(recipe: Recipe, rewards: Sequence[Reward]) -> dict[str, Gate]:
    by_name = {reward.name: reward for reward in rewards}
    gates: dict[str, Gate] = {}
    for i, (entry, reward) in enumerate(zip(recipe.rewards, rewards, strict=True)):
        if entry.gate is None:
            continue
        with recipe.at("rewards", i, "gate", "on"):
            if entry.gate.on not in by_name:
                raise ConfigError(
                    f"the gate of {reward.name!r} refers to {entry.gate.on!r}, which is not one of "
                    f"the recipe's rewards: {did_you_mean(entry.gate.on, by_name)}. If only the "
                    "gate should use a reward, add it with weight 0"
                )
            gate = Gate(**entry.gate.model_dump())
            check_gates(list(by_name), {reward.name: gate})
            on = by_name[gate.on]
            if not on.low < gate.at_least <= on.high:
                state = "always open" if gate.at_least <= on.low else "never open"
                raise ConfigError(
                    f"the gate {gate.on} >= {gate.at_least:g} is {state}, because {gate.on} ranges "
                    f"from {on.low:g} to {on.high:g}. Set at_least to a value above {on.low:g} "
                    f"and at most {on.high:g}"
                )
            gates[reward.name] = gate
    return gates


def find_rewards(recipe: Recipe, task: Task) -> tuple[Reward, ...]:
    """Return the recipe's rewards, in the order of the recipe."""
    of_task = {reward.name: reward for reward in task.rewards}
    found: list[Reward] = []
    for i, entry in enumerate(recipe.rewards):
        with recipe.at("rewards", i, "name"):
            found.append(find_reward(entry.name, entry.options, of_task))
            check_distinct([reward.name for reward in found])
    return tuple(found)
