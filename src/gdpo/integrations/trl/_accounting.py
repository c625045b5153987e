"""Keeps the account of windows of training steps: what each reward changed."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from gdpo.diagnostics.account import Account
from gdpo.errors import ConfigError, check_whole
from gdpo.integrations._harmless import Harmless
from gdpo.integrations.trl._packing import loss_mask
from gdpo.policy.account import Window
from gdpo.policy.gradients import RolloutPass

logger = logging.getLogger(__name__)

STEPS = 10
"""Number of steps of a window."""


def accounting_of(trainer: Any, every: int | None) -> "Accounting | None":
    """Add the account of every N steps to a trainer. None: no account is wanted.

    Raises:
        ConfigError: If N is below 10, or the account does not support the trainer's settings.
    """
    if every is None:
        return None
    check_whole("effect_every", every, least=STEPS)
    args = trainer.args
    batch = args.steps_per_generation * args.num_iterations
    if batch != args.gradient_accumulation_steps or args.world_size != 1:
        raise ConfigError(
            "effect_every needs one process, and one optimizer step for each generation batch: "
            "remove num_iterations and steps_per_generation, or remove effect_every"
        )
    if getattr(args, "weights_column", None) is not None:
        raise ConfigError("effect_every needs the same weights for all prompts: remove one of both")
    trainer.add_callback(accounting := Accounting(trainer, every))
    return accounting


class Accounting(TrainerCallback):
    """Accounts for the first ten of every N steps, and changes no number of the training.

    A window that a resumption interrupts has no account.
    """

    def __init__(self, trainer: Any, every: int) -> None:
        self._trainer, self._every = trainer, every
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
            if window.steps < STEPS:
                self._window = window
            else:
                self._tell(window.result(trainer.reward_func_names), step)
        if step % self._every == 0:
            window = Window(model, trainer.optimizer)
            window.add(self._passes(model, output), *arrays)
            self._window = window

    def _tell(self, account: Account, last: int) -> None:
        for said in account.sentences():
            logger.info("gdpo, steps %d to %d: %s", last + 1 - STEPS, last, said)
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
