"""Handles every step of a training run: metrics, display, checkpoints, and how the run ends."""

import copy
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gdpo._files import is_full
from gdpo.errors import ConfigError, GdpoError, spelled
from gdpo.lab.recipes.recipe import LoraSettings
from gdpo.lab.runs.checkpoints import (
    Checkpoint,
    best_checkpoint,
    checkpoints,
    complete,
    is_complete,
    keep_newest,
    megabytes,
)
from gdpo.lab.runs.directory import RunDirectory
from gdpo.lab.runs.resume import resume_command
from gdpo.lab.tasks import Problem
from gdpo.lab.training._interrupt import StopRequest
from gdpo.lab.training._progress import Display, RunView
from gdpo.lab.training.preflight import CheckedRun

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback

    from gdpo.lab.training.resumable import ResumableTrainer


logger = logging.getLogger(__name__)

_PEER_ERRORS = ("gloo", "Connection closed by peer", "Connection reset", "NCCL")
"""Texts in the errors that a process raises when another process of the run has exited."""


@dataclass(slots=True)
class Loop:
    """Logs and shows the steps of a run, and manages its checkpoints."""

    job: CheckedRun
    run: RunDirectory
    view: RunView
    stop: StopRequest
    display: Display | None = None
    saved_at: float = field(default_factory=time.monotonic)
    """Monotonic time of the newest checkpoint or of the start, in seconds."""

    checkpoint_bytes: int = 0
    """Estimated size of a checkpoint in bytes. 0: unknown."""

    def logged(self, step: int, logs: Mapping[str, Any], *, is_main_process: bool) -> None:
        """Store and show the metrics of a step or of an evaluation."""
        self.stop.forbid()  # a line must be written completely, and only once
        if not is_main_process or "train_runtime" in logs:  # the Trainer's last log is not a step
            return
        row = {"step": step, **logs}
        self.run.append_metrics(row)
        if "loss" in logs:
            self.view.rows.append(row)
            if self.display is not None:
                self.display.update()

    def scored(self, done: int, count: int) -> None:
        """Show the progress of scoring a batch."""
        self.view.scoring = f"scored {done:,} of {count:,}" if done < count else ""

    def due(self, now: float) -> tuple[bool, bool]:
        """Return whether to stop and whether to save now. Every process must call this."""
        from accelerate.utils import gather_object

        late = now - self.saved_at >= 60 * self.job.recipe.save_minutes
        stops, saves = zip(*gather_object([(self.stop.requested, late)]), strict=True)
        return any(stops), any(saves)

    def saved(self, folder: Path) -> None:
        """Mark a written checkpoint as complete, then delete older checkpoints."""
        config = self.job.config
        if not config.push_to_hub:
            # TRL writes a draft of a model card, but the run has its own README.
            (self.run.checkpoints / "README.md").unlink(missing_ok=True)
        complete(folder)
        best = best_checkpoint(folder) if config.load_best_model_at_end else None
        keep_newest(self.run.checkpoints, config.save_total_limit, best)

    def save_finished_step(self, trainer: "ResumableTrainer") -> None:
        """Save the last finished step, unless it is already saved or no step is finished."""
        if trainer.finished is None or trainer.saves_together or not trainer.args.should_save:
            return
        folder = self.run.checkpoints / f"checkpoint-{trainer.finished.step}"
        if is_complete(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        trainer.save_finished_step()


_CLEAR_ERRORS = (OSError, ValueError, NotImplementedError, ImportError, RuntimeError)
"""Error types whose message is clear without the name of the type."""


def make_trainer(loop: Loop, start: Checkpoint | None) -> "ResumableTrainer":
    """Load the model, and return its trainer, which continues from a checkpoint if one is given.

    Raises:
        ConfigError: If the libraries cannot build the trainer from these settings.
    """
    from transformers import PrinterCallback, ProgressCallback

    from gdpo.lab.training.resumable import ResumableTrainer

    job = loop.job
    config = copy.copy(job.config)
    config.save_total_limit = None  # `Loop.saved` deletes older checkpoints instead of TRL
    try:
        with job.model.loading():
            trainer = ResumableTrainer(
                model=job.model.source,
                reward_funcs=list(job.resolved.rewards),
                args=config,
                train_dataset=_dataset(job.problems, column=config.weights_column),
                eval_dataset=None
                if job.eval_problems is None
                else _dataset(job.eval_problems, column=config.weights_column),
                processing_class=job.tokenizer,
                peft_config=peft_config(job.recipe.lora),
            )
            trainer.loop = loop
            if start is not None:
                trainer.go_on_from(start.path, start.step)
    except GdpoError:
        raise
    except Exception as error:  # the libraries may raise any error here
        text = str(error) if isinstance(error, _CLEAR_ERRORS) else spelled(error)
        raise ConfigError(
            f"{job.recipe.place('trainer')}: the trainer cannot be built from model "
            f"{job.recipe.initial_model!r} and these settings: {text}"
        ) from error
    trainer.add_callback(_callback(loop, trainer))
    for shown_elsewhere in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(shown_elsewhere)
    return trainer


def _callback(loop: Loop, trainer: "ResumableTrainer") -> "TrainerCallback":
    from transformers import TrainerCallback

    class LoopCallback(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            trainer.begin_update()

        def on_log(self, _: Any, state: Any, *__: Any, logs: Any, **___: Any) -> None:
            loop.logged(
                state.global_step,
                logs,
                is_main_process=state.is_world_process_zero,
            )

        def on_step_end(self, _: Any, state: Any, control: Any, *__: Any, **___: Any) -> None:
            stop, save = loop.due(time.monotonic())
            if stop:
                control.should_training_stop = True
            if stop or save or state.global_step >= state.max_steps:
                control.should_save = True

        def on_save(self, *_: Any, **__: Any) -> None:
            loop.saved_at = time.monotonic()

    return LoopCallback()


def _dataset(problems: Sequence[Problem], *, column: str | None) -> "Dataset":
    """Return a dataset for TRL that stores row numbers and looks up the problems.

    Arrow would give every reference the keys of all others. `column` names the column with weights.
    """
    from datasets import Dataset

    held = _ProblemsOfDataset(problems)

    def rows(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        chosen = [held.problems[i] for i in batch["row"]]
        return {
            "prompt": [problem.prompt for problem in chosen],
            "reference": [problem.reference for problem in chosen],
            **({} if column is None else {column: [problem.weights for problem in chosen]}),
        }

    return Dataset.from_dict({"row": list(range(len(problems)))}).with_transform(rows)


class _ProblemsOfDataset:
    """Holds the problems of a dataset, and is pickled as a unique id.

    `datasets` pickles what a transform refers to: 40,000 problems would take 4 seconds.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (uuid4().hex,)


def peft_config(lora: LoraSettings | None) -> Any:
    if lora is None:
        return None
    from peft import LoraConfig

    modules = lora.target_modules
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
    )


def stopped(loop: Loop, trainer: "ResumableTrainer") -> None:
    """Save the last finished step after a stop request."""
    try:
        loop.save_finished_step(trainer)
    except KeyboardInterrupt as error:
        raise stopped_again(loop, trainer) from error
    except Exception as error:  # noqa: BLE001 (raised again with an explanation)
        _raise_in_words(loop, trainer, error)


def failed(loop: Loop, trainer: "ResumableTrainer", error: Exception) -> None:
    """Save the last finished step, and raise the error that stopped the training run."""
    may_save = trainer.finished is not None
    try:
        loop.save_finished_step(trainer)
    except Exception:  # report the error that ended the training instead
        logger.warning("the last finished step could not be saved", exc_info=True)
    if may_save and loop.stop.requested:  # these errors come from processes that end one by one
        return
    _raise_in_words(loop, trainer, error)


def _raise_in_words(loop: Loop, trainer: "ResumableTrainer", error: Exception) -> None:
    run = loop.run
    # torch and safetensors report a full disk in errors of other types.
    no_room = shutil.disk_usage(run.path).free < loop.checkpoint_bytes
    no_room = _remove_half_written(loop, trainer) and no_room
    if is_full(error) or no_room:
        raise disk_full(run, loop.checkpoint_bytes) from error
    if loop.job.batches.processes > 1 and any(sign in str(error) for sign in _PEER_ERRORS):
        raise GdpoError(f"another process of this run has exited. {safe_step(run)}") from error
    logger.error(
        "the training run stopped with an error. Correct the cause first. %s", safe_step(run)
    )
    raise error


def disk_full(run: RunDirectory, checkpoint: int = 0) -> GdpoError:
    """Return the error for a full disk, which states the last saved step."""
    takes = f", and a checkpoint needs about {megabytes(checkpoint)}" if checkpoint else ""
    return GdpoError(
        f"the disk that contains {run.path} is full{takes}. Free some space. {safe_step(run)}"
    )


def _remove_half_written(loop: Loop, trainer: "ResumableTrainer") -> bool:
    """Remove incomplete checkpoints, and return whether there were any."""
    if not trainer.args.should_save:
        return False
    begun = [f for f in loop.run.checkpoints.glob("checkpoint-*") if not is_complete(f)]
    for folder in begun:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(begun)


def safe_step(run: RunDirectory) -> str:
    """Return a text that states the last saved step and the command to resume."""
    last = next(iter(checkpoints(run.checkpoints)), None)
    nothing = "No step has been saved yet, so a resumed run starts at step 1"
    what = f"Step {last.step:,} is saved" if last else nothing
    return f"{what}. Resume with: {resume_command(run)}"


def stopped_again(loop: Loop, trainer: "ResumableTrainer") -> KeyboardInterrupt:
    """Remove incomplete checkpoints, and return the exception for a second Ctrl-C."""
    _remove_half_written(loop, trainer)
    return KeyboardInterrupt(f"stopped without saving. {safe_step(loop.run)}")
