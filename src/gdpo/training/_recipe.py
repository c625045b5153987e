"""The recipe: everything that decides a training run, as one small YAML file."""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from gdpo._naming import did_you_mean, find
from gdpo.advantages import AdvantageRule, resolve_estimator
from gdpo.errors import ConfigError
from gdpo.rewards import Gate, Reward, check_distinct, check_gates, declared_ranges
from gdpo.tasks import Task, resolve_task
from gdpo.training._yaml import (
    Document,
    KeyPath,
    dotted,
    dump_yaml,
    nearest_place,
    override,
    read_yaml,
)

RECIPE_FILE = "recipe.yaml"
"""What the file is called in a folder that holds a recipe, a run directory included."""

ENVIRONMENT_FILE = "environment.json"
"""What marks a folder with a recipe as a run directory."""

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "dict_type": "a mapping (lines of `key: value`)",
    "tuple_type": "a list",
}
"""What a value should have been, in words, by pydantic's kind of mistake."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Config(BaseModel):
    """Base of the recipe's parts: immutable, and a misspelt key or a wrong type is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class DataConfig(_Config):
    """Where rows come from."""

    source: str
    """A local .jsonl, .json or .parquet file (.gz too), or the name of a dataset on the Hub."""
    subset: str | None = None
    """Configuration of a Hub dataset."""
    split: str = "train"
    """Split of a Hub dataset."""
    limit: Annotated[PositiveInt, Field(le=sys.maxsize)] | None = None
    """Use the first so many rows only."""


class GateConfig(_Config):
    """A condition under which a reward counts; elsewhere it is 0."""

    on: str
    """The reward that opens the gate, by name."""
    at_least: float
    """Its value from which on the gate is open, in its unit."""


class RewardConfig(_Config):
    """One reward and how much it counts."""

    name: str
    """One of the task's rewards, or `module:attribute` of a `gdpo.Reward`."""
    weight: float = 1.0
    """Importance, applied after each reward is normalized, or before by estimators that add the
    rewards up first. Dimensionless, finite.
    """

    gate: GateConfig | None = None
    """Counts only where another reward is reached; always if left out."""

    @field_validator("weight")
    @classmethod
    def _finite(cls, weight: float) -> float:
        if not math.isfinite(weight):
            raise ValueError(f"a weight must be a finite number, got {weight}")
        return weight


def _default_name(so_far: dict[str, Any]) -> str:
    """`gsm8k-gdpo`; of a `module:attribute`, the attribute."""
    parts = (str(so_far[key]).rpartition(":")[2] for key in ("task", "advantage"))
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


class Recipe(_Config):
    """One training run. `gdpo.training.load_recipe` reads it from a file."""

    task: str
    """A task of gdpo (`tool_calling`, `gsm8k`), or `module:attribute` of a `gdpo.tasks.Task`."""
    model: str
    """A model on the Hub, a local folder, or `smollm2-135m`."""
    data: DataConfig
    """What to train on."""
    advantage: str = "gdpo"
    """The estimator: `gdpo`, `grpo`, another of `gdpo.advantages`, or `module:attribute`."""
    advantage_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Its options; what goes by reward is a mapping by reward name."""
    name: str = Field(default_factory=_default_name)
    """The run's name: its folder under `runs_dir`."""
    eval_data: DataConfig | None = None
    """What to evaluate on during training; nothing if left out."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(strict=False)] = ()
    """What is rewarded; left out: every reward of the task, with weight 1."""
    trainer: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of TRL's GRPOConfig, for whatever should differ from its defaults."""
    runs_dir: str = "runs"
    """The folder that run directories are made in; `~` is the user's home."""

    _places: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict[KeyPath, str])
    _source: str = PrivateAttr(default="the recipe")

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name {self.name!r} cannot be a folder's name: use letters, digits, dot, dash and "
                "underscore"
            )
        if self.rewards and all(reward.weight == 0 for reward in self.rewards):
            raise ValueError("every reward has weight 0, so there is nothing to learn from")
        return self

    @property
    def run_dir(self) -> Path:
        """Where the run's files go."""
        # Unlike Path.expanduser, this leaves the home of an unknown user as it is written.
        return Path(os.path.expanduser(self.runs_dir)) / self.name  # noqa: PTH111

    @property
    def digest(self) -> str:
        """Twelve hex digits that name this exact recipe."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()[:12]

    def place(self, *path: str | int) -> str:
        """Where a value was given, for messages: `recipe.yaml:12`, or `--set model=...`."""
        return nearest_place(self._places, path, self._source)

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as a file that `load_recipe` reads."""
        return dump_yaml(self.model_dump(mode="json"))


