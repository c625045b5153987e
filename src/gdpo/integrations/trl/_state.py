"""The state of an estimator in the checkpoints of a run."""

from typing import Any

from transformers import TrainerCallback

from gdpo.advantages import AdvantageRule

KEY = "gdpo.AdvantageRule"
"""Under which it lies in a checkpoint's `trainer_state.json`, beside the states of callbacks."""


class RuleState(TrainerCallback):
    """Keeps what an estimator has learnt with every checkpoint, and restores it on resuming.

    Most estimators have no state, and leave nothing there.
    """

    def __init__(self, rule: AdvantageRule) -> None:
        self.rule = rule

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take over the state of the checkpoint that training goes on from, if it does."""
        self.rule.restore(state.stateful_callbacks.get(KEY, {}))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Leave it where the next checkpoint takes it from."""
        now = self.rule.state()
        if now:
            state.stateful_callbacks[KEY] = now
