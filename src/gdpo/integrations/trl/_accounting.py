"""Logs what each reward changed in windows of training steps."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from gdpo._text import one_line
from gdpo.diagnostics.account import WINDOW, Account
from gdpo.errors import ConfigError, check_whole
from gdpo.integrations._harmless import Harmless
from gdpo.policy.account import Window
from gdpo.policy.effect import Batch

logger = logging.getLogger(__name__)


def accounting_of(
    trainer: Any, args: Any, names: Sequence[str], every: int | None
) -> "Accounting | None":
    """Return the callback that accounts for ten of every N steps. None: `every` is None.

    Args:
        trainer: A trainer, which need not have its model yet.
        args: Settings of the trainer.
        names: One name per reward.
        every: Number of steps N from the start of a window to that of the next one.

    Raises:
        ConfigError: If N is not an integer of at least 10, there are several processes, or a
            generation batch has several optimizer steps.
    """
    if every is None:
        return None
    check_whole("effect_every", every, least=WINDOW)
    batch = args.steps_per_generation * args.num_iterations
    if batch != args.gradient_accumulation_steps or args.world_size != 1:
        raise ConfigError(
            "effect_every needs one process, and one optimizer step per generation batch: use one "
            "process, no num_iterations and no steps_per_generation, or remove effect_every"
        )
    return Accounting(trainer, names, every)


class Accounting(TrainerCallback):
    """Accounts for the first ten of every N steps, without changing any number of the training.

    A window is logged one step after its end. A window that is interrupted and resumed has no
    account.
    """

    def __init__(self, trainer: Any, names: Sequence[str], every: int) -> None:
        self._trainer, self._names, self._every = trainer, names, every
        self._window: Window | None = None
        self._batch: Any = None
        self._weighting: Any = None
        """Weights and advantages of the batch."""
        self._harmless = Harmless("effect_every is switched off, and training continues")

    def take(
        self, output: Mapping[str, torch.Tensor], rewards: Any, weights: Any, advantages: Any
    ) -> None:
        """Keep a batch until the gradients of its step are computed.

        Args:
            output: TRL's ids and masks of prompts and completions.
            rewards: Raw rewards [prompt, sample, reward]. NaN: missing.
            weights: Weights [reward] or [prompt, reward].
            advantages: Advantages [prompt, sample].
        """
        self._batch = Batch.of_trl(output, rewards)
        self._weighting = np.asarray(weights, np.float64), np.asarray(advantages, np.float64)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Add the batch to the open window, and begin a window if it is time for one."""
        self._harmless(self._add, state.global_step)

    def _add(self, step: int) -> None:
        trainer, window, self._window = self._trainer, self._window, None
        model = trainer.accelerator.unwrap_model(trainer.model)
        rows = trainer.args.per_device_train_batch_size

        def add(to: Window) -> Window:
            passes = self._batch.passes(model, rows, trainer.temperature)
            to.add(passes, self._batch.rewards, *self._weighting)
            return to

        if window is not None:
            self._window = add(window)
            if window.steps == WINDOW:
                self._report(window.result(self._names), step)
                self._window = None
        if step % self._every == 0:
            self._window = add(Window(model, trainer.optimizer))

    def _report(self, account: Account, last: int) -> None:
        for said in account.sentences():
            logger.info("gdpo, steps %d to %d: %s", last + 1 - WINDOW, last, one_line(said))
        for name, value in account.metrics():
            self._trainer._metrics["train"][name].append(value)
