from collections.abc import Mapping
from typing import Any, Protocol

from transformers import TrainerCallback


class Stateful(Protocol):
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class KeptState(TrainerCallback):
    """Saves the states of objects (estimator, watch) in every checkpoint, and restores them.

    Each state is in the checkpoint's `trainer_state.json` under its name.
    """

    def __init__(self, subjects: Mapping[str, Stateful]) -> None:
        self.subjects = dict(subjects)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        for key, subject in self.subjects.items():
            subject.restore(state.stateful_callbacks.get(key, {}))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        for key, subject in self.subjects.items():
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
