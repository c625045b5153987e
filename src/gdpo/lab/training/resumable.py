"""Defines a `GDPOTrainer` that can be aborted within a step."""

import copy
import logging
import random
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerState
from transformers.trainer_pt_utils import safe_globals
from transformers.training_args import ParallelMode

from gdpo.errors import ConfigError, GdpoError
from gdpo.integrations.trl import GDPOTrainer
from gdpo.lab.runs.directory import OTHERS, free_name

if TYPE_CHECKING:
    from gdpo.lab.training._loop import Loop

logger = logging.getLogger(__name__)

_EVALUATION_DUE = "gdpo.evaluation"
"""Key in the callbacks' states that marks a step whose evaluation is still to run."""

_GENERATION = "generation_{}.pth"
"""File in a checkpoint with the rollouts of a process that were not all used."""

_REFERENCE = "reference.pth"
"""File in a checkpoint with the weights of a reference model that changes (`sync_ref_model`)."""

_OTHERS_S = 5.0
"""Number of seconds that the main process waits for a file from another process."""


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """Stores the state after a finished step, without the weights and the optimizer."""

    step: int
    state: TrainerState
    random: dict[str, Any]
    """States of the random number generators, in the format of the Trainer's checkpoints."""
    generation: Any
    """Rollouts that are reused in the next step. None: the next step generates new rollouts."""


