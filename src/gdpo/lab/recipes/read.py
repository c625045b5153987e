"""Reads a recipe from its file."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gdpo._naming import did_you_mean, nearest
from gdpo.errors import ConfigError
from gdpo.lab.recipes.recipe import (
    ENVIRONMENT_FILE,
    RECIPE_FILE,
    RUN_NAME,
    BatchConfig,
    Config,
    DataConfig,
    GateConfig,
    LoraSettings,
    Recipe,
    RewardConfig,
)
from gdpo.lab.recipes.resolve import find_rewards, resolve
from gdpo.lab.recipes.yaml import Document, KeyPath, dotted, override, override_place, read_yaml
from gdpo.lab.tasks import resolve_task

_YAML = (".yaml", ".yml")
"""File extensions of recipes."""

_PARTS: Mapping[str, type[Config]] = {
    "batch": BatchConfig,
    "data": DataConfig,
    "eval_data": DataConfig,
    "lora": LoraSettings,
}
"""Class that defines the keys of each part of a recipe."""

_EXPECTED = {
    "string_type": "text",
    "int_type": "an integer",
    "float_type": "a number",
    "dict_type": "a mapping (lines of `key: value`)",
    "tuple_type": "a list",
}
"""Description of the expected type for each pydantic error type."""


def load_recipe(path: str | Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Recipe:
    """Read a recipe and check everything that can be checked without data or a model.

    Functions that return a reward are called here, and again by `train` and `check`. To call them
    once, pass them `resolve(read_recipe(path))`.

    Args:
        path: A YAML file, or a folder with a `recipe.yaml`, such as a run directory.
        overrides: Assignments `a.b=value`, as for `--set`. Refer to a reward by its name or index,
            as in `rewards.length.weight=0.5`.
        resume: Same as for `read_recipe`.

    Raises:
        ConfigError: If the recipe is invalid. The message gives the file, the line and a fix.
        MissingExtraError: If the task needs a package that is not installed.
    """
    return resolve(read_recipe(path, overrides, resume=resume)).recipe


def read_recipe(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    varied: Sequence[str] = (),
    resume: bool = False,
    left_out: set[str] | None = None,
) -> Recipe:
    """Read a recipe, and look up its task and rewards only if an override needs them.

    `path` and `overrides` are those of `load_recipe`. Messages call `varied` assignments `--vary`.
    With `resume` and a run directory as the path, the recipe refers to that directory, wherever it
    was moved. With `left_out`, the recipe is only shown: removed keys are no error, and those that
    have a value are added to `left_out`.

    Raises:
        ConfigError: If the file is not valid YAML, or a key or a type is wrong.
    """
    file = _recipe_file(Path(path))
    document = _spelled_out(read_yaml(file))
    for option, assignments in (("--set", overrides), ("--vary", varied)):
        for each in assignments:
            document = _spelled_out(_overridden(document, each, override_place(each, option)))
    recipe = _validated(document, left_out)
    if resume and (file.parent / ENVIRONMENT_FILE).is_file():
        return _lying_in(file.parent, recipe, overrides)
    folder, parts = file.parent, ("metrics.jsonl", "checkpoints", "rollouts")
    means_another = resume and Path(path).is_dir() and recipe.run_dir.is_dir()
    if means_another and any((folder / part).exists() for part in parts):
        raise ConfigError(
            f"{folder} looks like a run directory, but has no {ENVIRONMENT_FILE}, and its recipe "
            f"belongs to the run {recipe.run_dir}. Restore {ENVIRONMENT_FILE}, or pass "
            f"{recipe.run_dir}"
        )
    return recipe


def recipe_key(name: str) -> str | None:
    """Return the full recipe key for a bare name, as `trainer.max_steps` for `max_steps`, or None.

    Imports TRL for the fields of `trainer`.
    """
    from gdpo.lab.recipes.trainer_fields import trainer_keys

    parts = {
        "trainer": trainer_keys(),
        "batch": BatchConfig.model_fields,
        "data": DataConfig.model_fields,
        "lora": LoraSettings.model_fields,
    }
    within = {key: f"{part}.{key}" for part, keys in parts.items() for key in keys}
    keys = {**within, **{key: key for key in Recipe.model_fields}}
    near = nearest(name, keys)
    return None if near is None else keys[near]


def _spelled_out(document: Document) -> Document:
    """Return the document with each bare reward name replaced by a mapping with the key `name`."""
    rewards = document.data.get("rewards")
    if not isinstance(rewards, list):
        return document
    spelled: list[Any] = [{"name": r} if isinstance(r, str) else r for r in rewards]
    return replace(document, data={**document.data, "rewards": spelled})


def _validated(document: Document, left_out: set[str] | None = None) -> Recipe:
    try:
        recipe = Recipe.model_validate(document.data, context=left_out)
    except ValidationError as error:
        raise ConfigError(_explain(error, document)) from error
    recipe._document = document  # pyright: ignore[reportPrivateUsage]
    return recipe


def _overridden(document: Document, assignment: str, place: str) -> Document:
    """Return the document with one value replaced. The assignment may refer to a reward by name."""
    target, equals, value = assignment.partition("=")
    keys = target.strip().split(".")
    is_named = keys[0] == "rewards" and len(keys) > 1 and not keys[1].isdigit()
    if equals and is_named and isinstance(document.data.get("rewards") or [], list):
        document, position = _position(document, keys[1], place)
        keys[1] = str(position)
        assignment = f"{dotted(keys)}={value}"
    return override(document, assignment, place)


def _position(document: Document, name: str, place: str) -> tuple[Document, int]:
    """Return a document that lists its rewards explicitly, and the position of a reward in it.

    The name is that in the recipe or that in logs, where `token_limit` is `length`. Only names in
    logs need functions to be called that return a reward.
    """
    entries = document.data.get("rewards") or []
    written = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if written.count(name) == 1:
        return document, written.index(name)
    names = _reward_names(document, entries)
    if name not in names:
        raise ConfigError(f"{place}: there is no reward {name!r}: {did_you_mean(name, names)}")
    rewards = entries or list(names)
    return _spelled_out(replace(document, data={**document.data, "rewards": rewards})), names.index(
        name
    )


def _reward_names(document: Document, entries: Sequence[Any]) -> list[str]:
    """Return the names in logs of the recipe's or task's rewards, without checking other keys."""
    naming = [
        {key: entry[key] for key in ("name", "options") if key in entry}
        if isinstance(entry, dict)
        else entry
        for entry in entries
    ]
    task = {key: document.data[key] for key in ("task",) if key in document.data}
    rest = {"model": "", "data": {"source": ""}, "rewards": naming}
    recipe = _validated(replace(document, data={**task, **rest}))
    with recipe.at("task"):
        found = resolve_task(recipe.task)
    return [reward.name for reward in (find_rewards(recipe, found) or found.rewards)]


def _lying_in(folder: Path, recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with `name` and `runs_dir` set so that this folder is its run directory."""
    if {text.partition("=")[0].strip() for text in overrides} & {"name", "runs_dir"}:
        return recipe  # the user names another run
    with suppress(OSError, ValueError):
        if recipe.run_dir.samefile(folder):
            return recipe
    here = Path(os.path.abspath(folder))  # noqa: PTH100 (resolve() would replace the name of a link)
    if not RUN_NAME.fullmatch(here.name):
        raise ConfigError(
            f"the name of the folder {here} is not a valid run name. Rename the folder: use "
            "letters, digits, dots, dashes and underscores"
        )
    return recipe.model_copy(update={"name": here.name, "runs_dir": str(here.parent)})


