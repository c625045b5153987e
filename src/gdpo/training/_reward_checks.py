"""Tries every reward on good and bad answers, before a model is asked for any."""

import logging
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan

from gdpo.errors import GdpoError, RewardError
from gdpo.rewards import Reward, Scorer, Scores
from gdpo.tasks import Problem, Task

logger = logging.getLogger(__name__)

_PATIENCE_S = 10.0
"""Seconds after which a reward that nothing ends is named."""

_ODD = ("", " \n", "{", "<think>", "\ud800\x00", "0" * 5000)
"""Completions that a model may well write; every reward must return on them."""

_ODD_COUNTS = (0, 1, 7, 512, 1_000_000)
"""Numbers of tokens that a completion may have."""

_ODD_ROWS = 8
"""Rows on which they are tried."""

_TOLERATED = 0.05
"""Share of rows whose gold answer may fall short: published data are not without mistakes."""

_NAMED = 5
"""Rows that a message names."""

_SHOWN = 100
"""Characters of a gold answer that a finding shows."""

_ASKED_ROWS = 2
"""Rows on which a reward that asks something elsewhere is tried: an answer may cost."""


@dataclass(frozen=True, slots=True)
class RewardFinding:
    """What was found about one reward, or about all of them together."""

    text: str
    doubtful: bool = False
    """Allowed, but probably not meant."""
    mistake: GdpoError | None = None


def check_rewards(
    task: Task, scorer: Scorer, problems: Sequence[Problem]
) -> Iterator[RewardFinding]:
    """What the rewards need, then one finding per reward, then one about the bad answer.

    A reward of the task must reach its maximum on the gold answer of the rows that it applies to:
    of all but one in twenty, and those are named. A reward of the user's own need not (a gold
    answer may be long where brevity is rewarded), but where it never does that is told. None may
    raise, or return what is no number or out of its range, or take longer than its deadline.

    Args:
        task: Knows the gold answers and a bad one.
        scorer: Runs what the recipe rewards; failures are missing values to it.
        problems: The rows to try.
    """
    missing: set[str] = set()
    for need in dict.fromkeys(r.needs for r in scorer.rewards if r.needs is not None):
        try:
            yield RewardFinding(need())
        except GdpoError as error:
            missing |= {r.name for r in scorer.rewards if r.needs is need}
            yield RewardFinding(str(error), mistake=error)
    for reward in scorer.rewards:
        if reward.name not in missing:
            try:
                with _named_if_long(reward, scorer):
                    finding = _check_one(task, reward, scorer, problems)
                yield finding
            except RewardError as error:
                yield RewardFinding(str(error), mistake=error)
    own = [r for r in scorer.rewards if task.reward(r.name) is r and r.name not in missing]
    if own:
        yield _check_bad_answer(task, own, scorer, problems)


@contextmanager
def _named_if_long(reward: Reward, scorer: Scorer) -> Generator[None]:
    """Say how far a reward is that takes long, or that it may hang."""
    so_far = ""
    shown = scorer.progress

    def told(done: int, count: int) -> None:
        nonlocal so_far
        so_far = f" on {done:,} of {count:,} answers"
        shown(done, count)

    def tell() -> None:
        hangs = "; if it hangs, a deadline would end it: Reward(..., deadline=5)"
        logger.warning(
            f"reward {reward.name!r} has been tried for {_PATIENCE_S:g} s{so_far}, and goes on"
            f"{'' if so_far else hangs}"
        )

    timer = threading.Timer(_PATIENCE_S, tell)
    timer.daemon = True
    if reward.deadline is None and not reward.asks_elsewhere:
        timer.start()
    scorer.progress = told
    try:
        yield
    finally:
        timer.cancel()
        scorer.progress = shown


def _check_one(
    task: Task, reward: Reward, scorer: Scorer, problems: Sequence[Problem]
) -> RewardFinding:
    if reward.of == "tokens":
        return _check_counts(reward, scorer, problems)
    if reward.asks_elsewhere:
        problems = problems[:_ASKED_ROWS]
    golds = [(n, s, _gold(task, s, n)) for n, s in enumerate(problems, 1)]
    known = [(n, s, gold) for n, s, gold in golds if gold is not None]
    scores = scorer.score(
        [gold for *_, gold in known], [s.reference for _, s, _ in known], only=[reward]
    )
    _refuse_failure(reward, scores, [f"the gold answer of row {n}" for n, *_ in known])
    values = scores.values[:, 0].tolist()
    of_task = task.reward(reward.name) is reward
    short = [
        (n, gold, value)
        for (n, _, gold), value in zip(known, values, strict=True)
        if of_task and not isnan(value) and value != reward.high
    ]
    if len(short) > _TOLERATED * len(known):
        _refuse_short(reward, short)
    odd = [(n, s, t) for n, s in enumerate(problems[:_ODD_ROWS], 1) for t in _texts(task)]
    scores = scorer.score([t for _, _, t in odd], [s.reference for _, s, _ in odd], only=[reward])
    _refuse_failure(reward, scores, [f"the text {t[:20]!r} and row {n}" for n, _, t in odd])
    tried = [(gold, value) for (*_, gold), value in zip(known, values, strict=True)]
    return _told(reward, tried, len(problems), [n for n, *_ in short])


