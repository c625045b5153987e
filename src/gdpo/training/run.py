"""Trains what a recipe describes, into a run directory, and continues what was interrupted."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from gdpo._files import is_full, to_json, write_whole
from gdpo.errors import ConfigError, GdpoError
from gdpo.recipes.batches import default_save_steps
from gdpo.recipes.data import digest_of
from gdpo.recipes.models import load_tokenizer, make_ready
from gdpo.recipes.recipe import Recipe
from gdpo.recipes.resolve import Resolved, resolve
from gdpo.runs.checkpoints import (
    Checkpoint,
    estimate_checkpoint,
    newest_whole,
    refuse_small_disk,
    size_of,
)
from gdpo.runs.directory import RunDirectory, create_run, refuse_existing
from gdpo.runs.environment import describe_environment
from gdpo.runs.lock import lock, unlock
from gdpo.runs.resume import (
    changed_versions,
    find_run,
    missing_records,
    refuse_other_circumstances,
    refuse_without_checkpoint,
    resume_command,
)
from gdpo.runs.summary import RewardChange, duration
from gdpo.training._endings import disk_full, failed, stopped, stopped_again
from gdpo.training._interrupt import Stopped, StopRequest, ending_with_the_launcher, stop_on_signal
from gdpo.training._loop import Loop, make_trainer
from gdpo.training._progress import RunView, show
from gdpo.training._quiet import quiet
from gdpo.training.finish import changes_so_far, finish_run
from gdpo.training.preflight import Job, prepare

if TYPE_CHECKING:
    from accelerate import PartialState

    from gdpo.integrations.trl.resumable import ResumableTrainer

T = TypeVar("T")

_TELLING = (OSError, ValueError, NotImplementedError, ImportError, RuntimeError)
"""Errors whose text is a sentence; that of others says little without the name of their type."""

_TOO_EARLY = "stopped before training began: there is nothing to save. Give the same command again"

_PREFLIGHT_ROWS = 64
"""Rows that the rewards are tried on before training; `gdpo check` tries all."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What `train` did."""

    run: RunDirectory
    steps: int
    """Optimizer steps that the run has behind it."""
    total_steps: int
    started_at: int
    """The step that this call began at; equal to `steps` where there was nothing left to do."""
    seconds: float
    rewards: tuple[RewardChange, ...]
    notes: tuple[str, ...] = ()
    """What the user should know: an extra that a picture needed, for one."""
    is_main_process: bool = True
    """Whether this process is the one that reports, of several that trained together."""

    @property
    def finished(self) -> bool:
        """Whether the whole run is done; otherwise it was interrupted, and can be resumed."""
        return self.steps >= self.total_steps

    @property
    def conclusion(self) -> str:
        """What was done, in one sentence."""
        if not self.finished:
            return (
                f"stopped: {self.steps:,} of {self.total_steps:,} steps are done and saved. "
                f"Continue with: {resume_command(self.run)}"
            )
        if self.steps > self.total_steps:
            return (
                f"{self.run.path} is finished: it has {self.steps:,} steps, more than the "
                f"{self.total_steps:,} that are asked for"
            )
        if self.started_at >= self.total_steps:
            return (
                f"{self.run.path} is finished: {self.steps:,} steps. To train it longer, resume it "
                "with a larger --set trainer.max_steps=..."
            )
        done = self.steps - self.started_at
        steps = "1 step" if done == 1 else f"{done:,} steps"
        return f"{steps} in {duration(self.seconds)}; everything is in {self.run.path}"


