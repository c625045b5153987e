"""The rollout record of a training: a parquet file of each step."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainingArguments

from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts.record import Declared
from gdpo.rollouts.writing import set_aside


class RolloutLog(TrainerCallback):
    """Collects the rollouts of a step and writes them as one file.

    When training begins, what another run left in the folder is set aside. A run that is resumed
    goes on in it.

    Args:
        folder: Where training steps are kept; evaluations go into its subfolder `eval`.
        args: Of the trainer. The record calls the run by its `run_name`, or else by the name of its
            `output_dir`.
        declared: Of the rewards, see `gdpo.rollouts.write_rollouts`.

    Raises:
        ConfigError: The folder cannot be written to. (Later, during the run, that is logged.)
    """

    def __init__(
        self, folder: Path, args: TrainingArguments, *, declared: Declared | None = None
    ) -> None:
        self._folder = folder
        self._declared = declared
        self._writers = self._new_writers()
        if PartialState().is_main_process:  # the folder need not be there on other machines
            self._writers["train"].check_folder()
        self._run = args.run_name or Path(str(args.output_dir)).absolute().name
        self._begun = False
        self._local: list[dict[str, Any]] = []

    def _new_writers(self) -> dict[str, StepWriter]:
        folders = {"train": self._folder, "eval": self._folder / "eval"}
        return {mode: StepWriter(each, declared=self._declared) for mode, each in folders.items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Set aside what another run left, but not this one's evaluation before its training."""
        if self._begun:
            self._writers = self._new_writers()
        if state.is_world_process_zero and state.global_step == 0:
            set_aside(self._folder, keep=[w.file for w in self._writers.values() if w.file])
        self._begun = True

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
