"""Rollout records of a running trainer: all processes' rows are gathered, one process writes."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts._record import Declared


class RolloutLog:
    """Collects the rollouts of a step and writes them as one file.

    Args:
        folder: Where training steps are kept; evaluations go into its subfolder `eval`.
        run: Name of the run, as the record has it.
        declared: Of the rewards, see `gdpo.rollouts.write_rollouts`.

    Raises:
        ConfigError: The folder cannot be written to. (Later, during the run, that is logged.)
    """

    def __init__(self, folder: Path, run: str, *, declared: Declared | None = None) -> None:
        self._writers = {
            "train": StepWriter(folder, declared=declared),
            "eval": StepWriter(folder / "eval", declared=declared),
        }
        if PartialState().is_main_process:  # the folder need not be there on other machines
            self._writers["train"].check_folder()
        self._run = run
        self._local: list[dict[str, Any]] = []

    def collect(
        self,
        inputs: Sequence[Mapping[str, Any]],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        ends_of_text: Set[int],
    ) -> None:
        """Keep what this process knows of its rollouts until their advantages are known."""
        self._local = [
            {
                "prompt": prompt,
                "completion": completion,
                "num_tokens": len(ids),
                "finish_reason": "stop" if ids and int(ids[-1]) in ends_of_text else "length",
                "extra": {k: v for k, v in row.items() if k not in ("prompt", "image", "images")},
            }
            for row, prompt, completion, ids in zip(
                inputs, prompts, completions, completion_ids, strict=True
            )
        ]

    def write(
        self,
        *,
        mode: str,
        step: int,
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        weights: Mapping[str, float],
        trained: Sequence[bool],
        is_main_process: bool,
    ) -> None:
        """Gather the rollouts of a generation batch and write the file of its step.

        Every process must call it.

        Args:
            mode: `train` or `eval`.
            step: The optimizer step that the rollouts belong to.
            rewards: `[prompt, sample, reward]`, of all processes.
            advantages: `[prompt, sample]`, of all processes.
            weights: By reward name, in the order of the reward axis.
            trained: Of each prompt's rollouts, whether they are in the batch that is trained.
            is_main_process: Whether this process writes.
        """
        facts: list[dict[str, Any]] = gather_object(self._local)
        if not is_main_process:
            return
        samples = rewards.shape[1]
        scored = zip(
            facts, rewards.flatten(0, 1).tolist(), advantages.flatten().tolist(), strict=True
        )
        rollouts = [
            Rollout(
                run=self._run,
                step=step,
                group_id=i // samples,
                sample_id=i % samples,
                rewards={
                    name: None if value != value else value  # NaN: missing
                    for name, value in zip(weights, values, strict=True)
                },
                weights=weights,
                advantage=advantage,
                trained=trained[i // samples],
                **fact,
            )
            for i, (fact, values, advantage) in enumerate(scored)
        ]
        self._writers[mode].write(step, rollouts)
