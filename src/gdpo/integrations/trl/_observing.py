"""Diagnoses batches of a run, keeps its state in checkpoints, and writes its rollout record."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from gdpo._text import one_line
from gdpo.analysis.run import RunSteps, run_of
from gdpo.analysis.steps import StepAnalysis
from gdpo.analysis.verdict import verdict_of
from gdpo.diagnostics import Diagnosis, Watch, diagnose
from gdpo.diagnostics.step import Bounds
from gdpo.integrations._harmless import Harmless
from gdpo.integrations._turns import of_rollouts
from gdpo.integrations.trl._adapter import ends_of_text, is_training
from gdpo.integrations.trl._turns import TurnRewards
from gdpo.rollouts import Rollout, StepWriter
from gdpo.rollouts.readers import ReadReport
from gdpo.rollouts.record import Declared, recorded
from gdpo.rollouts.table import RolloutTable, padded
from gdpo.rollouts.writing import set_aside

logger = logging.getLogger(__name__)


class Observer(TrainerCallback):
    """Diagnoses every batch, logs each warning once, and at the end what the run calls for."""

    def __init__(
        self,
        trainer: Any,
        estimator: str | None,
        detail: str,
        *,
        low: Bounds = None,
        high: Bounds = None,
    ) -> None:
        self.watch = Watch()
        self._run = RunSteps("")
        self._trainer, self._estimator = trainer, estimator
        self._detail, self._low, self._high = detail, low, high

    def diagnosis(
        self, rewards: torch.Tensor, weights: Any, names: Sequence[str], advantages: torch.Tensor
    ) -> Diagnosis:
        found = diagnose(
            rewards,
            weights,
            names,
            estimator=self._estimator,
            advantages=advantages,
            low=self._low,
            high=self._high,
        )
        if not self._trainer.model.training:
            return found
        step = self._trainer.state.global_step + 1
        self._run.add(StepAnalysis.of(found, step))
        found = self.watch.update(found)
        if self._trainer.accelerator.is_main_process:
            for finding in self.watch.due:
                logger.warning("gdpo, step %d: %s", step, finding.line)
        return found

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._trainer.state.is_world_process_zero and self._run.steps:
            Harmless("the training has no verdict because of an error")(self._conclude)

    def _conclude(self) -> None:
        run = run_of(self._run)
        said = one_line(verdict_of(run, ReadReport(())).sentence)
        logger.warning("gdpo, steps %d to %d: %s", run.steps[0], run.steps[-1], said)

    def metrics(self, diagnosis: Diagnosis) -> dict[str, float]:
        by_trl = {f"diagnostics/{reward.name}/mean" for reward in diagnosis.rewards}
        by_trl.add("diagnostics/zero_advantage_groups")  # TRL: frac_reward_zero_std
        metrics = diagnosis.metrics(detail=self._detail)
        return {key: value for key, value in metrics.items() if key not in by_trl}


class Stateful(Protocol):
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class KeptState(TrainerCallback):
    """Saves the states of objects (estimator, watch) in every checkpoint, and restores them.

    Each state is in the checkpoint's `trainer_state.json` under its name.
    """

    def __init__(self, subjects: Mapping[str, Stateful]) -> None:
        self._subjects = subjects

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        for key, subject in self._subjects.items():
            subject.restore(state.stateful_callbacks.get(key, {}))

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        for key, subject in self._subjects.items():
            if now := subject.state():
                state.stateful_callbacks[key] = now


class CountedBatches:
    """Counts a generation batch once, even if TRL generates it again after a resumption.

    A checkpoint of TRL does not contain the rollouts, so a resumed run generates others instead of
    the unused ones.
    """

    def __init__(self) -> None:
        self._used_up = 0

    def counts(self, step: int, steps: int) -> bool:
        """Return whether the batch generated at an optimizer step differs from the last one.

        `step` optimizer steps are finished, and `steps` use the batch. 0: less than one.
        """
        if step < self._used_up:
            return False
        self._used_up = step + steps
        return True

    def state(self) -> Mapping[str, Any]:
        return {"used_up": self._used_up}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._used_up = int(state.get("used_up", 0))


class RolloutLog(TrainerCallback):
    """Collects the rollouts of a step and writes them to one file.

    The name of the run is `run_name`, or the folder name of `output_dir`. A folder that is not
    writable raises a ConfigError.
    """

    def __init__(
        self, folder: str | Path, trainer: Any, *, declared: Declared | None = None
    ) -> None:
        self._folder, self._trainer, self._declared = Path(folder), trainer, declared
        self._writers = self._new_writers()
        if trainer.accelerator.is_main_process:  # other machines do not need the folder
            self._writers[True].check_folder()
        args = trainer.args
        self._run = args.run_name or Path(str(args.output_dir)).absolute().name
        self._begun = False
        self._local: list[dict[str, Any]] = []

    def _new_writers(self) -> dict[bool, StepWriter]:
        """Return the writers for batches of the training (True) and of evaluations (False)."""
        folders = {True: self._folder, False: self._folder / "eval"}
        return {key: StepWriter(each, declared=self._declared) for key, each in folders.items()}

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
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
        turn_tokens: Sequence[Sequence[int]],
    ) -> None:
        """Store this process's rollouts until their advantages are computed.

        `turn_tokens` holds the number of tokens of each turn.
        """
        ends = ends_of_text(self._trainer)
        self._local = [
            {
                "prompt": _without_images(prompt),
                "completion": _without_images(completion),
                "num_tokens": len(ids),
                "finish_reason": "stop" if ids and int(ids[-1]) in ends else "length",
                "extra": {k: v for k, v in row.items() if k not in ("prompt", "image", "images")},
                "turns": tokens,
            }
            for row, prompt, completion, ids, tokens in zip(
                inputs, prompts, completions, completion_ids, turn_tokens, strict=True
            )
        ]

    def gathered(self) -> list[dict[str, Any]]:
        """Return the collected rollouts of all processes. Every process must call this method.

        A process that has collected none since the last call has none here.
        """
        local, self._local = self._local, []
        return gather_object(local)

    def write(
        self,
        facts: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        rewards: torch.Tensor,
        advantages: torch.Tensor,
        weights: Any,
        *,
        trained: Sequence[bool],
        turns: TurnRewards | None = None,
    ) -> None:
        """Write the rollouts of a generation batch to the file of its step, in the main process.

        `facts` is the result of `gathered`, and the arrays are those of the same rollouts.
        `trained` has a value for each prompt. Advantages `[prompt, sample]` count for every turn.
        """
        if not self._trainer.accelerator.is_main_process:
            return
        prompts, samples, count = rewards.shape
        groups, of_turns, whole = np.repeat(np.arange(prompts), samples), None, advantages
        if turns is not None:
            taken, whole = turns.taken.numpy(), of_rollouts(advantages, turns.counts)
            each = advantages.reshape(prompts, samples, -1).expand(taken.shape)
            of_turns = padded(
                turns.counts.flatten().numpy(),
                [
                    *turns.rewards.double().numpy()[taken].T,
                    each.double().numpy()[taken],
                    np.array([count for fact in facts for count in fact["turns"]], np.float64),
                ],
            )
        table = RolloutTable.of(
            names,
            rewards.flatten(0, 1).double().numpy(),
            groups,
            advantages=whole.flatten().double().numpy(),
            num_tokens=np.array([fact["num_tokens"] for fact in facts], np.float64),
            weights=np.broadcast_to(weights, (prompts, count))[groups],
            trained=np.array(trained)[groups],
            turns=of_turns,
        )
        training = is_training(self._trainer)
        step = self._trainer.state.global_step + training
        rollouts = [
            Rollout(run=self._run, step=step, **{**fact, **numbers})
            for fact, numbers in zip(facts, recorded(table), strict=True)
        ]
        self._writers[training].write(step, rollouts)


def _without_images(text: Any) -> Any:
    if isinstance(text, str):
        return text
    messages: list[Mapping[str, Any]] = []
    for message in text:
        if isinstance(message.get("content"), list):
            parts = message["content"]
            kept = [{"type": "image"} if p.get("type") == "image" else p for p in parts]
            message = {**message, "content": kept}
        messages.append(message)
    return messages
