"""Reads a recipe from its file; a mistake is told with its line and the nearest valid name."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.training._recipe import (
    ENVIRONMENT_FILE,
    RECIPE_FILE,
    RUN_NAME,
    Config,
    DataConfig,
    GateConfig,
    Recipe,
    RewardConfig,
)
from gdpo.training._resolve import resolve
from gdpo.training._yaml import Document, KeyPath, dotted, override, read_yaml

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "dict_type": "a mapping (lines of `key: value`)",
    "tuple_type": "a list",
}
"""What a value should have been, in words, by pydantic's kind of mistake."""


def load_recipe(path: str | Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Recipe:
    """Read a recipe and check all of it that needs neither data nor a model.

    Functions that make rewards are called here, and again by `train` and `check`, which resolve
    the recipe that they are given. `read_recipe` calls none.

    Args:
        path: A YAML file, or a folder that holds a `recipe.yaml` (a run directory is one).
        overrides: `a.b=value`, as `--set` takes them.
        resume: As for `read_recipe`.

    Raises:
        ConfigError: Anything is wrong. The message names the file, the line and the remedy.
        MissingExtraError: Its task needs a package that is not installed.
    """
    return resolve(read_recipe(path, overrides, resume=resume)).recipe


def read_recipe(path: str | Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Recipe:
    """Read a recipe; what it names is not looked up.

    Args:
        path: A YAML file, or a folder that holds a `recipe.yaml` (a run directory is one).
        overrides: `a.b=value`, as `--set` takes them.
        resume: The recipe is to continue a run. Then a run directory means the run that lies in
            it, also where the folder was renamed, moved or copied since its recipe was written.

    Raises:
        ConfigError: It is no YAML, or a key or a type is wrong.
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
        return _lying_in(file.parent, recipe, overrides)
    return recipe


def _lying_in(folder: Path, recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with the name and the `runs_dir` that make this folder its run directory."""
    if {text.partition("=")[0].strip() for text in overrides} & {"name", "runs_dir"}:
        return recipe  # another run was asked for by name
    with suppress(OSError, ValueError):
        if recipe.run_dir.samefile(folder):
            return recipe
    here = Path(os.path.abspath(folder))  # noqa: PTH100 (a link keeps the name that it was given)
    if not RUN_NAME.fullmatch(here.name):
        raise ConfigError(
            f"the folder {here} has no name that a run can have: rename it, with letters, digits, "
            "dot, dash and underscore"
        )
    return recipe.model_copy(update={"name": here.name, "runs_dir": str(here.parent)})


def _recipe_file(path: Path) -> Path:
    if path.is_dir():
        if not (path / RECIPE_FILE).is_file():
            raise ConfigError(f"the folder {path} holds no {RECIPE_FILE}")
        return path / RECIPE_FILE
    if not path.exists():
        folder = path.parent
        beside = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        near = f": {did_you_mean(path.name, beside)}" if beside else ""
        raise ConfigError(
            f"there is no file or folder {path}{near}. The recipes that come with gdpo: gdpo "
            "recipes ls"
        )
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


def _model_at(path: KeyPath) -> type[Config]:
    if not path:
        return Recipe
    if path[0] == "rewards":
        return GateConfig if path[-1] == "gate" else RewardConfig
    return DataConfig


def _description(path: KeyPath) -> str:
    field = _model_at(path[:-1]).model_fields[str(path[-1])]
    description = field.description or ""
    return description[:1].lower() + description[1:]
