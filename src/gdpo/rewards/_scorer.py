"""Scores a batch: rewards x rollouts -> reward array.

A reward that fails costs its own entry and nothing else.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from gdpo.errors import ConfigError
from gdpo.rewards._reward import Reference, Reward

logger = logging.getLogger(__name__)

_SHOWN = 200
"""Characters of a completion, or of an exception's text, that a message shows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A reward that broke its contract on one rollout."""

    reward: str
    index: int
    """Place of the rollout in the batch."""
    kind: str
    """`raised <Exception>`, `not a number`, or `out of range`."""
    message: str


@dataclass(frozen=True, slots=True)
class Scores:
    """The reward array of a batch, and what went wrong on the way."""

    values: Float[np.ndarray, "rollout reward"]
    """float64; NaN where a reward does not apply or failed."""
    failures: tuple[Failure, ...]

    def failed(self, reward: str) -> int:
        """Number of rollouts on which the reward of this name failed."""
        return sum(failure.reward == reward for failure in self.failures)


def score(
    rewards: Sequence[Reward], completions: Sequence[str], references: Sequence[Reference]
) -> Scores:
    """Score every completion with every reward.

    A reward that raises, returns something other than a number or `None`, or leaves its range gives
    NaN for that rollout: the estimators leave it out of every statistic. The first failure of each
    kind is logged with the completion that caused it.

    Args:
        rewards: Rewards with distinct names.
        completions: What the model wrote, one text per rollout.
        references: What each completion is judged against, in the same order.

    Returns:
        The array `[rollout, reward]`, in the order given, and the failures.

    Raises:
        ConfigError: Two rewards share a name, or the two sequences differ in length.
    """
    check_distinct([reward.name for reward in rewards])
    if len(completions) != len(references):
        raise ConfigError(
            f"{len(completions)} completions but {len(references)} references: one of each per "
            f"rollout"
        )
    values = np.full((len(completions), len(rewards)), np.nan)
    failures: list[Failure] = []
    for k, reward in enumerate(rewards):
        for i, (completion, reference) in enumerate(zip(completions, references, strict=True)):
            result = score_one(reward, completion, reference, i)
            if isinstance(result, Failure):
                failures.append(result)
            elif result is not None:
                values[i, k] = result
    _log_first_of_each_kind(failures, completions)
    return Scores(values, tuple(failures))


def score_one(
    reward: Reward, completion: str, reference: Reference, index: int = 0
) -> float | Failure | None:
    """The reward's value, `None` where it does not apply, or what went wrong."""
    try:
        value = reward.function(completion, reference)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a reward is users' code: its failure is data
        return Failure(reward.name, index, f"raised {type(error).__name__}", str(error)[:_SHOWN])
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


def _as_number(value: object) -> float | None:
    # float() reads some text, which is no number all the same; and on an array or a tensor it runs
    # its library's code, which raises what it likes.
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except Exception:  # noqa: BLE001
        return None


def check_distinct(names: Sequence[str]) -> None:
    """Raise a ConfigError if two rewards share a name."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ConfigError(
            f"reward names must differ, because weights, metrics and files go by them; repeated: "
            f"{', '.join(repeated)}. Rename one of each"
        )


def _log_first_of_each_kind(failures: Sequence[Failure], completions: Sequence[str]) -> None:
    seen: Counter[tuple[str, str]] = Counter((f.reward, f.kind) for f in failures)
    for failure in failures:
        count = seen.pop((failure.reward, failure.kind), 0)
        if count:
            logger.warning(
                "reward %r failed on %d of %d rollouts (%s: %s); counted as missing. The first: %r",
                failure.reward,
                count,
                len(completions),
                failure.kind,
                failure.message,
                completions[failure.index][:_SHOWN],
            )