class ResumableTrainer(GDPOTrainer):
    """A `GDPOTrainer` that can be aborted within a step and still saves the last finished step.

    Weights and optimizer change at the very end of a step. Until then, the main process can save
    the last finished step alone. A run that resumes from it equals an uninterrupted run.
    """

    loop: "Loop"
    """The loop, whose stop request may abort a step, and which completes checkpoints."""
    finished: FinishedStep | None = None
    """The last finished step. None: there is none yet, or the weights are being updated."""
    ref_model: Any
    _alone = False
    _epochs_done = 0
    """Number of epochs before the checkpoint from which the run is resumed."""

    @property
    def saves_together(self) -> bool:
        """Whether all processes must save together, because the model is sharded."""
        return self.is_fsdp_enabled or self.is_deepspeed_enabled

    def save_finished_step(self) -> None:
        """Save the last finished step as a checkpoint. Call this only in the main process."""
        assert self.finished is not None, "no finished step to save"
        self.state, self._alone = self.finished.state, True
        self._save_checkpoint(self.model, None)

    def begin_update(self) -> None:
        """Record that the weights are about to change: the last step can no longer be saved."""
        self.loop.stop.forbid()
        self.finished = None

    @property
    def _saves_reference(self) -> bool:
        """Whether checkpoints contain the reference model, because it changes in the training.

        Where processes save together (FSDP, DeepSpeed), it is not saved, because each process has
        only a part of it. A resumed run then starts with the reference of a new run.
        """
        return self.args.sync_ref_model and not self.saves_together

    def _may_give_up(self) -> None:
        if not self.saves_together:  # processes that save together must finish their step first
            self.loop.stop.allow()

    @property
    def _others(self) -> Path:
        """Return where other processes write the state that the main process saves for them."""
        return self.loop.run.checkpoints / OTHERS

    def go_on_from(self, checkpoint: Path, step: int) -> None:
        """Restore the order of prompts, rollouts that were not all used, and the reference.

        Raises:
            ConfigError: If the checkpoint lacks the reference, which earlier versions did not save.
        """
        self._epochs_done, in_epoch = divmod(step, self.loop.job.batches.steps_per_epoch)
        self._step = in_epoch * self.args.gradient_accumulation_steps
        loaded = partial(torch.load, map_location=self.accelerator.device, weights_only=True)
        file = checkpoint / _GENERATION.format(self.args.process_index)
        if file.is_file():
            self._buffered_inputs = loaded(file)
        reference = checkpoint / _REFERENCE
        if self._saves_reference:
            if not reference.is_file():
                raise ConfigError(
                    f"{checkpoint} has no {_REFERENCE}, because an earlier version of gdpo saved "
                    "it without the reference model, which trainer.sync_ref_model changes. The run "
                    "cannot continue exactly: replace --resume with --set "
                    f"name={free_name(self.loop.run.path)} to start a new run"
                )
            self.ref_model.load_state_dict(loaded(reference))
        elif self.args.sync_ref_model:
            logger.warning(
                "%s has no reference model: processes that save together do not save it, so it "
                "starts from the weights of a new run, and later steps differ",
                checkpoint,
            )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        for _ in range(self._epochs_done):
            next(iter(sampler))  # advances the generator past a finished epoch
        return sampler

    def _keep(self, *, evaluation_due: bool = False) -> None:
        state: Any = copy.copy(self.state)
        state.log_history = list(state.log_history)
        callbacks = dict(state.stateful_callbacks)
        callbacks.pop(_EVALUATION_DUE, None)
        if evaluation_due:
            callbacks[_EVALUATION_DUE] = {"due": True}
        state.stateful_callbacks = callbacks
        kept = self._random_states(), self._generation()
        self.finished = FinishedStep(state.global_step, state, *kept)
        if not self.args.should_save and not self.saves_together:
            # A file for the main process, which may be a step behind.
            step, folder = state.global_step, self._others / str(self.args.process_index)
            folder.mkdir(parents=True, exist_ok=True)
            half = folder / "partial.pth"
            torch.save(kept, half)
            half.replace(folder / f"{step}.pth")
            (folder / f"{step - 2}.pth").unlink(missing_ok=True)

    def _random_states(self) -> dict[str, Any]:
        states: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),  # noqa: NPY002 (the Trainer restores this state)
            "cpu": torch.random.get_rng_state(),
        }
        if torch.cuda.is_available():
            several = self.args.parallel_mode == ParallelMode.DISTRIBUTED
            cuda = torch.cuda.random
            states["cuda"] = cuda.get_rng_state_all() if several else cuda.get_rng_state()
        return states

    def _generation(self) -> Any:
        config: Any = self.args
        rounds = config.steps_per_generation * self.num_iterations
        return self._buffered_inputs if self._step % rounds else None

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._keep()
        self._may_give_up()

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step:
            self._keep(evaluation_due=True)
            self._may_give_up()
        return super()._evaluate(*args, **kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        callbacks: Any = self.state.stateful_callbacks
        if callbacks.pop(_EVALUATION_DUE, None):
            self.control.should_evaluate = True
            self.control.should_log = self.control.should_save = False
            loss, now = torch.zeros(()), time.time()
            self._maybe_log_save_evaluate(loss, None, self.model, None, self.state.epoch, None, now)

    def store_flos(self) -> None:
        """Call TRL's `store_flos`, which needs all processes, unless this process saves alone."""
        if not self._alone:
            super().store_flos()

    def _save_rng_state(self, output_dir: str) -> None:
        folder, count = Path(output_dir), self.args.world_size
        if not self._alone:
            super()._save_rng_state(output_dir)
            _save_generation(folder, self.args.process_index, self._generation())
            return
        assert self.finished is not None, "a process saves alone only after a finished step"
        folder.mkdir(exist_ok=True)
        states, generation = self.finished.random, self.finished.generation
        for rank in range(count):
            if rank:
                states, generation = _wait_for(
                    self._others / str(rank) / f"{self.finished.step}.pth"
                )
            name = "rng_state.pth" if count == 1 else f"rng_state_{rank}.pth"
            torch.save(states, folder / name)
            _save_generation(folder, rank, generation)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if not self._alone:
            self.accelerator.wait_for_everyone()
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
            if self._saves_reference:
                torch.save(self.ref_model.state_dict(), folder / _REFERENCE)
            self.loop.saved(folder)


def _save_generation(folder: Path, rank: int, generation: Any) -> None:
    if generation is not None:
        torch.save(generation, folder / _GENERATION.format(rank))


def _wait_for(file: Path) -> tuple[dict[str, Any], Any]:
    deadline = time.monotonic() + _OTHERS_S
    while not file.is_file():
        if time.monotonic() > deadline:
            raise GdpoError(
                f"{file} is missing, because another process in this training run exited before "
                "writing its part of the checkpoint: resume from the previous checkpoint"
            )
        time.sleep(0.01)
    with safe_globals():
        return torch.load(file, weights_only=True)
