"""Defines the results of scoring: a value, `None`, or a failure."""

import inspect
import os
import pickle
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeAlias

import numpy as np

from gdpo._shapes import Float
from gdpo.rewards._event_loop import wait_for
from gdpo.rewards.reward import Messages, Reference, Reward

SHOWN = 200
"""Maximum number of characters of a completion or exception that a message shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Stores how a reward broke its contract on one rollout."""

    reward: str
    index: int
    """Index of the rollout in the batch."""
    kind: str
    """`raised <Exception>`, `not a number`, `out of range`, `timed out`, or `worker died`."""
    message: str
    error: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception, if the reward raised it in this process and `on_error` is `raise`."""
    turn: int | None = None
    """Index of the turn. None: the reward does not score turns."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Scores:
    """Stores the reward array of a batch and the failures."""

    values: Float[np.ndarray, "rollout reward"]
    """The scores in float64. NaN means that the reward does not apply or failed. For a reward that
    scores turns, the total over the turns."""
    failures: tuple[Failure, ...]
    turns: Mapping[str, Sequence[Sequence[float]]] = field(
        default_factory=dict[str, Sequence[Sequence[float]]]
    )
    """For each reward that scores turns, the scores of each turn of each rollout. NaN as in
    `values`."""

    def failed(self, reward: str) -> int:
        """Return the number of rollouts on which this reward failed."""
        return len({failure.index for failure in self.failures if failure.reward == reward})

    def kinds(self, reward: str) -> Mapping[str, int]:
        """Return the number of rollouts on which this reward failed, by kind of failure."""
        failed = {(f.kind, f.index): f for f in self.failures if f.reward == reward}
        return Counter(kind for kind, _ in failed)


Result: TypeAlias = float | Failure | None
"""Result of one reward on one rollout. None: the reward does not apply."""


@dataclass(frozen=True, slots=True)
class Call:
    """Stores one reward to run on one rollout."""

    place: int
    """Index of the reward in the scorer."""
    reward: Reward
    completion: str | int | Messages
    """The text, the number of tokens, or the messages up to a turn, as `reward.of` says."""
    reference: bytes
    """The reference, pickled."""
    index: int
    """Index in the batch: of the rollout, or of the turn if the reward scores turns."""

    def arguments(self) -> tuple[str | int | Messages, Reference]:
        """Return copies of what the reward receives, which the reward may change."""
        given = self.completion
        own = given if isinstance(given, str | int) else pickle.loads(pickle.dumps(given))
        return own, pickle.loads(self.reference)

    def run(self) -> "Result":
        """Return the result in this process. A reference that cannot be copied is a failure."""
        try:
            given, reference = self.arguments()
        except Exception as error:  # noqa: BLE001  objects of users may define how they are copied
            return raised(self.reward, self.index, error)
        return score_one(self.reward, given, reference, self.index)

    def timed_out(self, seconds: float, why: str = "") -> Failure:
        """Return the failure of a call that took longer than `seconds`.

        `why` is the end of the message, with its leading space or comma.
        """
        message = f"took more than {seconds:g} s{why}"
        return Failure(self.reward.name, self.index, "timed out", message)


def score_one(
    reward: Reward, completion: str | int | Messages, reference: Reference, index: int = 0
) -> Result:
    """Return the reward's value, `None` if the reward does not apply, or the failure.

    If the reward forks, the child exits when the reward returns in it. `completion` is what
    `reward.of` says, and `index` the rollout's index in its batch.
    """
    process = os.getpid()
    try:
        value: Any = reward.function(completion, reference)
        if inspect.isawaitable(value):
            value = wait_for(_awaited(value))
        return checked(reward, index, value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  user code: its failure becomes data
        return raised(reward, index, error)
    finally:
        if os.getpid() != process:
            os._exit(1)


async def _awaited(value: Any) -> Any:
    return await value


def checked(reward: Reward, index: int, value: object) -> Result:
    """Return a reward's value as a float in the reward's range, `None`, or a failure."""
    if value is None:
        return None
    number = _as_number(value)
    if number is None:
        kind = "not a number"
        message = f"returned {type(value).__name__}; allowed: a number, or None"
        return Failure(reward.name, index, kind, message)
    if not reward.low <= number <= reward.high:
        kind = "not a number" if np.isnan(number) else "out of range"
        allowed = f"allowed: [{reward.low}, {reward.high}], or None if it does not apply"
        return Failure(reward.name, index, kind, f"returned {number}; {allowed}")
    return number


def raised(reward: Reward, index: int, error: BaseException) -> Failure:
    """Return the failure of a reward that raised, with the file and line."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  str() runs user code, which may also raise
        text = ""
    place = _place(error)
    message = text[: max(0, SHOWN - len(place))] + place
    return Failure(reward.name, index, f"raised {type(error).__name__}", message, error)


_LIBRARIES = tuple(
    sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = str(Path(__file__).parent) + "/"


def _place(error: BaseException) -> str:
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith((*_LIBRARIES, _OURS, "<frozen"))]
    for file, line in (own or places)[-1:]:
        return f" ({Path(file).name}:{line})"
    return ""


def _as_number(value: object) -> float | None:
    # float() accepts some strings, which are not valid scores. For an array or a tensor, float()
    # runs library code, which may raise any exception.
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except Exception:  # noqa: BLE001  see above
        return None
