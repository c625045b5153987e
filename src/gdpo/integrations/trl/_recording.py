"""Our rollout record from a trainer of TRL's own, whose estimator stays what it is."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from gdpo.errors import ConfigError
from gdpo.integrations.trl._rollouts import RolloutLog
from gdpo.integrations.trl._trainer import GDPOTrainer


def record_rollouts(trainer: GRPOTrainer, folder: str | Path) -> None:
    """Have TRL's `GRPOTrainer` write every rollout with each of its rewards, a file per step.

    One line before `trainer.train()`; nothing else changes, neither rewards nor advantages:

        record_rollouts(trainer, "out/rollouts")

    `gdpo analyze out/rollouts` reads them. Under several processes every one of them calls it.

    Args:
        trainer: Of TRL; also a subclass that makes advantages in its own way.
        folder: Where training steps are kept; evaluations go into its subfolder `eval`. When
            training begins, what another run left there goes into `earlier-1`, or the next number
            that is free. A run that is resumed goes on in the folder that it began in.

    Raises:
        ConfigError: The trainer is a `GDPOTrainer`, which records by itself, or the folder cannot
            be written to.
    """
    if isinstance(trainer, GDPOTrainer):
        raise ConfigError("GDPOTrainer records by itself: set rollouts_dir in its GDPOConfig")
    log = RolloutLog(Path(folder), trainer.args)
    trainer.add_callback(log)
    recorded = _Recorded(trainer, log)
    # Of this one trainer: its class is the user's.
    for name, recording in (
        ("_calculate_rewards", recorded.rewards),
        ("_generate_and_score_completions", recorded.advantages),
    ):
        setattr(trainer, name, recording(getattr(trainer, name)))


class _Recorded:
    def __init__(self, trainer: Any, log: RolloutLog) -> None:
        self._trainer = trainer
        self._log = log
        self._rewards: torch.Tensor | None = None

    def rewards(self, calculate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """TRL's method, which also keeps what it is given and what it makes."""
        trainer = self._trainer
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        ends = {*trainer.eos_token_ids, tokenizer.pad_token_id}

        @functools.wraps(calculate)
        def calculated(
            inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
        ) -> torch.Tensor:
            self._rewards = calculate(inputs, prompts, completions, completion_ids_list)
            self._log.collect(inputs, prompts, completions, completion_ids_list, ends)
            return self._rewards

        return calculated

    def advantages(self, generate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """TRL's method, whose rollouts are written once their advantages are known."""

        @functools.wraps(generate)
        def generated(inputs: Any) -> Any:
            output = generate(inputs)
            self._write(output["advantages"])
            return output

        return generated

    def _write(self, local: torch.Tensor) -> None:
        trainer, rewards = self._trainer, self._rewards
        if rewards is None:
            raise ConfigError(
                "this trainer makes advantages without TRL's _calculate_rewards, so that its "
                "rewards cannot be recorded: leave record_rollouts out"
            )
        training = trainer.model.training
        samples = trainer.num_generations if training else trainer.num_generations_eval
        grouped = rewards.view(-1, samples, rewards.shape[-1])
        advantages = trainer.accelerator.gather(local)
        self._log.write(
            mode="train" if training else "eval",
            step=trainer.state.global_step + training,
            rewards=grouped,
            advantages=advantages.view(grouped.shape[:2]),
            weights=dict(
                zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
            ),
            trained=[True] * len(grouped),
            is_main_process=trainer.accelerator.is_main_process,
        )
