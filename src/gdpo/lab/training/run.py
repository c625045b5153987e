"""Trains a recipe in a run directory, and resumes interrupted runs."""

import atexit
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from gdpo._files import is_full
from gdpo._terminal import say
from gdpo.errors import ConfigError, GdpoError
from gdpo.lab.recipes.models import load_tokenizer, make_ready
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import Resolved, resolve
from gdpo.lab.runs.checkpoints import (
    Checkpoint,
    estimate_checkpoint,
    refuse_small_disk,
    size_of,
)
from gdpo.lab.runs.directory import (
    RunDirectory,
    RunFacts,
    describe_start,
    read_run,
)
from gdpo.lab.runs.lock import unlock
from gdpo.lab.runs.resume import (
    Opened,
    check_place,
    open_run,
    reopened,
    resume_command,
    set_later_aside,
)
from gdpo.lab.runs.summary import RewardChange, duration, reward_changes
from gdpo.lab.training._interrupt import (
    Stopped,
    StopRequest,
    ending_with_the_launcher,
    stop_on_signal,
)
from gdpo.lab.training._loop import Loop, disk_full, failed, make_trainer, stopped, stopped_again
from gdpo.lab.training._progress import RunView, show
from gdpo.lab.training.finish import finish_run
from gdpo.lab.training.preflight import CheckedRun, prepare, quiet

if TYPE_CHECKING:
    from accelerate import PartialState

    from gdpo.lab.training.resumable import ResumableTrainer

T = TypeVar("T")

