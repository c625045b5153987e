"""Writes what a user starts from: a shipped recipe, or a small trainable project.

The project has a recipe, a task, a reward, problems and tiny models.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import gdpo
from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.lab.recipes.recipe import RECIPE_FILE

_PACKAGE = Path(gdpo.__file__).parent
_FOLDERS = (_PACKAGE / "_recipes", _PACKAGE.parents[1] / "recipes")
"""Folder of the recipes in an installed package, and in a clone of the repository."""


def shipped_recipes() -> dict[str, Path]:
    """Return a dict from the name of each shipped recipe to its folder."""
    for folder in _FOLDERS:
        found = {file.parent.name: file.parent for file in folder.glob(f"*/{RECIPE_FILE}")}
        if found:
            return dict(sorted(found.items()))
    raise ConfigError(f"this installation of gdpo has no recipes in {_FOLDERS[0]}. Reinstall gdpo")


def shipped_recipe(name: str) -> Path:
    """Return the folder of a shipped recipe."""
    known = shipped_recipes()
    if name not in known:
        raise ConfigError(f"there is no recipe {name!r}: {did_you_mean(name, known)}")
    return known[name]


def copy_recipe(name: str, folder: Path) -> Path:
    """Copy a shipped recipe, its README, and the folder `launch` with accelerate configurations."""
    source = shipped_recipe(name)
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} already exists, and nothing is overwritten. Choose another folder"
        )
    try:
        shutil.copytree(source, folder)
        shutil.copytree(source.parent / "launch", folder / "launch")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}. Choose another folder") from error
    return folder


MODELS = "tiny_models"
"""Folder of the models in the project."""

SEEDS = 5
"""Number of models: the default number of seeds of `gdpo compare`."""

FILES = {
    "recipe.yaml": "the recipe: model, data, rewards, batch, steps",
    "my_task.py": "the task: prompts, reference answers, the reward `correctness`",
    "my_rewards.py": "a second reward, `brevity`",
    "problems.jsonl": "40 problems, one per line",
    "warm_start.py": "the program that made the models; not needed for a real model",
    MODELS: f"a model with 86,000 parameters for each of {SEEDS} seeds; replace them with a real "
    "model in recipe.yaml",
}
"""Files that `write_project` writes, each with a description."""

_TEMPLATES = Path(__file__).parent / "_starter"
_NEEDED = ("torch", "transformers", "tokenizers")


def write_project(folder: Path) -> list[Path]:
    """Write the project to a new or existing folder, and return the paths in the order of `FILES`.

    Raises:
        ConfigError: If one of the files exists, the folder is not writable or the models cannot be
            made. Then nothing is written.
        MissingExtraError: If torch, transformers or tokenizers is not installed.
    """
    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(package, "train", "to make the models that the recipe trains")
    _refuse_existing(folder)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_all(folder)
    except BaseException as error:
        for each in made:
            with suppress(OSError):  # another process may have added files
                each.rmdir()
        if not isinstance(error, OSError):
            raise
        raise ConfigError(f"{folder} cannot be written: {error}. Choose another folder") from error
    return [folder / name for name in FILES]


def _refuse_existing(folder: Path) -> None:
    if existing := [name for name in FILES if os.path.lexists(folder / name)]:
        raise ConfigError(
            f"{folder} already has {', '.join(existing)}, and nothing is overwritten. Choose "
            "another folder: gdpo init FOLDER"
        )


def _write_all(folder: Path) -> None:
    """Write all files through a temporary folder, so that a failure leaves no files behind."""
    partial = Path(tempfile.mkdtemp(prefix=".gdpo-init.", dir=folder))
    try:
        for name in FILES:
            if name != MODELS:
                shutil.copyfile(_TEMPLATES / name, partial / name)
        _make_models(partial)
        _refuse_existing(folder)  # check again, because making the models takes seconds
        for name in FILES:
            (partial / name).rename(folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_models(folder: Path) -> None:
    program = [sys.executable, "warm_start.py", str(SEEDS)]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(
            f"{folder.parent}: the models cannot be created: {reason}. Check the free disk space, "
            "and that torch, transformers and tokenizers can be imported"
        )
