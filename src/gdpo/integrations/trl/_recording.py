"""Our rollout record from a trainer of TRL's own, whose estimator stays what it is."""

from collections.abc import Callable
from itertools import islice
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
        folder: Where training steps are kept; evaluations go into its subfolder `eval`.

    Raises:
        ConfigError: The trainer is a `GDPOTrainer`, which records by itself.
    """
    if isinstance(trainer, GDPOTrainer):
        raise ConfigError("GDPOTrainer records by itself: set rollouts_dir in its GDPOConfig")
    recorded = _Recorded(trainer, RolloutLog(Path(folder), trainer.args.run_name or ""))
    # Of this one trainer: its class is the user's.
    trainer._calculate_rewards = recorded.rewards(trainer._calculate_rewards)  # pyright: ignore
    trainer._generate_and_score_completions = recorded.advantages(  # pyright: ignore
        trainer._generate_and_score_completions  # pyright: ignore
    )


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

        def calculated(inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
            self._rewards = calculate(inputs, prompts, completions, ids)
            self._log.collect(inputs, prompts, completions, ids, ends)
            return self._rewards

        return calculated

    def advantages(self, generate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """TRL's method, whose rollouts are written once their advantages are known."""

        def generated(inputs: Any) -> Any:
            output = generate(inputs)
            self._write()
            return output

        return generated

    def _write(self) -> None:
        trainer, rewards = self._trainer, self._rewards
        assert rewards is not None, "TRL scored no rewards before it made advantages"
        training = trainer.model.training
        samples = trainer.num_generations if training else trainer.num_generations_eval
        grouped = rewards.view(-1, samples, rewards.shape[-1])
        # TRL's table holds the gathered advantages of the latest batches, this one's last.
        latest = reversed(trainer._logs["advantages"])
        flat = list(islice(latest, len(rewards)))[::-1]
        self._log.write(
            mode="train" if training else "eval",
            step=trainer.state.global_step + training,
            rewards=grouped,
            advantages=torch.tensor(flat).view(grouped.shape[:2]),
            weights=dict(
                zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
            ),
            trained=[True] * len(grouped),
            is_main_process=trainer.accelerator.is_main_process,
        )
