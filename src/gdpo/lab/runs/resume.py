"""Checks that a run is resumed with the same recipe, data and processes, and records it."""

from collections.abc import Mapping, Sequence
from typing import Any

from gdpo._files import to_json, write_whole
from gdpo._text import command
from gdpo.errors import ConfigError
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.recipes.recipe import Recipe, differences
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.runs.directory import RunDirectory, free_name

MAY_CHANGE = (
    "trainer.max_steps",
    "trainer.num_train_epochs",
    "trainer.save_steps",
    "trainer.save_total_limit",
    "save_minutes",
    "name",
    "runs_dir",
)
"""Keys that may differ when a run is resumed: length, checkpoint intervals, name and location.

A learning rate that decays until the end of the run (TRL's default) is recomputed for a new length,
so a lengthened run differs from one that had this length from the start.
"""

_MUST_NOT_CHANGE: Mapping[str, tuple[str, str]] = {
    "engine": ("engine", "Resume it with the same engine"),
    "processes": ("processes", "Resume it with the same number of processes"),
    "rows": ("rows of data", "Resume it with the data that it was started with"),
    "data_digest": (
        "a digest of its data",
        "The number of rows is the same, but their content or order differs. Resume it with the "
        "data that it was started with",
    ),
    "seed": ("seed", "Resume it with the same seed"),
}
"""Facts about the environment that must not change, each with its name and a remedy."""

_MAY_MATTER = ("gdpo", "torch", "trl", "transformers")
"""Packages whose version can change the results."""


def resume_command(run: RunDirectory) -> str:
    """Return the command that resumes a run from any folder."""
    return command("train", [run.path.absolute()], {"--resume": ""})


def find_run(recipe: Recipe) -> RunDirectory:
    """Return the directory of the run that this recipe can resume. Nothing is changed.

    Raises:
        ConfigError: If the run does not exist, or was started with a different recipe.
    """
    run = RunDirectory(recipe.run_dir)
    if not run.exists:
        raise ConfigError(
            f"there is no run {run.path} to resume ({recipe.place('name')}). To start the run, "
            "leave out --resume"
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
            f"{run.path} was started with a different recipe, so it cannot be resumed with this "
            f"recipe. Changed keys:\n{shown}\nResume the run with its own recipe: "
            f"{resume_command(run)}\nOr start a new run: --set name=... without --resume"
        )
    return run


def refuse_other_circumstances(
    run: RunDirectory, before: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Raise a ConfigError if the environment has changed in a way that changes the batches.

    `before` is the content of `environment.json`, and `facts` is the current environment.
    """
    for key, (name, remedy) in _MUST_NOT_CHANGE.items():
        if before.get(key) != facts[key]:
            raise ConfigError(
                f"{run.path} was started with {name} = {before[key]}, but the current value is "
                f"{facts[key]}, so the steps would differ. {remedy}. The run was started with: "
                f"{before.get('command')}"
            )


def refuse_without_checkpoint(
    run: RunDirectory, before: Mapping[str, Any], damaged: Sequence[str]
) -> None:
    """Raise a ConfigError, with what is damaged, if a run without a checkpoint has logged steps."""
    logged = run.steps_logged()
    if not logged and not damaged and "finished" not in before:
        return
    why = "; ".join(damaged) or f"{run.checkpoints} has no complete checkpoint"
    done = (
        f"is finished after {before.get('steps', logged):,} steps"
        if "finished" in before
        else (f"has logged {logged:,} steps")
    )
    raise ConfigError(
        f"{run.path} {done}, but has no intact checkpoint to resume from: {why}. Nothing was "
        "changed. Rerun the same command with one of these changes:\n- add --from-scratch to "
        f"start the run over at its first step; its files are moved to {run.path}/dropped-<time>"
        f"\n- replace --resume with --set name={free_name(run.path)} to start a new run"
    )


def changed_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a note about versions that have changed since the last start, or None."""
    last = [before, *before.get("resumed", [])][-1]
    old, new = (
        {"gdpo": facts.get("gdpo"), **(facts.get("packages") or {})} for facts in (last, now)
    )
    changed = [
        f"{name} {new.get(name)} (before: {old[name]})"
        for name in _MAY_MATTER
        if old.get(name) is not None and old[name] != new.get(name)
    ]
    if not changed:
        return None
    return f"resumed with {', '.join(changed)}: results may differ from here on"


def record_resumption(
    run: RunDirectory, before: Mapping[str, Any], resolved: Resolved, facts: Mapping[str, Any]
) -> None:
    """Add the facts of this start to `environment.json`, and write the recipe as it is now."""
    resumed = [*before.get("resumed", []), facts]
    described = {**before, "rewards": resolved.described(), "resumed": resumed}
    described.pop("finished", None)
    write_whole(run.environment, to_json(described, indent=2))
    write_whole(run.recipe, resolved.recipe.to_yaml())