def load_recipe(path: str | Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Recipe:
    """Read a recipe and check all of it that needs neither data nor a model.

    Args:
        path: A YAML file, or a folder that holds a `recipe.yaml` (a run directory is one).
        overrides: `a.b=value`, as `--set` takes them.
        resume: The recipe is to continue a run. Then a run directory means the run that lies in
            it, also where the folder was renamed, moved or copied since its recipe was written.

    Raises:
        ConfigError: Anything is wrong. The message names the file, the line and the remedy.
    """
    file = _recipe_file(Path(path))
    document = read_yaml(file)
    for assignment in overrides:
        document = override(document, assignment)
    try:
        recipe = Recipe.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError(_explain(error, document)) from error
    recipe._places, recipe._source = document.places, document.source  # pyright: ignore[reportPrivateUsage]
    if resume and (file.parent / ENVIRONMENT_FILE).is_file():
        recipe = _lying_in(file.parent, recipe, overrides)
    return resolve(recipe)


def _lying_in(folder: Path, recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with the name and the `runs_dir` that make this folder its run directory."""
    if {text.partition("=")[0].strip() for text in overrides} & {"name", "runs_dir"}:
        return recipe  # another run was asked for by name
    with suppress(OSError, ValueError):
        if recipe.run_dir.samefile(folder):
            return recipe
    here = Path(os.path.abspath(folder))  # noqa: PTH100 (a link keeps the name that it was given)
    if not _NAME.fullmatch(here.name):
        raise ConfigError(
            f"the folder {here} has no name that a run can have: rename it, with letters, digits, "
            "dot, dash and underscore"
        )
    return recipe.model_copy(update={"name": here.name, "runs_dir": str(here.parent)})


def resolve(recipe: Recipe) -> Recipe:
    """The recipe with its rewards written out, after its task, estimator and rewards were found.

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
    return recipe


def gates_of(recipe: Recipe, rewards: Sequence[Reward]) -> dict[str, Gate]:
    """The gates of the recipe, by the name of the gated reward."""
    pairs = zip(recipe.rewards, rewards, strict=True)
    gated = ((reward.name, entry.gate) for entry, reward in pairs if entry.gate is not None)
    return {name: Gate(gate.on, gate.at_least) for name, gate in gated}


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
            gate = Gate(entry.gate.on, entry.gate.at_least)
            check_gates(list(by_name), {reward.name: gate})
            _refuse_constant_gate(gate, by_name[gate.on])
        except ConfigError as error:
            place = recipe.place("rewards", i, "gate", "on")
            raise ConfigError(f"{place}: {error}") from error


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
            found.append(_find_reward(entry.name, task))
            check_distinct([reward.name for reward in found])
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
    return tuple(found)


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """What differs between two recipes: by dotted key, the old and the new value (None: none)."""
    before, after = (_flat(recipe.model_dump(mode="json")) for recipe in (old, new))
    keys = [*before, *(key for key in after if key not in before)]
    return {
        key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    }


def _find_reward(name: str, task: Task) -> Reward:
    reward = find(name, {reward.name: reward for reward in task.rewards}, "reward")
    if not isinstance(reward, Reward):
        raise ConfigError(
            f"reward {name!r} is a {type(reward).__name__}; it must be a gdpo.Reward, "
            f"as in: mine = Reward('mine', function, low=0, high=1)"
        )
    return reward


def _recipe_file(path: Path) -> Path:
    if path.is_dir():
        if not (path / RECIPE_FILE).is_file():
            raise ConfigError(f"the folder {path} holds no {RECIPE_FILE}")
        return path / RECIPE_FILE
    if not path.exists():
        folder = path.parent
        beside = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        near = f": {did_you_mean(path.name, beside)}" if beside else ""
        raise ConfigError(f"there is no file or folder {path}{near}")
    return path


def _explain(error: ValidationError, document: Document) -> str:
    """One line per mistake: where, what, and what is allowed."""
    lines = [
        _explain_one(details, document)
        for details in error.errors()
        if details["type"] != "default_factory_not_called"
    ]
    return "\n".join(lines)


def _explain_one(details: ErrorDetails, document: Document) -> str:
    path = details["loc"]
    place = document.place(path)
    if details["type"] == "extra_forbidden":
        allowed = _model_at(path[:-1]).model_fields
        return f"{place}: unknown key {dotted(path)!r}: {did_you_mean(str(path[-1]), allowed)}"
    if details["type"] == "missing":
        return f"{place}: {dotted(path)} is missing: {_description(path)}"
    message = details["msg"].removeprefix("Value error, ")
    if not path or details["type"] == "value_error":
        return f"{place}: {message}"
    wanted = _WANTED.get(details["type"], message.removeprefix("Input should be "))
    if details["type"] == "model_type":
        wanted = f"a mapping with the keys {', '.join(_model_at(path).model_fields)}"
    return f"{place}: {dotted(path)} should be {wanted}, got {details['input']!r}"


def _model_at(path: KeyPath) -> type[_Config]:
    if not path:
        return Recipe
    if path[0] == "rewards":
        return GateConfig if path[-1] == "gate" else RewardConfig
    return DataConfig


def _description(path: KeyPath) -> str:
    field = _model_at(path[:-1]).model_fields[str(path[-1])]
    description = field.description or ""
    return description[:1].lower() + description[1:]


def _flat(value: Any, path: KeyPath = ()) -> dict[str, Any]:
    """By dotted key; rewards by position."""
    if isinstance(value, dict) and (value or not path):
        inner = cast("dict[str, Any]", value).items()
    elif isinstance(value, list) and path == ("rewards",):
        inner = enumerate(cast("list[Any]", value))
    else:
        return {dotted(path): value}
    return {k: v for key, item in inner for k, v in _flat(item, (*path, key)).items()}