def _told(
    reward: Reward, tried: Sequence[tuple[str, float]], rows: int, short: Sequence[int]
) -> RewardFinding:
    told = f"reward {reward.name} in [{reward.low:g}, {reward.high:g}]: "
    values = [value for _, value in tried]
    if not values:
        return RewardFinding(f"{told}no row brings a gold answer to try it on", doubtful=True)
    if all(map(isnan, values)):
        return RewardFinding(
            f"{told}it returned None on every row: is a `return` missing?", doubtful=True
        )
    applies = sum(not isnan(value) for value in values)
    reached = values.count(reward.high)
    told += f"maximum on {reached:,} of {applies:,} gold answers"
    if len(values) < rows:
        told += f" ({rows - len(values):,} of {rows:,} rows bring none)"
    elif applies < rows:
        told += f" (it applies to {applies:,} of {rows:,} rows)"
    if not reached:
        told += _never(tried)
    if short:
        named = ", ".join(map(str, short[:_NAMED])) + (", …" if len(short) > _NAMED else "")
        told += f"; not on row {named}: take out what nothing can solve"
    return RewardFinding(told, doubtful=reached == 0 or bool(short))


def _never(tried: Sequence[tuple[str, float]]) -> str:
    gold, value = next((gold, value) for gold, value in tried if not isnan(value))
    return (
        f". The first, {gold[:_SHOWN]!r}, gets {value:g}: does the reward look for the answer "
        "where the task writes it (its options, such as `extract`)?"
    )


def _check_counts(reward: Reward, scorer: Scorer, problems: Sequence[Problem]) -> RewardFinding:
    tried = [(problem, count) for problem in problems[:_ODD_ROWS] for count in _ODD_COUNTS]
    scores = scorer.score(
        [""] * len(tried),
        [problem.reference for problem, _ in tried],
        num_tokens=[count for _, count in tried],
        only=[reward],
    )
    _refuse_failure(reward, scores, [f"{count:,} tokens" for _, count in tried])
    values = ", ".join(
        f"{count:,}: {value:g}"
        for count, value in zip(_ODD_COUNTS, scores.values[:, 0].tolist(), strict=False)
    )
    return RewardFinding(
        f"reward {reward.name} in [{reward.low:g}, {reward.high:g}], by the number of tokens: "
        f"{values}"
    )


def _check_bad_answer(
    task: Task, rewards: Sequence[Reward], scorer: Scorer, problems: Sequence[Problem]
) -> RewardFinding:
    judged = [r for r in rewards if r.of == "text" and not r.asks_elsewhere]
    bad = [task.bad_completion] * len(problems)
    values = scorer.score(bad, [problem.reference for problem in problems], only=judged).values
    for number, row in enumerate(values.tolist(), 1):
        pairs = [(r, v) for r, v in zip(judged, row, strict=True) if not isnan(v)]
        if pairs and all(value == reward.high for reward, value in pairs):
            told = (
                f"row {number}: a bad answer ({task.bad_completion[:60]!r}) gets the maximum of "
                f"every reward that applies ({', '.join(reward.name for reward, _ in pairs)})"
            )
            if len(rewards) == len(task.rewards):
                return RewardFinding(told, mistake=RewardError(told))
            return RewardFinding(
                f"{told}; a reward of the task that the recipe leaves out may tell it",
                doubtful=True,
            )
    return RewardFinding("rewards: a bad answer falls short on every row")


def _refuse_short(reward: Reward, short: Sequence[tuple[int, str, float]]) -> None:
    number, gold, value = short[0]
    more = f" Those of {len(short) - 1:,} more rows fall short, too." if len(short) > 1 else ""
    raise RewardError(
        f"reward {reward.name!r}: the gold answer of row {number} gets {value:g}, not the maximum "
        f"{reward.high:g}: {gold[:200]!r}.{more} Either the row's answer is wrong, or the reward is"
    )


def _refuse_failure(reward: Reward, scores: Scores, where: Sequence[str]) -> None:
    if scores.failures:
        first = scores.failures[0]
        raise RewardError(
            f"reward {reward.name!r} failed on {where[first.index]}: {first.kind}: "
            f"{first.message}. A reward returns a number in [{reward.low:g}, {reward.high:g}], or "
            "None where it does not apply, whatever a model writes"
        )


def _texts(task: Task) -> tuple[str, ...]:
    return (*_ODD, task.bad_completion)


def _gold(task: Task, problem: Problem, number: int) -> str | None:
    try:
        return task.gold_completion(problem.reference)
    except Exception as error:
        raise RewardError(
            f"task {task.name!r} cannot write the gold answer of row {number}: "
            f"{type(error).__name__}: {error}"
        ) from error
