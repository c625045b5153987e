"""Finds and copies the recipes that come with gdpo."""

import shutil
from pathlib import Path

import gdpo
from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
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