def _recipe_file(path: Path) -> Path:
    if path.is_dir():
        if not (path / RECIPE_FILE).is_file():
            raise ConfigError(f"the folder {path} has no {RECIPE_FILE}. Pass a recipe file")
        return path / RECIPE_FILE
    if not path.exists():
        inside = sorted(path.parent.iterdir()) if path.parent.is_dir() else ()
        beside = {
            _without_ending(p.name): p.name
            for p in inside
            if p.name.endswith(_YAML) or os.path.isfile(p / RECIPE_FILE)  # noqa: PTH113 (never raises)
        }
        near = nearest(_without_ending(path.name), beside)
        meant = "" if near is None else f": did you mean {beside[near]!r}?"
        raise ConfigError(
            f"there is no file or folder {path}{meant or '.'} To list the shipped recipes, run "
            "gdpo recipes ls"
        )
    return path


def _without_ending(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def _explain(error: ValidationError, document: Document) -> str:
    """Return one line per error, with the location, the problem and the allowed values."""
    lines: list[str] = []
    for details in error.errors():
        path, kind = details["loc"], details["type"]
        place, message = document.place(path), details["msg"].removeprefix("Value error, ")
        expected = _EXPECTED.get(kind, message.removeprefix("Input should be "))
        if kind == "model_type" and path:
            keys = ", ".join(_keys_at(path))
            expected = f"a {'name, or a ' * (path[0] == 'rewards')}mapping with the keys {keys}"
        if kind == "extra_forbidden":
            lines.append(f"{place}: unknown key {dotted(path)!r}: {_meant(path)}")
        elif kind == "missing":
            field = _model_at(path[:-1]).model_fields[str(path[-1])]
            first = (field.description or "").partition("\n")[0]
            described = first[:1].lower() + first[1:]
            lines.append(f"{place}: {dotted(path)} is missing: {described}")
        elif not path or kind == "value_error":
            lines.append(f"{place}: {message}")
        elif kind != "default_factory_not_called":
            got = details["input"]
            lines.append(f"{place}: {dotted(path)} should be {expected}, got {got!r}")
    return "\n".join(lines)


def _meant(path: KeyPath) -> str:
    """Return the key that was probably meant, and the allowed keys."""
    key, allowed = str(path[-1]), _keys_at(path[:-1])
    known = did_you_mean(key, allowed, is_setting=True)
    if len(path) > 1 or nearest(key, allowed) is not None:
        return known
    within = recipe_key(key)
    return known if within is None else f"did you mean {within!r}? {known}"


def _keys_at(path: KeyPath) -> list[str]:
    """Return the allowed keys. `watch` of a reward is read as a weight, not a field."""
    model = _model_at(path)
    return [*model.model_fields, *(["watch"] if model is RewardConfig else [])]


def _model_at(path: KeyPath) -> type[Config]:
    if not path:
        return Recipe
    if path[0] == "rewards":
        return GateConfig if path[-1] == "gate" else RewardConfig
    return _PARTS[str(path[0])]
