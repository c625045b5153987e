"""The recipes that come with gdpo."""

import shutil
from pathlib import Path

import gdpo
from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.recipes.recipe import RECIPE_FILE

_PACKAGE = Path(gdpo.__file__).parent
_FOLDERS = (_PACKAGE / "_recipes", _PACKAGE.parents[1] / "recipes")
"""In an installed package, and in a clone."""


def shipped_recipes() -> dict[str, Path]:
    """Their folders, by name.

    Raises:
        ConfigError: This installation has none.
    """
    for folder in _FOLDERS:
        found = {file.parent.name: file.parent for file in folder.glob(f"*/{RECIPE_FILE}")}
        if found:
            return dict(sorted(found.items()))
    raise ConfigError(f"this installation of gdpo has no recipes: looked in {_FOLDERS[0]}")


def shipped_recipe(name: str) -> Path:
    """The folder of one.

    Raises:
        ConfigError: There is none of this name.
    """
    known = shipped_recipes()
    if name not in known:
        raise ConfigError(f"there is no recipe {name!r}: {did_you_mean(name, known)}")
    return known[name]


def copy_recipe(name: str, folder: Path) -> Path:
    """A copy to change: recipe, README, and `launch`, configurations of accelerate.

    Args:
        name: Of the recipe.
        folder: Where the copy is to lie; it must not be there yet.

    Raises:
        ConfigError: There is no such recipe, or the folder is there.
    """
    source = shipped_recipe(name)
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} is there already, and nothing is overwritten: name another")
    try:
        shutil.copytree(source, folder)
        shutil.copytree(source.parent / "launch", folder / "launch")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}") from error
    return folder