def train(
    recipe: Recipe | Resolved,
    *,
    resume: bool = False,
    from_scratch: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train a recipe in its run directory.

    Everything that can be checked is checked before a model is loaded. The first Ctrl-C (or
    SIGTERM) gives up the step that is going on, saves at once what the last finished step left, and
    returns a result that is not `finished`; a second one raises KeyboardInterrupt. Any other error
    within a step saves likewise before it is raised. Under `accelerate launch` every process calls
    this, and the main one writes.

    Args:
        recipe: What to train; `read_recipe` reads it from a file. One that is resolved already is
            not resolved again, so that the functions that make its rewards are called once.
        resume: Continue the run of this recipe from its newest whole checkpoint.
        from_scratch: With `resume`: where no checkpoint is whole, set aside what the run logged,
            and begin again with its first step. Otherwise such a run is refused.
        console: Where progress is shown. None: nowhere.

    Raises:
        ConfigError: The recipe is wrong, its run directory is taken, there is nothing to resume, or
            the disk has no room for two checkpoints.
        DataError: The data is wrong.
        RewardError: A reward broke its contract.
        MissingExtraError: A package of an extra is not installed.
        GdpoError: The disk became full, or another process of this training ended; the message
            names the step that is safe.
        KeyboardInterrupt: Stopped before training began, or a second time.
    """
    stop = StopRequest()
    with stop_on_signal(stop):
        try:
            return _train_recipe(recipe, stop, console, resume=resume, from_scratch=from_scratch)
        except GdpoError:
            raise
        except OSError as error:
            bare = recipe.recipe if isinstance(recipe, Resolved) else recipe
            run = RunDirectory(bare.run_dir)
            if is_full(error) and run.exists:
                raise disk_full(run) from error
            raise
        except KeyboardInterrupt as stopped_early:
            raise KeyboardInterrupt(str(stopped_early) or _TOO_EARLY) from stopped_early
        except Exception as error:
            if stop.requested:  # an import that is interrupted raises whatever it likes
                raise KeyboardInterrupt(_TOO_EARLY) from error
            raise


def _train_recipe(
    recipe: Recipe | Resolved,
    stop: StopRequest,
    console: Console | None,
    *,
    resume: bool,
    from_scratch: bool,
) -> RunResult:
    resolved = resolve(recipe)
    recipe = resolved.recipe
    if resume:
        find_run(recipe)
    else:
        refuse_existing(RunDirectory(recipe.run_dir), recipe)
    with quiet():
        with ending_with_the_launcher():
            job = prepare(resolved, rows=_PREFLIGHT_ROWS)
        stop.begun = True
        opened = _on_main_process(lambda: _open(job, resume=resume, from_scratch=from_scratch))
        try:
            if opened.done:
                return _result(job, opened.run, started_at=opened.run.steps_saved(), seconds=0.0)
            return _run(job, opened, stop, console if _processes().is_main_process else None)
        finally:
            unlock(job.recipe.run_dir)


@dataclass(frozen=True, slots=True)
class Opened:
    """A run's directory, ready to be written to, and what to start from."""

    run: RunDirectory
    start: Checkpoint | None = None
    is_new: bool = False
    done: bool = False
    """Whether nothing is left to do."""
    notes: tuple[str, ...] = ()
    """What the user should know before it starts."""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.start.step if self.start else 0


def _open(job: Job, *, resume: bool, from_scratch: bool) -> Opened:
    facts = {
        **describe_environment(job.batches.processes, job.config.seed),
        "engine": "trl",
        "rows": job.batches.rows,
        "data_digest": digest_of(job.problems),
        "rows_left_out": job.left_out,
        "recipe_digest": job.recipe.digest,
    }
    declared = {"rewards": job.resolved.described()}
    if resume:
        run = RunDirectory(job.recipe.run_dir)
        lock(run.path)
        try:
            return _reopen(job, run, facts, declared, from_scratch=from_scratch)
        except BaseException:
            unlock(run.path)
            raise
    run = create_run(job.recipe, facts | declared)
    lock(run.path)
    return Opened(run, is_new=True)


def _reopen(
    job: Job,
    run: RunDirectory,
    facts: Mapping[str, Any],
    declared: Mapping[str, Any],
    *,
    from_scratch: bool,
) -> Opened:
    refuse_other_circumstances(run, facts)
    before = run.read_environment()
    if before.get("finished") and before.get("steps", 0) >= job.batches.total_steps:
        return Opened(run, run.last_checkpoint(), done=True)
    start, notes = newest_whole(run.checkpoints)
    if start is None and not from_scratch:
        refuse_without_checkpoint(run, notes)
    if changed := changed_versions(before, facts):
        notes.append(changed)
    run.tidy()
    step = start.step if start else 0
    if step < job.batches.total_steps:
        aside, logged = run.place_aside(facts["started"]), run.steps_logged()
        if run.drop_after(step, aside):
            later = (
                f"the records of steps {step + 1:,} to {logged:,}"
                if logged > step
                else (f"the rollouts of step {step + 1:,}, which was not finished,")
            )
            notes.append(f"{later} are in {aside}; gdpo trains them again")
        before.pop("finished", None)
        resumed = [*before.pop("resumed", []), {**facts, "at_step": step}]
        write_whole(run.environment, to_json({**before, **declared, "resumed": resumed}, indent=2))
        write_whole(run.recipe, job.recipe.to_yaml())
    if start is not None:
        notes += missing_records(run, start)
    return Opened(run, start, notes=tuple(notes))


def _run(job: Job, opened: Opened, stop: StopRequest, console: Console | None) -> RunResult:
    run, state = opened.run, _processes()
    begun = time.monotonic()
    _say(console, f"{run.path}: ", *opened.notes)
    if opened.start:
        _say(console, f"{run.path}: ", f"resuming after step {opened.step:,}")
    if opened.step < job.batches.total_steps:
        loop, trainer = _built(job, opened, stop, console)
        if not _train(loop, trainer, opened.start, console):
            return _result(job, run, started_at=opened.step, seconds=time.monotonic() - begun)
    seconds = time.monotonic() - begun
    try:
        stop.allow()
        state.wait_for_everyone()
        notes = _on_main_process(lambda: finish_run(job, run))
    except KeyboardInterrupt as error:
        told = f"stopped; all steps are saved. Finish the run with: {resume_command(run)}"
        raise KeyboardInterrupt(told) from error
    return _result(job, run, started_at=opened.step, seconds=seconds, notes=notes)


def _say(console: Console | None, place: str, *sentences: str) -> None:
    if console is not None:
        for sentence in sentences:
            console.print(f"{place}{sentence}", markup=False, soft_wrap=True)


def _built(
    job: Job, opened: Opened, stop: StopRequest, console: Console | None
) -> tuple[Loop, "ResumableTrainer"]:
    """The loop and its trainer. Where they cannot be made, a new run does not keep its name."""
    run = opened.run
    if job.left_out:
        _say(console, f"{run.path}: ", job.left_out)
    _say(console, f"{run.path}: ", f"loading {job.model.description}", job.batches.per_step)
    try:
        loop = Loop(_with_model(job), run, _view(job, run), stop)
        with job.model.loading():
            trainer = _constructed(loop, opened.start)
        _check_disk(loop, trainer, opened.start)
    except BaseException:
        if opened.is_new and _processes().is_main_process:
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    return loop, trainer


def _check_disk(loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None) -> None:
    if trainer.saves_together:  # each process has a part of the weights, and none knows all
        return
    estimate = estimate_checkpoint(trainer.model, trainer.args.optim)
    loop.checkpoint_bytes = max(estimate, size_of(start.path) if start else 0)
    remedy = "take another folder: --set runs_dir=..."
    _on_main_process(lambda: refuse_small_disk(loop.run.path, loop.checkpoint_bytes, remedy))


def _train(
    loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None, console: Console | None
) -> bool:
    """Train; False where it was stopped before its last step, with what was finished saved."""
    loop.stop.peers = _peers()
    with show(loop.view, console) as loop.display, trainer.scorer:
        loop.stop.told = loop.display.stopping
        trainer.scorer.progress = loop.scored
        try:
            _until_it_fails(loop, trainer, start)
        except Stopped:
            stopped(loop, trainer, start)
        except KeyboardInterrupt as error:
            raise stopped_again(loop, trainer) from error
    return trainer.state.global_step >= loop.job.batches.total_steps


def _until_it_fails(loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None) -> None:
    try:
        loop.stop.allow()
        if trainer.saves_together:
            loop.stop.forbid()
        trainer.train(resume_from_checkpoint=str(start.path) if start else None)
    except Exception as error:  # noqa: BLE001 (raised again, once what is done is saved)
        failed(loop, trainer, start, error)


def _peers() -> list[int]:
    """Other processes of this training on this machine."""
    if _processes().num_processes == 1:
        return []
    from accelerate.utils import gather_object

    me = (socket.gethostname(), os.getpid())
    return [pid for host, pid in gather_object([me]) if host == me[0] and pid != me[1]]


def _view(job: Job, run: RunDirectory) -> RunView:
    entries = zip(job.resolved.rewards, job.recipe.rewards, strict=True)
    return RunView(
        name=job.recipe.name,
        rewards=[(reward.name, entry.weight) for reward, entry in entries],
        total_steps=job.batches.total_steps,
        rows=[row for row in run.read_metrics() if "loss" in row],
    )


def _with_model(job: Job) -> Job:
    """The job with its model at hand, and with the settings that its length decides."""
    with _processes().main_process_first():
        make_ready(job.model, job.recipe)
    save_steps = default_save_steps(job.batches)
    for name in ("save_steps", "eval_steps"):
        if name not in job.recipe.trainer:
            setattr(job.config, name, save_steps)
    return replace(job, tokenizer=job.tokenizer or load_tokenizer(job.model, job.recipe))


def _constructed(loop: Loop, start: Checkpoint | None) -> "ResumableTrainer":
    try:
        return make_trainer(loop, start)
    except GdpoError:
        raise
    except Exception as error:  # whatever the libraries beneath raise, the recipe asked for it
        recipe = loop.job.recipe
        text = str(error)
        if not text or not isinstance(error, _TELLING):
            text = f"{type(error).__name__}: {text}"
        raise ConfigError(
            f"{recipe.place('trainer')}: the trainer cannot be made of model {recipe.model!r} and "
            f"these settings: {text}"
        ) from error


def _result(
    job: Job, run: RunDirectory, *, started_at: int, seconds: float, notes: tuple[str, ...] = ()
) -> RunResult:
    return RunResult(
        run=run,
        steps=run.steps_saved(),
        total_steps=job.batches.total_steps,
        started_at=started_at,
        seconds=seconds,
        rewards=changes_so_far(job, run),
        notes=notes,
        is_main_process=_processes().is_main_process,
    )


def leave_processes(code: int) -> None:
    """Part from the other processes of a training, before this one ends.

    Without it, threads of the process group may still run when the interpreter goes down, and now
    and then abort it. Of a training that was stopped, the others may be anywhere: there is nothing
    to agree on, so the process ends here.

    Args:
        code: The exit code; 0: the training is finished.
    """
    state = _processes()
    if code and state.num_processes > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    state.destroy_process_group()


def _processes() -> "PartialState":
    from accelerate import PartialState

    return PartialState()


def _on_main_process(action: Callable[[], T]) -> T:
    """The main process's result of an action, in every process; its error, likewise."""
    state = _processes()
    if state.num_processes == 1:
        return action()
    from accelerate.utils import broadcast_object_list

    state.wait_for_everyone()
    result: Any = None
    error: Exception | None = None
    if state.is_main_process:
        try:
            result = action()
        except Exception as mistake:  # noqa: BLE001 (raised again, once the others know of it)
            error = mistake
    shared: list[Any] = [result, None if error is None else str(error)]
    broadcast_object_list(shared)
    if shared[1] is not None:
        raise error or ConfigError(shared[1])
    return shared[0]
