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
from gdpo.policy.account import AccountWindow
from gdpo.policy.effect import Batch

logger = logging.getLogger(__name__)

_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


def check_accounting(args: Any, every: int | None, *, turns: bool = False) -> None:
    """Check that the account of ten of every N steps supports the settings of a trainer.

    Args:
        args: Settings of the trainer.
        every: Number of steps N from the start of a window to that of the next one. None: no
            account is wanted.
        turns: Whether each turn has its own advantage.

    Raises:
        ConfigError: If N is not an integer of at least 10, or another setting is not supported.
    """
    if every is None:
        return
    check_whole("effect_every", every, least=WINDOW)
    conditions = {
        "one process": args.world_size == 1,
        "one optimizer step per generation batch (no num_iterations, no steps_per_generation)": (
            args.steps_per_generation * args.num_iterations == args.gradient_accumulation_steps
        ),
        "two groups per generation batch": args.generation_batch_size > args.num_generations,
        "one advantage per rollout (no estimator for turns)": not turns,
        "optim='adamw_torch' or 'adamw_torch_fused'": args.optim in _OPTIMIZERS,
    }
    if needed := [what for what, holds in conditions.items() if not holds]:
        raise ConfigError(
            f"effect_every needs {' and '.join(needed)}: change it, or remove effect_every"
        )


class Accounting(TrainerCallback):
    """Accounts for 10 of every N steps, first for steps 11 to 20.

    It changes no number of the training.

    A window is logged one step after its end. A window that is interrupted and resumed has no
    account.
    """

    def __init__(self, trainer: Any, names: Sequence[str], every: int) -> None:
        self._trainer, self._names, self._every = trainer, names, every
        self._window: AccountWindow | None = None
        self._taken: Any = None
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
        self._taken = output, rewards, weights, advantages

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Drop the window of a training that was interrupted."""
        self._window = None

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Say that a window has no account because the training has ended."""
        if self._window is not None:
            logger.warning("gdpo: the last steps have no account, which needs the step after them")

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Add the batch to the open window, and begin a window if it is time for one."""
        self._harmless(self._add)

    def _add(self) -> None:
        (taken, self._taken), (window, self._window) = (self._taken, None), (self._window, None)
        if taken is None:  # `watch` has left the batch out
            return
        trainer, (output, rewards, *others) = self._trainer, taken
        step = trainer.state.global_step
        if "pixel_values" in output:
            raise ConfigError("the account reads no images: remove effect_every")
        batch = Batch.of_trl(output, rewards)
        model = trainer.accelerator.unwrap_model(trainer.model)
        weights, advantages = (np.asarray(each, np.float64) for each in others)

        def add(to: AccountWindow) -> AccountWindow:
            rows = trainer.args.per_device_train_batch_size
            passes = batch.passes(model, rows, trainer.temperature)
            to.add(passes, batch.rewards, weights, advantages)
            return to

        if window is not None:
            self._window = add(window)
            if window.steps == WINDOW:
                self._report(window.result(self._names), step)
                self._window = None
        # Before, the second moment of a new optimizer is near 0 where few gradients cancel. Parts
        # do not cancel there: they would be hundreds of times too large.
        if step and step % self._every == WINDOW % self._every:
            self._window = add(AccountWindow(model, trainer.optimizer))

    def _report(self, account: Account, last: int) -> None:
        for said in account.sentences():
            logger.warning("gdpo, steps %d to %d: %s", last + 1 - WINDOW, last, one_line(said))
        for name, value in account.metrics():
            self._trainer._metrics["train"][name].append(value)
