"""Keeps the account of windows of training steps: what each reward changed."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from gdpo._text import one_line
from gdpo.diagnostics.account import WINDOW, Account
from gdpo.errors import ConfigError, check_whole
from gdpo.integrations._harmless import Harmless
from gdpo.integrations.trl._packing import loss_mask
from gdpo.policy.account import Window
from gdpo.policy.gradients import RolloutPass

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
        self._harmless = Harmless("effect_every is switched off, and training continues")

    def take(
        self, output: Mapping[str, torch.Tensor], rewards: Any, weights: Any, advantages: Any
    ) -> None:
        """Keep a batch until the gradients of its step are there."""
        arrays = (np.asarray(each, np.float64) for each in (rewards, weights, advantages))
        self._batch = output, *arrays

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Add the batch to the window that its step ends, and to the one that it begins."""
        self._harmless(self._add, state.global_step)

    def _add(self, step: int) -> None:
        trainer, (output, *arrays) = self._trainer, self._batch
        model = trainer.accelerator.unwrap_model(trainer.model)
        window, self._window = self._window, None
        if window is not None:
            window.add(self._passes(model, output), *arrays)
            if window.steps < WINDOW:
                self._window = window
            else:
                self._tell(window.result(self._names), step)
        if step % self._every == 0:
            window = Window(model, trainer.optimizer)
            window.add(self._passes(model, output), *arrays)
            self._window = window

    def _tell(self, account: Account, last: int) -> None:
        for said in account.sentences():
            logger.info("gdpo, steps %d to %d: %s", last + 1 - WINDOW, last, one_line(said))
        for name, value in account.metrics():
            self._trainer._metrics["train"][name].append(value)

    def _passes(self, model: Any, output: Mapping[str, torch.Tensor]) -> Iterator[RolloutPass]:
        """Yield a pass for each of TRL's micro-batches."""
        prompt, counted = output["prompt_mask"], loss_mask(dict(output))
        whole = (
            torch.cat((output["prompt_ids"], output["completion_ids"]), 1),
            torch.cat((prompt, output["completion_mask"]), 1),
            torch.cat((torch.zeros_like(prompt), counted), 1).bool(),
        )
        size = self._trainer.args.per_device_train_batch_size
        for here in zip(*(each.split(size) for each in whole), strict=True):
            yield RolloutPass(model, *here, temperature=self._trainer.temperature)
