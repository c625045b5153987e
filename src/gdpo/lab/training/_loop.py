"""Handles every step of a training run: metrics, display, checkpoints and stop requests."""

import copy
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpo.lab.recipes.recipe import LoraSettings
from gdpo.lab.runs.checkpoints import (
    Checkpoint,
    best_checkpoint,
    complete,
    is_complete,
    keep_newest,
)
from gdpo.lab.runs.directory import OTHERS, RunDirectory
from gdpo.lab.tasks import Problem
from gdpo.lab.training._interrupt import StopRequest
from gdpo.lab.training._progress import Display, RunView
from gdpo.lab.training.preflight import Job

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback

    from gdpo.integrations.trl.resumable import ResumableTrainer


@dataclass(slots=True)
class Loop:
    """Logs and shows the steps of one training run, and manages its checkpoints."""

    job: Job
    run: RunDirectory
    view: RunView
    stop: StopRequest
    display: Display | None = None
    saved_at: float = field(default_factory=time.monotonic)
    """Monotonic time of the newest checkpoint or of the start, in seconds."""

    checkpoint_bytes: int = 0
    """Estimated size of a checkpoint in bytes. 0: unknown."""

    @property
    def others(self) -> Path:
        """Return the folder where other processes store state that the main process saves."""
        return self.run.checkpoints / OTHERS

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
        """Return whether all processes must stop now, and whether `save_minutes` have passed.

        Every process must call this method. All processes get the same result.
        """
        late = now - self.saved_at >= 60 * self.job.recipe.save_minutes
        mine = (self.stop.requested, late)
        if self.job.batches.processes == 1:
            return mine
        from accelerate.utils import gather_object

        stops, saves = zip(*gather_object([mine]), strict=True)
        return any(stops), any(saves)

    def saved(self, folder: Path) -> None:
        """Mark a written checkpoint as complete, then delete older checkpoints."""
        config = self.job.config
        if not config.push_to_hub:
            # TRL writes a draft of a model card, but the run has its own README.
            (self.run.checkpoints / "README.md").unlink(missing_ok=True)
        complete(folder)
        best = best_checkpoint(folder) if config.load_best_model_at_end else None
        keep_newest(self.run.checkpoints, config.save_total_limit, [best])

    def save_finished_step(self, trainer: "ResumableTrainer") -> None:
        """Save the last finished step, unless it is already saved or no step is finished."""
        if trainer.finished is None or trainer.saves_together or not trainer.args.should_save:
            return
        folder = self.run.checkpoints / f"checkpoint-{trainer.finished.step}"
        if is_complete(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        trainer.save_finished_step()


def make_trainer(loop: Loop, start: Checkpoint | None) -> "ResumableTrainer":
    """Return the trainer of a job, with its model loaded."""
    from transformers import PrinterCallback, ProgressCallback

    from gdpo.integrations.trl.resumable import Hooks, ResumableTrainer

    job = loop.job
    epochs_done = start.step // job.batches.steps_per_epoch if start else 0

    class SameOrderTrainer(ResumableTrainer):
        """Uses the same order of prompts in a resumed run as in an uninterrupted run."""

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            sampler = super()._get_train_sampler(dataset)
            for _ in range(epochs_done):
                next(iter(sampler))  # advances the generator past a finished epoch
            return sampler

    config = copy.copy(job.config)
    config.save_total_limit = None  # `Loop.saved` deletes older checkpoints instead of TRL
    trainer = SameOrderTrainer(
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
    together = trainer.saves_together
    trainer.hooks = Hooks(
        may_give_up=_nothing if together else loop.stop.allow,
        must_finish=loop.stop.forbid,
        saved=loop.saved,
        others=loop.others,
    )
    trainer.epoch_steps = job.batches.steps_per_epoch
    if start is not None:
        trainer.go_on_from(start.path, start.step)
    trainer.add_callback(_callback(loop, trainer))
    for shown_elsewhere in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(shown_elsewhere)
    return trainer


def _nothing() -> None:
    """Do nothing, because processes that save together must finish their step first."""


def _callback(loop: Loop, trainer: "ResumableTrainer") -> "TrainerCallback":
    from transformers import TrainerCallback

    class LoopCallback(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            trainer.begin_update()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            loop.logged(
                state.global_step,
                kwargs.get("logs") or {},
                is_main_process=state.is_world_process_zero,
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            stop, save = loop.due(time.monotonic())
            if stop:
                control.should_training_stop = True
            if stop or save or state.global_step >= state.max_steps:
                control.should_save = True

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            loop.saved_at = time.monotonic()

    return LoopCallback()


def _dataset(problems: Sequence[Problem], *, column: str | None = None) -> "Dataset":
    """Return the problems as a dataset for TRL, without converting them to Arrow.

    Arrow gives every row of a column the same keys, so a reference whose values are objects (for
    example the arguments of a tool call) would get the keys of all other rows. The dataset
    therefore stores row numbers and looks up the problems. `column` names the column with the
    weights of each problem.
    """
    from datasets import Dataset

    def rows(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        chosen = [problems[i] for i in batch["row"]]
        return {
            "prompt": [problem.prompt for problem in chosen],
            "reference": [problem.reference for problem in chosen],
            **({} if column is None else {column: [problem.weights for problem in chosen]}),
        }

    return Dataset.from_dict({"row": list(range(len(problems)))}).with_transform(rows)


def peft_config(lora: LoraSettings | None) -> Any:
    """Return the `peft_config` for TRL, or None if the recipe does not use LoRA."""
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
