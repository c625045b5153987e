"""Writes gdpo's rollout record from TRL's own trainer without changing the advantages."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from gdpo.errors import ConfigError
from gdpo.integrations.trl._adapter import end_token_ids
from gdpo.integrations.trl._rollouts import RolloutLog
from gdpo.integrations.trl._trainer import GDPOTrainer


def record_rollouts(trainer: GRPOTrainer, folder: str | Path) -> None:
    """Make TRL's `GRPOTrainer` write every rollout with its separate rewards, one file per step.

    Call this function once before `trainer.train()`. Rewards and advantages do not change:

        record_rollouts(trainer, "out/rollouts")

    `gdpo analyze out/rollouts` reads the files. In a run with several processes, every process must
    call this function.

    Args:
        trainer: TRL's `GRPOTrainer`, or a subclass that computes its own advantages.
        folder: Folder for training steps. Evaluations are written to its subfolder `eval`. When
            training begins, files of an earlier run in this folder are moved to `earlier-1` (or the
            next free number). A resumed run keeps writing to the same folder.

    Raises:
        ConfigError: If the trainer is a `GDPOTrainer`, which writes the record itself, or if the
            folder is not writable.
    """
    if isinstance(trainer, GDPOTrainer):
        raise ConfigError(
            "GDPOTrainer writes the rollout record itself: set rollouts_dir in its GDPOConfig, and "
            "remove record_rollouts"
        )
    log = RolloutLog(Path(folder), trainer.args)
    trainer.add_callback(log)
    recorded = _Recorded(trainer, log)
    # Wrap the methods of this instance only, because other trainers may use the same class.
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
        """Wrap TRL's method to store its arguments and its result."""
        trainer = self._trainer
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        ends = {*end_token_ids(trainer), tokenizer.pad_token_id}

        @functools.wraps(calculate)
        def calculated(
            inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
        ) -> torch.Tensor:
            self._rewards = calculate(inputs, prompts, completions, completion_ids_list)
            self._log.collect(inputs, prompts, completions, completion_ids_list, ends)
            return self._rewards

        return calculated

    def advantages(self, generate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap TRL's method to write the rollouts after their advantages have been computed."""

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
                "record_rollouts cannot record the rewards of this trainer, because the trainer "
                "does not call TRL's _calculate_rewards: remove record_rollouts"
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