_TOO_EARLY = "stopped before training started: nothing was saved. Rerun the same command"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Stores the result of `train`."""

    run: RunDirectory
    steps: int
    """Number of finished optimizer steps of the run."""
    total_steps: int
    started_at: int
    """Step at which this call started: `steps` if the run was already finished."""
    seconds: float
    rewards: tuple[RewardChange, ...]
    notes: tuple[str, ...]
    """Notes for the user, for example about missing weights."""
    is_main_process: bool
    """Whether this process prints the result."""

    @property
    def finished(self) -> bool:
        """Return whether all steps are done. An unfinished run can be resumed."""
        return self.steps >= self.total_steps

    @property
    def conclusion(self) -> str:
        """Return a one-sentence conclusion for the user."""
        if not self.finished:
            return (
                f"stopped: {self.steps:,} of {self.total_steps:,} steps are done and saved. "
                f"Resume with: {resume_command(self.run)}"
            )
        if self.started_at >= self.total_steps:
            return (
                f"{self.run.path} is already finished: {self.steps:,} steps. To train longer, "
                "resume the run with a larger --set trainer.max_steps=..."
            )
        done = self.steps - self.started_at
        steps = "1 step" if done == 1 else f"{done:,} steps"
        return f"finished {steps} in {duration(self.seconds)}. Results: {self.run.path}"


def train(
    recipe: Recipe | Resolved,
    *,
    resume: bool = False,
    from_scratch: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Train a recipe in its run directory.

    The first Ctrl-C (or SIGTERM) drops the step in progress and saves the last finished step. The
    result is then not `finished`. Before any other error of a step is raised, the last finished
    step is saved, too. With `accelerate launch`, every process calls this function, and only the
    main process writes the run directory.

    Args:
        recipe: The recipe. Functions that create rewards are not called again for a `Resolved` one.
        resume: Whether to resume this recipe's run from its newest intact checkpoint.
        from_scratch: Whether a resumed run without an intact checkpoint sets its files aside and
            starts over. False: this is a ConfigError.
        console: Shows the progress. None: no progress is shown.

    Raises:
        ConfigError: If the recipe is invalid, its run directory already exists, there is no run to
            resume, or the disk has no room for two checkpoints.
        DataError: If the data is invalid.
        RewardError: If a reward breaks its contract.
        MissingExtraError: If a package of an extra is not installed.
        GdpoError: If the disk is full, or another process of this run has exited. The message
            states the last saved step.
        KeyboardInterrupt: If a stop is requested before training starts, or a second time.
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
            if stop.requested:  # an interrupted import may raise any error
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
    check_place(resolved.recipe, resume=resume)
    with quiet():
        with ending_with_the_launcher():
            job = prepare(resolved)
        stop.begun = True
        try:
            opened = _on_main_process(lambda: _open(job, resume=resume, from_scratch=from_scratch))
            if opened.done:
                return _result(job, opened.facts, started_at=opened.facts.saved, seconds=0.0)
            return _run(job, opened, stop, console if _processes().is_main_process else None)
        finally:
            unlock(job.recipe.run_dir)


def _open(job: CheckedRun, *, resume: bool, from_scratch: bool) -> Opened:
    facts = describe_start(
        job.recipe,
        job.problems,
        job.left_out,
        engine="trl",
        processes=job.batches.processes,
        seed=job.config.seed,
    )
    before = open_run(job.resolved, facts, resume=resume)
    if not resume:
        return Opened(before)
    total = job.batches.total_steps
    return reopened(before, facts, total_steps=total, from_scratch=from_scratch)


def _run(job: CheckedRun, opened: Opened, stop: StopRequest, console: Console | None) -> RunResult:
    run, first = opened.facts.run, opened.first
    begun = time.monotonic()
    _say(console, f"{run.path}: ", *opened.notes)
    if first < job.batches.total_steps:
        loop, trainer = _built(job, opened, stop, console)
        if not _train(loop, trainer, opened.start, console):
            return _result(job, read_run(run), started_at=first, seconds=time.monotonic() - begun)
    seconds = time.monotonic() - begun
    try:
        stop.allow()
        _processes().wait_for_everyone()
        facts = read_run(run)
        notes = _on_main_process(lambda: finish_run(job, facts))
    except KeyboardInterrupt as error:
        message = f"stopped; all steps are saved. Finish the run with: {resume_command(run)}"
        raise KeyboardInterrupt(message) from error
    return _result(job, facts, started_at=first, seconds=seconds, notes=notes)


def _say(console: Console | None, place: str, *sentences: str) -> None:
    if console is not None:
        say(console, *(f"{place}{sentence}" for sentence in sentences))


def _built(
    job: CheckedRun, opened: Opened, stop: StopRequest, console: Console | None
) -> tuple[Loop, "ResumableTrainer"]:
    """Create the loop and its trainer, or delete the directory of a new run if this fails."""
    run = opened.facts.run
    if job.left_out:
        _say(console, f"{run.path}: ", job.left_out)
    _say(console, f"{run.path}: ", f"loading {job.model.description}", job.batches.per_step)
    try:
        entries = zip(job.resolved.rewards, job.recipe.rewards, strict=True)
        view = RunView(
            name=job.recipe.name,
            rewards=[(reward.name, entry.factor) for reward, entry in entries],
            total_steps=job.batches.total_steps,
            rows=[row for row in opened.facts.steps if row.get("step", 0) <= opened.first],
        )
        with _processes().main_process_first():
            make_ready(job.model, job.recipe)
        for name in ("save_steps", "eval_steps"):  # which depend on the run's length
            if name not in job.recipe.trainer:
                setattr(job.config, name, job.batches.save_steps)
        tokenizer = job.tokenizer or load_tokenizer(job.model, job.recipe)
        loop = Loop(replace(job, tokenizer=tokenizer), run, view, stop)
        trainer = make_trainer(loop, opened.start)
        moved = _on_main_process(lambda: set_later_aside(opened, job.resolved))
        _say(console, f"{run.path}: ", *moved)
        if not trainer.saves_together:  # otherwise each process has only a part of the weights
            kept = size_of(opened.start.path) if opened.start else 0
            loop.checkpoint_bytes = max(
                estimate_checkpoint(trainer.model, trainer.args.optim), kept
            )
            remedy = "choose another folder: --set runs_dir=..."
            _on_main_process(lambda: refuse_small_disk(run.path, loop.checkpoint_bytes, remedy))
    except BaseException:
        if opened.resumed is None and not opened.done and _processes().is_main_process:
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    return loop, trainer


def _train(
    loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None, console: Console | None
) -> bool:
    """Train, and return whether all steps are done."""
    if _processes().num_processes > 1:
        from accelerate.utils import gather_object

        me = (socket.gethostname(), os.getpid())
        found = gather_object([me])
        loop.stop.peers = [pid for host, pid in found if host == me[0] and pid != me[1]]
    with show(loop.view, console) as loop.display, trainer.scorer:
        loop.stop.announce = loop.display.stopping
        trainer.scorer.progress = loop.scored
        try:
            _until_it_fails(loop, trainer, start)
        except Stopped:
            stopped(loop, trainer)
        except KeyboardInterrupt as error:
            raise stopped_again(loop, trainer) from error
    return trainer.state.global_step >= loop.job.batches.total_steps


def _until_it_fails(loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None) -> None:
    try:
        loop.stop.allow()
        if trainer.saves_together:
            loop.stop.forbid()
        trainer.train(resume_from_checkpoint=str(start.path) if start else None)
    except Exception as error:  # noqa: BLE001 (raised again after saving)
        failed(loop, trainer, error)


def _result(
    job: CheckedRun,
    facts: RunFacts,
    *,
    started_at: int,
    seconds: float,
    notes: tuple[str, ...] = (),
) -> RunResult:
    return RunResult(
        run=facts.run,
        steps=facts.saved,
        total_steps=job.batches.total_steps,
        started_at=started_at,
        seconds=seconds,
        rewards=reward_changes(facts.steps, job.resolved.rewards, job.resolved.weights),
        notes=notes,
        is_main_process=_processes().is_main_process,
    )


def leave_processes(code: int) -> None:
    """Leave the process group of a distributed run before this process exits with this code.

    Threads of torch sometimes abort a process at interpreter shutdown, so all exit without it. The
    main process first runs the exit handlers, for example of a tracking service, but not after a
    stop (a code other than 0), because the others may be anywhere.
    """
    state = _processes()
    several, is_main = state.num_processes > 1, state.is_main_process
    if code == 0:
        state.destroy_process_group()
    if several:
        if code == 0 and is_main:
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _processes() -> "PartialState":
    from accelerate import PartialState

    return PartialState()


def _on_main_process(action: Callable[[], T]) -> T:
    """Run an action in the main process, and share its result or error with every process."""
    state = _processes()
    if state.num_processes == 1:
        return action()
    from accelerate.utils import broadcast_object_list

    state.wait_for_everyone()
    shared: list[Any] = [None, None]
    error: Exception | None = None
    if state.is_main_process:
        try:
            shared[0] = action()
        except Exception as mistake:  # noqa: BLE001 (raised again in every process)
            error, shared[1] = mistake, str(mistake)
    broadcast_object_list(shared)
    if shared[1] is not None:
        raise error or ConfigError(shared[1])
    return shared[0]
