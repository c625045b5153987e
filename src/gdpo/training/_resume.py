"""What may be continued: the same recipe on the same data, with as many processes."""

import shlex
from collections.abc import Mapping
from typing import Any

from gdpo.errors import ConfigError
from gdpo.training._read_recipe import read_recipe
from gdpo.training._recipe import Recipe, differences
from gdpo.training._run_directory import RunDirectory

MAY_CHANGE = (
    "trainer.max_steps",
    "trainer.num_train_epochs",
    "trainer.save_steps",
    "trainer.save_total_limit",
    "name",
    "runs_dir",
)
"""What may differ when a run is resumed: its length, how often it is saved, and where it lies.

A learning rate that falls towards the end of the run (TRL's default) is stretched over the new
length from there on, so a lengthened run is not the same as one that was as long from the start.
"""

_SAME: Mapping[str, str] = {
    "engine": "Go on with the engine that it was started with",
    "processes": "Start it with as many processes as before",
    "rows": "Give it the data that it was started with",
    "seed": "Give it the seed that it was started with",
}
"""Facts of the environment that must not change, and what to do where they did."""


def resume_command(run: RunDirectory) -> str:
    """What continues a run, from whatever folder it is typed in."""
    return f"gdpo train {shlex.quote(str(run.path.absolute()))} --resume"


def find_run(recipe: Recipe) -> RunDirectory:
    """The directory of the run that this recipe may continue. Nothing is changed in it.

    Raises:
        ConfigError: There is no such run, or it was started with another recipe.
    """
    run = RunDirectory(recipe.run_dir)
    if not run.exists:
        raise ConfigError(
            f"there is no run {run.path} to resume ({recipe.place('name')}); leave out --resume to "
            "start it"
        )
    run.read_environment()
    changed = {
        key: values
        for key, values in differences(read_recipe(run.recipe), recipe).items()
        if key not in MAY_CHANGE
    }
    if changed:
        shown = "\n".join(f"  {key}: {old!r} → {new!r}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"{run.path} was started with another recipe, so it cannot be resumed with this one:\n"
            f"{shown}\nResume it with its own: {resume_command(run)}; or start a new run "
            "with --set name=..."
        )
    return run


def refuse_other_circumstances(run: RunDirectory, facts: Mapping[str, Any]) -> None:
    """Raise a ConfigError where a run was started in a way that would now make other batches.

    Args:
        run: The run to resume.
        facts: The environment now.
    """
    before = run.read_environment()
    for key, remedy in _SAME.items():
        if before.get(key, facts[key]) != facts[key]:
            raise ConfigError(
                f"{run.path} was started with {key} = {before[key]}, now it is {facts[key]}: its "
                f"batches would differ. {remedy} ({before.get('command')})"
            )
