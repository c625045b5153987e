"""The state of an estimator in the checkpoints of a run."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gdpo.advantages import AdvantageRule

KEY = "gdpo.AdvantageRule"
"""Under which it lies in a checkpoint's `trainer_state.json`, beside the states of callbacks."""


class RuleState(TrainerCallback):
    """Keeps what an estimator has learnt with every checkpoint, and restores it on resuming.

    Most estimators have no state, and leave nothing there.
    """

    def __init__(self, rule: AdvantageRule) -> None:
        self.rule = rule

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002 (transformers passes all of them)
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Take over the state of the checkpoint that training goes on from, if it does."""
        saved: Any = state.stateful_callbacks or {}
        self.rule.restore(saved.get(KEY, {}))

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Leave it where the next checkpoint takes it from."""
        kept: Any = state.stateful_callbacks
        now = self.rule.state()
        if now:
            kept[KEY] = now
