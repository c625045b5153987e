"""Writes the rollout record of a training run: one parquet file per step."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainingArguments

from gdpo.integrations._turns import named
from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts.record import Declared
from gdpo.rollouts.writing import set_aside


class RolloutLog(TrainerCallback):
    """Collects the rollouts of a step and writes them to one file.

    The name of the run is `run_name`, or the folder name of `output_dir`. A folder that is not
    writable raises a ConfigError; later write failures are only logged.
    """

    def __init__(
        self, folder: Path, args: TrainingArguments, *, declared: Declared | None = None
    ) -> None:
        self._folder = folder
        self._declared = declared
        self._writers = self._new_writers()
        if PartialState().is_main_process:  # other machines do not need the folder
            self._writers["train"].check_folder()
        self._run = args.run_name or Path(str(args.output_dir)).absolute().name
        self._begun = False
        self._local: list[dict[str, Any]] = []

    def _new_writers(self) -> dict[str, StepWriter]:
        folders = {"train": self._folder, "eval": self._folder / "eval"}
        return {mode: StepWriter(each, declared=self._declared) for mode, each in folders.items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
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
        *,
        turn_tokens: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Store this process's rollouts until their advantages are computed.

        `turn_tokens` holds the number of tokens of each turn, or is None if turns are not recorded.
        """
        self._local = [
            {
                "prompt": _without_images(prompt),
                "completion": _without_images(completion),
                "num_tokens": len(ids),
                "finish_reason": "stop" if ids and int(ids[-1]) in ends_of_text else "length",
                "extra": {k: v for k, v in row.items() if k not in ("prompt", "image", "images")},
            }
            for row, prompt, completion, ids in zip(
                inputs, prompts, completions, completion_ids, strict=True
            )
        ]
        if turn_tokens is not None:
            for fact, tokens in zip(self._local, turn_tokens, strict=True):
                fact["turns"] = tokens

    def gathered(self) -> list[dict[str, Any]]:
        """Return the collected rollouts of all processes. Every process must call this method."""
        return gather_object(self._local)

    def write(
        self,
        facts: Sequence[Mapping[str, Any]],
        *,
        mode: str,
        step: int,
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        weights: Sequence[Mapping[str, float]],
        trained: Sequence[bool],
    ) -> None:
        """Write the rollouts of a generation batch to the file of its step, in the main process.

        `facts` is the result of `gathered`, with `Turn` objects in `turns` if turns are recorded.
        Each prompt has its weights by name, and whether it is trained on.
        """
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
                rewards=named(list(weights[0]), values),
                weights=weights[i // samples],
                advantage=advantage,
                trained=trained[i // samples],
                **fact,
            )
            for i, (fact, values, advantage) in enumerate(scored)
        ]
        self._writers[mode].write(step, rollouts)


def _without_images(text: Any) -> Any:
    if isinstance(text, str):
        return text
    messages: list[Mapping[str, Any]] = []
    for message in text:
        parts: Any = message.get("content")
        if isinstance(parts, list):
            known: Any = parts
            kept = [{"type": "image"} if p.get("type") == "image" else p for p in known]
            message = {**message, "content": kept}
        messages.append(message)
    return messages
