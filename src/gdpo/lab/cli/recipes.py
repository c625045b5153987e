"""Implements `gdpo recipes`."""

from pathlib import Path

from cyclopts import App

recipes = App(name="recipes", help="List, show and copy the recipes that come with gdpo.")


@recipes.command(name="ls")
def list_recipes() -> int:
    """List the shipped recipes with their model, rewards and estimator."""
    from rich.table import Table

    from gdpo._terminal import say, terminal
    from gdpo.lab.recipes.read import read_recipe
    from gdpo.lab.recipes.starter import shipped_recipes

    table = Table("recipe", "model", "rewards", "estimator")
    for name, folder in shipped_recipes().items():
        recipe = read_recipe(folder)
        rewards = ", ".join(reward.name for reward in recipe.rewards)
        table.add_row(name, recipe.model, rewards, recipe.advantage)
    console = terminal()
    console.print(table)
    say(
        console,
        "To print a recipe and its README: gdpo recipes show NAME. To copy a recipe: gdpo recipes "
        "copy NAME",
    )
    return 0


@recipes.command
def show(name: str, /) -> int:
    """Print a recipe and its README.

    Args:
        name: Name of the recipe, as in `gdpo recipes ls`.
    """
    from rich.markdown import Markdown

    from gdpo._terminal import say, terminal
    from gdpo.lab.recipes.starter import shipped_recipe

    folder = shipped_recipe(name)
    console = terminal()
    console.print(Markdown((folder / "README.md").read_text("utf-8")))
    console.rule("recipe.yaml")
    say(console, (folder / "recipe.yaml").read_text("utf-8"))
    return 0


@recipes.command
def copy(name: str, folder: Path | None = None, /) -> int:
    """Copy a recipe and its README to a new folder.

    Args:
        name: Name of the recipe, as in `gdpo recipes ls`.
        folder: Destination folder, which must not exist. Default: the recipe's name.
    """
    from gdpo._terminal import say, terminal
    from gdpo._text import command
    from gdpo.lab.recipes.starter import copy_recipe

    copied = copy_recipe(name, folder or Path(name))
    say(terminal(), f"copied to {copied}. Next: {command('check', [copied], {})}")
    return 0
