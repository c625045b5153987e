"""What may be continued: the same recipe on the same data, with as many processes."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo.errors import ConfigError
from gdpo.recipes.read import read_recipe
from gdpo.recipes.recipe import Recipe, differences
from gdpo.runs.checkpoints import Checkpoint
from gdpo.runs.directory import RunDirectory, free_name

MAY_CHANGE = (
    "trainer.max_steps",
    "trainer.num_train_epochs",
    "trainer.save_steps",
    "trainer.save_total_limit",
    "save_minutes",
    "name",
    "runs_dir",
)
"""What may differ when a run is resumed: its length, how often it is saved, and where it lies.

A learning rate that falls towards the end of the run (TRL's default) is stretched over the new
length from there on, so a lengthened run is not the same as one that was as long from the start.
"""

_MUST_NOT_CHANGE: Mapping[str, tuple[str, str]] = {
    "engine": ("engine", "Go on with the engine that it was started with"),
    "processes": ("processes", "Start it with as many processes as before"),
    "rows": ("rows of data", "Give it the data that it was started with"),
    "data_digest": (
        "a digest of its data",
        "As many rows, but others, or in another order: give it the data that it was started with",
    ),
    "seed": ("seed", "Give it the seed that it was started with"),
}
"""Facts of the environment that must not change: what each is called, and what to do."""

_MAY_MATTER = ("gdpo", "torch", "trl", "transformers")
"""Packages whose version may decide what comes out."""


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
    for key, (name, remedy) in _MUST_NOT_CHANGE.items():
        if key in before and before[key] != facts[key]:
            raise ConfigError(
                f"{run.path} was started with {name} = {before[key]}, now it is {facts[key]}: its "
                f"steps would differ. {remedy} ({before.get('command')})"
            )


def refuse_without_checkpoint(run: RunDirectory, damaged: Sequence[str]) -> None:
    """Raise a ConfigError where steps were logged that no whole checkpoint can be gone on from.

    Args:
        run: The run to resume, without a whole checkpoint.
        damaged: A sentence for each damaged one.
    """
    logged, facts = run.steps_logged(), run.read_environment()
    if not logged and not damaged and "finished" not in facts:
        return
    why = "; ".join(damaged) or f"{run.checkpoints} has no complete one"
    done = (
        f"is finished after {facts.get('steps', logged):,} steps"
        if "finished" in facts
        else (f"has logged {logged:,} steps")
    )
    raise ConfigError(
        f"{run.path} {done}, and there is no whole checkpoint to go on from: {why}. Nothing was "
        "changed. Give the same command\n- with --from-scratch: the run begins again with its "
        f"first step, and what it has moves to {run.path}/dropped-<time>\n- or with --set "
        f"name={free_name(run.path)} and without --resume: another run begins"
    )


def changed_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What to say of packages that are others now than when the run was last trained; None: none.

    Args:
        before: What `environment.json` holds.
        now: The environment now.
    """
    last = [before, *before.get("resumed", [])][-1]
    old, new = (
        {"gdpo": facts.get("gdpo"), **(facts.get("packages") or {})} for facts in (last, now)
    )
    changed = [
        f"{name} {new.get(name)} (before: {old[name]})"
        for name in _MAY_MATTER
        if old.get(name) is not None and old[name] != new.get(name)
    ]
    return (
        f"resumed with {', '.join(changed)}: numbers may differ from here on" if changed else None
    )


def missing_records(run: RunDirectory, start: Checkpoint) -> list[str]:
    """What to say of a record that is gone from a run: training goes on without it."""
    notes: list[str] = []
    if not run.steps_logged():
        notes.append(
            f"{run.metrics} has no line of the first {start.step:,} steps: curves, README and "
            "report begin after them"
        )
    if not any(run.rollouts.glob("step_*.parquet")):
        notes.append(f"{run.rollouts} has no rollouts of the first {start.step:,} steps")
    return notes
