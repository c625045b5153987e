"""Implements `gdpo init`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def init(folder: Annotated[Path, Parameter(show_default=False)] = Path(), /) -> int:
    """Create a small starter project that can be trained on a laptop.

    Writes a recipe, a task, a reward, 40 problems and a tiny model for each of 5 seeds, which takes
    about 20 s. `gdpo train recipe.yaml` trains a model offline in under a minute on a CPU, and
    `gdpo compare recipe.yaml` compares GDPO with GRPO. Replace the model, the problems and the
    rewards with your own. Existing files are never overwritten.

    Args:
        folder: Folder for the project. The folder is created if it does not exist. Default: the
            current folder.
    """
    import shlex

    from gdpo._terminal import say, terminal
    from gdpo.lab.recipes.starter import FILES, write_project

    console = terminal()
    with console.status("making tiny models"):
        paths = write_project(folder)
    say(console, *(f"{path}: {FILES[path.name]}" for path in paths))
    end = "-- " if str(folder).startswith("-") else ""
    inside = "" if folder == Path() else f"cd {end}{shlex.quote(str(folder))} && "
    say(
        console,
        f"Next: {inside}gdpo check recipe.yaml && gdpo train recipe.yaml\n"
        "Then, to compare gdpo with grpo: gdpo compare recipe.yaml",
    )
    return 0
