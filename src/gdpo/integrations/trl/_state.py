"""What a trainer has learned beside the model, in the checkpoints of a run."""

from collections.abc import Mapping
from typing import Any, Protocol

from transformers import TrainerCallback


class Stateful(Protocol):
    """Something with a state of lists, numbers and text."""

    def state(self) -> Mapping[str, Any]:
        """Return the state; empty: there is none."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; an empty one changes nothing."""
        ...


class KeptState(TrainerCallback):
    """Keeps the state of an estimator or a watch with every checkpoint, and restores it.

    Args:
        name: Under which it lies in a checkpoint's `trainer_state.json`, beside the states of
            callbacks.
        subject: Whose state it is.
    """

    def __init__(self, name: str, subject: Stateful) -> None:
        self.key = f"gdpo.{name}"
        self.subject = subject

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take over the state of the checkpoint that training goes on from, if it does."""
        self.subject.restore(state.stateful_callbacks.get(self.key, {}))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Leave it where the next checkpoint takes it from."""
        now = self.subject.state()
        if now:
            state.stateful_callbacks[self.key] = now
