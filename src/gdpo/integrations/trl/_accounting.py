"""Keeps the account of windows of training steps: what each reward changed."""

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
    """Return the account of every N steps, which is a callback. None: no account is wanted.

    Args:
        trainer: A trainer, which need not have its model yet.
        args: Its settings.
        names: One name per reward.
        every: N.

    Raises:
        ConfigError: If N is below 10, or the account does not support the settings.
    """
    if every is None:
        return None
    check_whole("effect_every", every, least=WINDOW)
    batch = args.steps_per_generation * args.num_iterations
    if batch != args.gradient_accumulation_steps or args.world_size != 1:
        raise ConfigError(
            "effect_every needs one process, and one optimizer step for each generation batch: "
            "remove num_iterations and steps_per_generation, or remove effect_every"
        )
    return Accounting(trainer, names, every)


class Accounting(TrainerCallback):
    """Accounts for the first ten of every N steps, and changes no number of the training.

    A window that a resumption interrupts has no account.
    """

    def __init__(self, trainer: Any, names: Sequence[str], every: int) -> None:
        self._trainer, self._names, self._every = trainer, names, every
        self._window: Window | None = None
        self._batch: Any = None
        self._how: Any = None
        """Weights and advantages of the batch."""
        self._harmless = Harmless("effect_every is switched off, and training continues")

    def take(
        self, output: Mapping[str, torch.Tensor], rewards: Any, weights: Any, advantages: Any
    ) -> None:
        """Keep a batch until the gradients of its step are there."""
        self._batch = Batch.of_trl(output, rewards)
        self._how = np.asarray(weights, np.float64), np.asarray(advantages, np.float64)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Add the batch to the window that its step ends, and to the one that it begins."""
        self._harmless(self._add, state.global_step)

    def _add(self, step: int) -> None:
        trainer, window, self._window = self._trainer, self._window, None
        model = trainer.accelerator.unwrap_model(trainer.model)
        rows = trainer.args.per_device_train_batch_size

        def add(to: Window) -> Window:
            passes = self._batch.passes(model, rows, trainer.temperature)
            to.add(passes, self._batch.rewards, *self._how)
            return to

        if window is not None:
            self._window = add(window)
            if window.steps == WINDOW:
                self._tell(window.result(self._names), step)
                self._window = None
        if step % self._every == 0:
            self._window = add(Window(model, trainer.optimizer))

    def _tell(self, account: Account, last: int) -> None:
        for said in account.sentences():
            logger.info("gdpo, steps %d to %d: %s", last + 1 - WINDOW, last, one_line(said))
        for name, value in account.metrics():
            self._trainer._metrics["train"][name].append(value)
