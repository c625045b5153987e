"""State of a trainer that its checkpoints keep."""

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
    """Keeps the states of an estimator and a watch with every checkpoint, and restores them.

    Args:
        subjects: Whose states they are, by the name under which each lies in a checkpoint's
            `trainer_state.json`, beside the states of callbacks.
    """

    def __init__(self, subjects: Mapping[str, Stateful]) -> None:
        self.subjects = dict(subjects)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take over the states of the checkpoint that training goes on from, if it does."""
        for key, subject in self.subjects.items():
            subject.restore(state.stateful_callbacks.get(key, {}))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Leave them where the next checkpoint takes them from."""
        for key, subject in self.subjects.items():
            if now := subject.state():
                state.stateful_callbacks[key] = now
