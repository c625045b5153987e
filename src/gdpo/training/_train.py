"""Trains what a recipe describes, into a run directory, and continues what was interrupted."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from gdpo._files import to_json, write_whole
from gdpo.errors import ConfigError, DataError, GdpoError
from gdpo.training._batch import default_save_steps
from gdpo.training._environment import describe_environment
from gdpo.training._finish import changes_so_far, finish_run
from gdpo.training._interrupt import stop_on_signal
from gdpo.training._lock import lock, unlock
from gdpo.training._loop import Loop, make_trainer
from gdpo.training._models import load_tokenizer, make_ready
from gdpo.training._noise import quiet
from gdpo.training._preflight import Job, prepare
from gdpo.training._progress import RunView, duration, show
from gdpo.training._recipe import Recipe
from gdpo.training._resolve import describe, resolve
from gdpo.training._resume import find_run, refuse_other_circumstances, resume_command
from gdpo.training._run_directory import Checkpoint, RunDirectory, create_run, refuse_existing
from gdpo.training._summary import RewardChange

if TYPE_CHECKING:
    from accelerate import PartialState

T = TypeVar("T")

_TELLING = (OSError, ValueError, NotImplementedError, ImportError, RuntimeError)
"""Errors whose text is a sentence; that of others says little without the name of their type."""

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
                f"stopped after step {self.steps} of {self.total_steps}; everything up to it is "
                f"saved. Continue with: {resume_command(self.run)}"
            )
        if self.started_at >= self.total_steps:
            return (
                f"{self.run.path} is finished: {self.steps:,} steps. To train it longer, resume it "
                "with a larger --set trainer.max_steps=..."
            )
        done = self.steps - self.started_at
        steps = "1 step" if done == 1 else f"{done:,} steps"
        return f"{steps} in {duration(self.seconds)}; everything is in {self.run.path}"


def train(recipe: Recipe, *, resume: bool = False, console: Console | None = None) -> RunResult:
    """Train a recipe in its run directory.

    Everything that can be checked is checked before a model is loaded. The first Ctrl-C (or
    SIGTERM) lets the step finish, saves, and returns a result that is not `finished`; a second one
    raises KeyboardInterrupt. Under `accelerate launch` every process calls this, and the main one
    writes.

    Args:
        recipe: What to train; `read_recipe` reads it from a file.
        resume: Continue the run of this recipe from its last checkpoint, or, without one, from its
            start.
        console: Where progress is shown. None: nowhere.

    Raises:
        ConfigError: The recipe is wrong, its run directory is taken, or there is nothing to resume.
        DataError: The data is wrong.
        RewardError: A reward broke its contract.
        MissingExtraError: A package of an extra is not installed.
    """
    resolved = resolve(recipe)
    recipe = resolved.recipe
    if resume:
        find_run(recipe)
    else:
        refuse_existing(RunDirectory(recipe.run_dir), recipe)
    with quiet():
        job = prepare(resolved, rows=_PREFLIGHT_ROWS)
        try:
            run, start = _on_main_process(lambda: _open(job, resume=resume))
            step = start.step if start else 0
            if step >= job.batches.total_steps and "finished" in run.read_environment():
                return _result(job, run, started_at=step, seconds=0.0)
            return _run(job, run, start, console, resume=resume)
        finally:
            unlock(job.recipe.run_dir)


def _open(job: Job, *, resume: bool) -> tuple[RunDirectory, Checkpoint | None]:
    """The run's directory, ready to be written to, and what to start from."""
    facts = {
        **describe_environment(job.batches.processes, job.config.seed),
        "engine": "trl",
        "rows": job.batches.rows,
        "rows_left_out": job.left_out,
        "recipe_digest": job.recipe.digest,
    }
    declared = {"rewards": describe(job.recipe, job.rewards)}
    if not resume:
        run = create_run(job.recipe, facts | declared)
        lock(run.path)
        return run, None
    run = RunDirectory(job.recipe.run_dir)
    lock(run.path)
    refuse_other_circumstances(run, facts)
    start = run.last_checkpoint()
    step = start.step if start else 0
    if step >= job.batches.total_steps:
        return run, start
    run.forget_after(step)
    before = run.read_environment()
    before.pop("finished", None)
    resumed = [*before.pop("resumed", []), {**facts, "at_step": step}]
    write_whole(run.environment, to_json({**before, **declared, "resumed": resumed}, indent=2))
    write_whole(run.recipe, job.recipe.to_yaml())
    return run, start


def _run(
    job: Job,
    run: RunDirectory,
    start: Checkpoint | None,
    console: Console | None,
    *,
    resume: bool,
) -> RunResult:
    state = _processes()
    begun, started_at = time.monotonic(), start.step if start else 0
    if started_at < job.batches.total_steps:
        shown = console if state.is_main_process else None
        loop, trainer = _built(job, run, start, shown, resume=resume)
        _train(loop, trainer, start, shown)
    seconds = time.monotonic() - begun
    state.wait_for_everyone()
    notes = _on_main_process(lambda: finish_run(job, run))
    return _result(job, run, started_at=started_at, seconds=seconds, notes=notes)


def _built(
    job: Job,
    run: RunDirectory,
    start: Checkpoint | None,
    console: Console | None,
    *,
    resume: bool,
) -> tuple[Loop, Any]:
    """The loop and its trainer. Where they cannot be made, a new run does not keep its name."""
    if console is not None:
        if job.left_out:
            console.print(f"{run.path}: {job.left_out}", markup=False, soft_wrap=True)
        console.print(f"{run.path}: loading {job.model.description}", markup=False, soft_wrap=True)
    try:
        loop = Loop(_with_model(job), run, _view(job, run))
        return loop, _constructed(loop, start)
    except BaseException:
        if not resume and _processes().is_main_process:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _train(loop: Loop, trainer: Any, start: Checkpoint | None, console: Console | None) -> None:
    with (
        show(loop.view, console) as loop.display,
        stop_on_signal(loop.stop, loop.display.stopping),
        trainer.scorer,
    ):
        trainer.scorer.progress = loop.scored
        try:
            trainer.train(resume_from_checkpoint=str(start.path) if start else None)
        except UnpicklingError as error:
            if start is None:
                raise
            raise DataError(
                f"{start.path} cannot be loaded: a file in it holds objects that would run code, "
                "and no checkpoint of gdpo's does. None was run, and nothing was trained. Move the "
                "folder away, and --resume goes on from the checkpoint before it, or from the start"
            ) from error


def _view(job: Job, run: RunDirectory) -> RunView:
    entries = zip(job.rewards, job.recipe.rewards, strict=True)
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


def _constructed(loop: Loop, start: Checkpoint | None) -> Any:
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
    last = run.last_checkpoint()
    return RunResult(
        run=run,
        steps=last.step if last else 0,
        total_steps=job.batches.total_steps,
        started_at=started_at,
        seconds=seconds,
        rewards=changes_so_far(job, run),
        notes=notes,
        is_main_process=_processes().is_main_process,
    )


def leave_processes() -> None:
    """Part from the other processes of a finished training, before this one ends.

    Without it, threads of the process group may still run when the interpreter goes down, and now
    and then abort it.
    """
    _processes().destroy_process_group()


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
    error: GdpoError | None = None
    if state.is_main_process:
        try:
            result = action()
        except GdpoError as mistake:
            error = mistake
    shared: list[Any] = [result, None if error is None else str(error)]
    broadcast_object_list(shared)
    if shared[1] is not None:
        raise error or ConfigError(shared[1])
    return shared[0]
