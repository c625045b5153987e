"""What happens at every step of a training: its figures, the display, and a stop asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpo.tasks import Sample
from gdpo.training._interrupt import StopRequest
from gdpo.training._lora import peft_config
from gdpo.training._preflight import Job
from gdpo.training._progress import Display, RunView
from gdpo.training._run_directory import Checkpoint, RunDirectory

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback

    from gdpo.integrations.trl import GDPOTrainer


@dataclass(slots=True)
class Loop:
    """Follows one training. The transformers callback below does nothing but call it."""

    job: Job
    run: RunDirectory
    view: RunView
    display: Display | None = None
    stop: StopRequest = field(default_factory=StopRequest)

    def logged(self, step: int, logs: Mapping[str, Any], *, is_main_process: bool) -> None:
        """Keep and show the figures of a step, or of an evaluation after it."""
        if not is_main_process or "train_runtime" in logs:  # the Trainer's farewell is no step
            return
        row = {"step": step, **logs}
        self.run.append_metrics(row)
        if "loss" in logs:
            self.view.rows.append(row)
            if self.display is not None:
                self.display.update()

    def scored(self, done: int, count: int) -> None:
        """Show how far the scoring of a batch is that takes long."""
        self.view.scoring = f"scored {done:,} of {count:,}" if done < count else ""

    def should_stop(self, step: int) -> bool:
        """Whether to stop here: asked for in any process, and between two generations."""
        asked = self.stop.requested
        if self.job.batches.processes > 1:
            from accelerate.utils import gather_object

            asked = any(gather_object([asked]))
        batches = self.job.batches
        # An epoch starts with a generation, also where it ends in the middle of a round.
        in_epoch = step % batches.steps_per_epoch
        return asked and in_epoch % batches.steps_per_round == 0


def make_trainer(loop: Loop, start: Checkpoint | None) -> "GDPOTrainer":
    """The trainer of a job, with its model loaded.

    Args:
        loop: Gets to know every step.
        start: What the training will be resumed from.
    """
    from transformers import PrinterCallback, ProgressCallback

    from gdpo.integrations.trl import GDPOTrainer

    job = loop.job
    epochs_done = start.step // job.batches.steps_per_epoch if start else 0

    class ResumableTrainer(GDPOTrainer):
        """Draws the same orders of the prompts after a resumption as without one."""

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            sampler = super()._get_train_sampler(dataset)
            for _ in range(epochs_done):
                next(iter(sampler))  # draws the order of a finished epoch
            return sampler

    trainer = ResumableTrainer(
        model=job.model.source,
        reward_funcs=list(job.rewards),
        args=job.config,
        train_dataset=_dataset(job.samples),
        eval_dataset=None if job.eval_samples is None else _dataset(job.eval_samples),
        processing_class=job.tokenizer,
        callbacks=[_callback(loop)],
        peft_config=peft_config(job.recipe.lora),
    )
    for shown_elsewhere in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(shown_elsewhere)
    return trainer


def _callback(loop: Loop) -> "TrainerCallback":
    from transformers import TrainerCallback

    class LoopCallback(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            loop.logged(
                state.global_step,
                kwargs.get("logs") or {},
                is_main_process=state.is_world_process_zero,
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            if loop.should_stop(state.global_step):
                control.should_save = control.should_training_stop = True
            if state.global_step >= state.max_steps:
                control.should_save = True

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            if state.is_world_process_zero and not args.push_to_hub:
                # TRL's draft of a model card; the run gets a README of its own.
                (Path(args.output_dir) / "README.md").unlink(missing_ok=True)

    return LoopCallback()


def _dataset(samples: Sequence[Sample]) -> "Dataset":
    """The samples as TRL takes them, without a detour through Arrow.

    Arrow gives every row of a column the same keys; references whose values are objects (the
    arguments of a tool call) would come back with the keys of all other rows. So the dataset holds
    row numbers, and gives out the samples.
    """
    from datasets import Dataset

    def rows(batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        chosen = [samples[i] for i in batch["row"]]
        return {
            "prompt": [sample.prompt for sample in chosen],
            "reference": [sample.reference for sample in chosen],
        }

    return Dataset.from_dict({"row": list(range(len(samples)))}).with_transform(rows)
