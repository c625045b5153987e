"""Opens a new run, or one to resume, if its recipe, data and processes are the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdpo._files import write_json, write_whole
from gdpo._text import command
from gdpo.errors import ConfigError
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.recipes.recipe import Recipe, differences
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.runs.checkpoints import Checkpoint, newest_whole
from gdpo.lab.runs.directory import (
    Facts,
    RunDirectory,
    RunFacts,
    create_run,
    free_name,
    read_environment,
    read_run,
    refuse_existing,
)
from gdpo.lab.runs.lock import lock

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


def check_place(recipe: Recipe, *, resume: bool) -> None:
    """Check that a recipe can start a new run, or resume its run. Nothing is changed.

    Raises:
        ConfigError: If a new run's directory exists or cannot be created, or if the run to resume
            does not exist, or was started with a different recipe.
    """
    run = RunDirectory(recipe.run_dir)
    if not resume:
        refuse_existing(run, recipe)
        return
    if not run.exists:
        raise ConfigError(
            f"there is no run {run.path} to resume ({recipe.place('name')}). To start the run, "
            "leave out --resume"
        )
    read_environment(run)
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


def open_run(resolved: Resolved, now: Facts, *, resume: bool) -> RunFacts:
    """Lock a new run or the one to resume, and read what it says.

    `now` describes this start. The lock is held until `unlock`, also after an error.

    Raises:
        ConfigError: If the environment has changed in a way that changes the batches.
    """
    if not resume:
        run = create_run(resolved.recipe, {**now, "rewards": resolved.described()})
        lock(run.path)
        return read_run(run)
    run = RunDirectory(resolved.recipe.run_dir)
    lock(run.path)
    before = read_run(run)
    then = before.environment
    for key, (name, remedy) in _MUST_NOT_CHANGE.items():
        if then.get(key) != now[key]:
            raise ConfigError(
                f"{run.path} was started with {name} = {then[key]}, but the current value is "
                f"{now[key]}, so the steps would differ. {remedy}. The run was started with: "
                f"{then.get('command')}"
            )
    return before


@dataclass(frozen=True, slots=True)
class Opened:
    """Stores a locked run as it is before training, and the checkpoint to start from."""

    facts: RunFacts
    start: Checkpoint | None = None
    resumed: Facts | None = None
    """What describes this start of a resumed run. None: the run is new or already finished."""
    done: bool = False
    """Whether the run is already finished."""
    notes: tuple[str, ...] = ()
    """Notes that are shown to the user before training starts."""

    @property
    def first(self) -> int:
        """Return the number of finished steps at the start."""
        return self.start.step if self.start else 0


def reopened(before: RunFacts, now: Facts, *, total_steps: int, from_scratch: bool) -> Opened:
    """Return the run to resume, without the files that a killed process left. No file is moved.

    Raises:
        ConfigError: If steps were logged, but no checkpoint is intact, unless `from_scratch`.
    """
    run = before.run
    if before.finished and before.environment.get("steps", 0) >= total_steps:
        return Opened(before, done=True)
    start, notes = newest_whole(run.checkpoints)
    if start is None and not from_scratch:
        _refuse_without_checkpoint(before, notes)
    if changed := _changed_versions(before.environment, now):
        notes.append(changed)
    if start:
        notes.append(f"resuming after step {start.step:,}")
    run.tidy()
    return Opened(before, start, resumed=now, notes=tuple(notes))


def set_later_aside(opened: Opened, resolved: Resolved) -> tuple[str, ...]:
    """Set aside the files that a resumed run cannot use, and record this start. Return notes.

    Call this when the trainer is built: if it cannot be built, the run keeps its later steps.
    """
    if opened.resumed is None:
        return ()
    before, step = opened.facts, opened.first
    aside = before.run.place_aside(opened.resumed["started"])
    moved = before.run.drop_after(step, before.rows, aside)
    record_resumption(before, resolved, {**opened.resumed, "at_step": step})
    if not moved:
        return ()
    later = (
        f"the records of steps {step + 1:,} to {before.logged:,} were"
        if before.logged > step
        else f"the rollouts of the unfinished step {step + 1:,} were"
    )
    return (f"{later} moved to {aside}; training repeats them",)


def _refuse_without_checkpoint(before: RunFacts, damaged: Sequence[str]) -> None:
    """Raise a ConfigError, with what is damaged, if a run without a checkpoint has logged steps."""
    run, logged = before.run, before.logged
    if not logged and not damaged and not before.finished:
        return
    why = "; ".join(damaged) or f"{run.checkpoints} has no complete checkpoint"
    done = (
        f"is finished after {before.environment.get('steps', logged):,} steps"
        if before.finished
        else f"has logged {logged:,} steps"
    )
    raise ConfigError(
        f"{run.path} {done}, but has no intact checkpoint to resume from: {why}. Nothing was "
        "changed. Rerun the same command with one of these changes:\n- add --from-scratch to "
        f"start the run over at its first step; its files are moved to {run.path}/dropped-<time>"
        f"\n- replace --resume with --set name={free_name(run.path)} to start a new run"
    )


def _changed_versions(before: Facts, now: Facts) -> str | None:
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


def record_resumption(before: RunFacts, resolved: Resolved, now: Facts) -> None:
    """Add the facts of this start to `environment.json`, and write the recipe as it is now."""
    resumed = [*before.environment.get("resumed", []), now]
    described = {**before.environment, "rewards": resolved.described(), "resumed": resumed}
    described.pop("finished", None)
    write_json(before.run.environment, described)
    write_whole(before.run.recipe, resolved.recipe.to_yaml())
