"""What scoring gives: a value, `None`, or a failure that is counted."""

import inspect
import os
import sysconfig
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from gdpo.rewards._event_loop import wait_for
from gdpo.rewards.reward import Reference, Reward

SHOWN = 200
"""Characters of a completion, or of an exception's text, that a message shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A reward that broke its contract on one rollout."""

    reward: str
    index: int
    """Place of the rollout in the batch."""
    kind: str
    """`raised <Exception>`, `not a number`, `out of range`, `timed out`, or `worker died`."""
    message: str
    error: BaseException | None = field(default=None, repr=False, compare=False)
    """What the reward raised, if it did so in this process and `on_error` is `raise`."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Scores:
    """The reward array of a batch, and what went wrong on the way."""

    values: Float[np.ndarray, "rollout reward"]
    """float64; NaN where a reward does not apply or failed."""
    failures: tuple[Failure, ...]

    def failed(self, reward: str) -> int:
        """Number of rollouts on which the reward of this name failed."""
        return sum(failure.reward == reward for failure in self.failures)

    def kinds(self, reward: str) -> Mapping[str, int]:
        """Number of rollouts on which the reward of this name failed, by kind of failure."""
        return Counter(failure.kind for failure in self.failures if failure.reward == reward)


Result: TypeAlias = float | Failure | None
"""What one reward gives for one rollout; `None` where it does not apply."""


@dataclass(frozen=True, slots=True)
class Call:
    """One reward to run on one rollout."""

    place: int
    """Of the reward among the scorer's."""
    reward: Reward
    completion: str | int
    """The text, or the number of its tokens: what the reward judges."""
    reference: Reference
    index: int
    """Place of the rollout in the batch."""

    def timed_out(self, seconds: float, why: str = "") -> Failure:
        """The failure of a call that took longer than this; why, as the end of a sentence."""
        message = f"took more than {seconds:g} s{why}"
        return Failure(self.reward.name, self.index, "timed out", message)


def score_one(
    reward: Reward, completion: str | int, reference: Reference, index: int = 0
) -> Result:
    """Return the reward's value, `None` where it does not apply, or what went wrong.

    Runs where it is called and takes as long as it takes: the deadline is a scorer's business. A
    child that the reward forks ends where the reward ends: only this process goes on.

    Args:
        reward: Of the text, or of the number of tokens.
        completion: What the reward judges: the text or that number.
        reference: What it is judged against.
        index: Place of the rollout in its batch, for the failure.
    """
    process = os.getpid()
    try:
        value: Any = reward.function(completion, reference)
        if inspect.isawaitable(value):
            value = wait_for(_awaited(value))
        return checked(reward, index, value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a reward is users' code: its failure is data
        return raised(reward, index, error)
    finally:
        if os.getpid() != process:
            os._exit(1)


async def _awaited(value: Any) -> Any:
    return await value


def checked(reward: Reward, index: int, value: object) -> Result:
    """What a reward returned, as a float in its range, `None`, or a failure."""
    if value is None:
        return None
    number = _as_number(value)
    if number is None:
        kind = "not a number"
        message = f"returned a {type(value).__name__}; allowed: a number, or None"
        return Failure(reward.name, index, kind, message)
    if not reward.low <= number <= reward.high:
        kind = "not a number" if np.isnan(number) else "out of range"
        allowed = f"allowed: [{reward.low}, {reward.high}], or None where it does not apply"
        return Failure(reward.name, index, kind, f"returned {number}; {allowed}")
    return number


def raised(reward: Reward, index: int, error: BaseException) -> Failure:
    """The failure of a reward that raised, with the place. The error's text may fail as well."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  users' code makes the text of its errors
        text = ""
    place = _place(error)
    message = text[: max(0, SHOWN - len(place))] + place
    return Failure(reward.name, index, f"raised {type(error).__name__}", message, error)


_LIBRARIES = tuple(
    sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = str(Path(__file__).parent) + "/"


def _place(error: BaseException) -> str:
    """File and line of the reward's own code where it was raised, rather than a library's."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith((*_LIBRARIES, _OURS, "<frozen"))]
    for file, line in (own or places)[-1:]:
        return f" ({Path(file).name}:{line})"
    return ""


def _as_number(value: object) -> float | None:
    # float() reads some text, which is no number all the same; and on an array or a tensor it runs
    # its library's code, which raises what it likes.
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except Exception:  # noqa: BLE001  see above
        return None
