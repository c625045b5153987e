"""Tries every reward on good and bad answers, before a model is asked for any."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdpo.errors import RewardError
from gdpo.rewards import Failure, Reference, Reward
from gdpo.rewards import score_one as score_completion
from gdpo.tasks import Sample, Task

_ODD = ("", " \n", "{", "<think>", "\ud800\x00", "0" * 5000)
"""Completions that a model may well write; every reward must return on them."""

_ODD_ROWS = 8
"""Rows on which they are tried."""


@dataclass(frozen=True, slots=True)
class RewardFinding:
    """What was found about one reward, or about all of them together."""

    text: str
    doubtful: bool = False
    """Allowed, but probably not meant."""
    mistake: RewardError | None = None


def check_rewards(
    task: Task, rewards: Sequence[Reward], samples: Sequence[Sample]
) -> Iterator[RewardFinding]:
    """One finding per reward, then one about the bad answer.

    A reward of the task must reach its maximum on the gold answer of every row that it applies to.
    A reward of the user's own need not (a gold answer may be long where brevity is rewarded), but
    where it never does that is told. None may raise, or return what is no number or out of its
    range.

    Args:
        task: Knows the gold answers and a bad one.
        rewards: What the recipe rewards.
        samples: The rows to try.
    """
    for reward in rewards:
        try:
            yield _check_one(task, reward, samples)
        except RewardError as error:
            yield RewardFinding(str(error), mistake=error)
    own = [reward for reward in rewards if task.reward(reward.name) is reward]
    if own:
        yield _check_bad_answer(task, own, samples)


def _check_one(task: Task, reward: Reward, samples: Sequence[Sample]) -> RewardFinding:
    applies = reached = 0
    for number, sample in enumerate(samples, 1):
        gold = _gold(task, sample, number)
        value = _score(reward, gold, sample.reference, f"the gold answer of row {number}")
        applies += value is not None
        reached += value == reward.high
        if value is not None and value != reward.high and task.reward(reward.name) is reward:
            raise RewardError(
                f"reward {reward.name!r}: the gold answer of row {number} gets {value:g}, not the "
                f"maximum {reward.high:g}: {gold[:200]!r}. Either the row's answer is wrong, or "
                "the reward is"
            )
    for number, sample in enumerate(samples[:_ODD_ROWS], 1):
        for text in (*_ODD, task.bad_completion):
            _score(reward, text, sample.reference, f"the text {text[:20]!r} and row {number}")
    everywhere = (
        "" if applies == len(samples) else f" (it applies to {applies:,} of {len(samples):,} rows)"
    )
    told = (
        f"reward {reward.name} in [{reward.low:g}, {reward.high:g}]: maximum on {reached:,} of "
        f"{applies:,} gold answers{everywhere}"
    )
    return RewardFinding(told, doubtful=reached == 0)


def _check_bad_answer(
    task: Task, rewards: Sequence[Reward], samples: Sequence[Sample]
) -> RewardFinding:
    for number, sample in enumerate(samples, 1):
        values = [
            (reward, value)
            for reward in rewards
            if isinstance(
                value := score_completion(reward, task.bad_completion, sample.reference), float
            )
        ]
        if values and all(value == reward.high for reward, value in values):
            told = (
                f"row {number}: a bad answer ({task.bad_completion[:60]!r}) gets the maximum of "
                f"every reward that applies ({', '.join(reward.name for reward, _ in values)})"
            )
            if len(rewards) == len(task.rewards):
                return RewardFinding(told, mistake=RewardError(told))
            return RewardFinding(
                f"{told}; a reward of the task that the recipe leaves out may tell it",
                doubtful=True,
            )
    return RewardFinding("rewards: a bad answer falls short on every row")


def _gold(task: Task, sample: Sample, number: int) -> str:
    try:
        return task.gold_completion(sample.reference)
    except Exception as error:
        raise RewardError(
            f"task {task.name!r} cannot write the gold answer of row {number}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _score(reward: Reward, completion: str, reference: Reference, where: str) -> float | None:
    value = score_completion(reward, completion, reference)
    if isinstance(value, Failure):
        raise RewardError(
            f"reward {reward.name!r} failed on {where}: {value.kind}: {value.message}. A reward "
            f"returns a number in [{reward.low:g}, {reward.high:g}], or None where it does not "
            "apply, whatever a model writes"
        )
    return value
