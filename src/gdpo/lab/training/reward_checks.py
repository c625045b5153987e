"""Checks every reward on good, bad and unusual responses before training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isnan, nan

from gdpo.errors import GdpoError, RewardError, boundary, spelled
from gdpo.lab.tasks import Problem, Task
from gdpo.rewards import Reward, Scorer, Scores
from gdpo.rewards.text import after_tag
from gdpo.rewards.weights_column import applies


class Level(Enum):
    """Defines the results of a check. The value is the mark that is printed before the text."""

    FINE = "✓"
    NOTE = "!"
    """The run can start, but the user should read the text."""
    WRONG = "✗"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Stores the result of one check, which is printed as one line."""

    level: Level
    text: str
    table: tuple[tuple[str, ...], ...] = ()
    """Rows that are printed below the text, the headings first."""


_ODD = ("", " \n", "{", "<think>", "\ud800\x00", "0" * 5000)
"""Unusual completions, for which every reward must return a valid value."""

_ODD_COUNTS = (0, 1, 7, 512, 1_000_000)
"""Token counts for checking rewards that score the number of tokens."""

_ODD_ROWS = 8
"""Number of rows that each unusual completion is combined with."""

_TOLERATED = 0.05
"""Share of rows whose reference answer may score below the maximum: datasets have errors."""

_NAMED = 5
"""Maximum number of rows that a message lists."""

_SHOWN = 100
"""Maximum number of characters of a reference answer that a finding shows."""

_ASKED_ROWS = 2
"""Number of rows for checking an asynchronous reward, whose calls may cost money."""


def check_rewards(
    task: Task, scorer: Scorer, problems: Sequence[Problem]
) -> Iterator[CheckResult | GdpoError]:
    """Yield results and errors for the rewards' requirements, each reward and the bad response.

    A reward of the task may miss its maximum on the reference answers of at most 5 % of the rows,
    which are reported. A user's own reward need not reach its maximum, but one that never does is
    reported. No reward may fail, leave its range, or exceed its deadline. The scorer must return
    failures as missing values.
    """
    missing: set[str] = set()
    for need in dict.fromkeys(r.needs for r in scorer.rewards if r.needs is not None):
        try:
            yield CheckResult(Level.FINE, need())
        except GdpoError as error:
            missing |= {r.name for r in scorer.rewards if r.needs is need}
            yield error
    for reward in scorer.rewards:
        if reward.name not in missing:
            try:
                yield _check_one(task, reward, scorer, problems)
            except RewardError as error:
                yield error
    own = [r for r in scorer.rewards if task.reward(r.name) is r and r.name not in missing]
    if own:
        yield _check_bad_response(task, own, scorer, problems)


def scores_of(
    scorer: Scorer,
    tried: Sequence[tuple[Problem, str]],
    only: Sequence[Reward] | None = None,
    counts: Sequence[int] = (),
) -> Scores:
    """Return the scores of completions, of which each follows the prompt of its problem."""
    return scorer.score(
        [after_tag(text, problem.opened) for problem, text in tried],
        [problem.reference for problem, _ in tried],
        num_tokens=counts or [len(text) for _, text in tried],
        only=only,
    )


def _check_one(
    task: Task, reward: Reward, scorer: Scorer, problems: Sequence[Problem]
) -> CheckResult:
    if problems and not any(applies(problem.weights, reward.name) for problem in problems):
        return CheckResult(
            Level.NOTE,
            f"reward {reward.name}: not tested, because it applies to none of the tried rows "
            f"({len(problems):,})",
        )
    if reward.of == "tokens":
        return _check_counts(reward, scorer, problems)
    if reward.asks_elsewhere:
        problems = problems[:_ASKED_ROWS]
    known = [
        (n, s, gold) for n, s in enumerate(problems, 1) if (gold := gold_of(task, s, n)) is not None
    ]
    scores = scores_of(scorer, [(s, gold) for _, s, gold in known], [reward])
    _refuse_failure(reward, scores, [f"the reference answer of row {n}" for n, *_ in known])
    values: list[float] = [
        value if applies(s.weights, reward.name) else nan
        for (_, s, _), value in zip(known, scores.values[:, 0].tolist(), strict=True)
    ]
    # The published correctness of tool calls is 0 where nothing is to be called.
    of_task = task.reward(reward.name) is reward and not task.is_published
    short = [
        (n, gold, value)
        for (n, _, gold), value in zip(known, values, strict=True)
        if of_task and not isnan(value) and value != reward.high
    ]
    tag = next((s.opened for _, s, _ in known if s.opened), "")
    hint = (
        f" The model's chat template ends the prompt with {tag!r}, so no completion starts with "
        "it: if the reward needs this tag, use Reward(..., scope='opened')."
        if tag and reward.scope != "opened"
        else ""
    )
    if len(short) > _TOLERATED * len(known):
        _refuse_short(reward, short, hint)
    texts = (*_ODD, task.bad_completion)
    odd = [(n, s, t) for n, s in enumerate(problems[:_ODD_ROWS], 1) for t in texts]
    scores = scores_of(scorer, [(s, text) for _, s, text in odd], [reward])
    _refuse_failure(reward, scores, [f"the text {t[:20]!r} and row {n}" for n, _, t in odd])
    tried = [(gold, value) for (*_, gold), value in zip(known, values, strict=True)]
    if known and not any(applies(s.weights, reward.name) for _, s, _ in known):
        return CheckResult(
            Level.FINE,
            f"reward {reward.name} in [{reward.low:g}, {reward.high:g}]: not tested on reference "
            f"answers, because it applies to none of the rows that have one ({len(known):,})",
        )
    return _summary(reward, tried, len(problems), [n for n, *_ in short], hint)


def _summary(
    reward: Reward, tried: Sequence[tuple[str, float]], rows: int, short: Sequence[int], hint: str
) -> CheckResult:
    text = f"reward {reward.name} in [{reward.low:g}, {reward.high:g}]: "
    values = [value for _, value in tried]
    if not values:
        return CheckResult(Level.NOTE, f"{text}no row has a reference answer to score")
    if all(map(isnan, values)):
        return CheckResult(
            Level.NOTE, f"{text}it returned None on every row. Is a `return` missing?"
        )
    applies = sum(not isnan(value) for value in values)
    reached = values.count(reward.high)
    text += f"reaches its maximum on {reached:,} of {applies:,} reference answers"
    if len(values) < rows:
        text += f" ({rows - len(values):,} of {rows:,} rows have no reference answer)"
    elif applies < rows:
        text += f" (it applies to {applies:,} of {rows:,} rows)"
    if not reached:
        gold, value = next((gold, value) for gold, value in tried if not isnan(value))
        text += (
            f". The first, {gold[:_SHOWN]!r}, scores {value:g}.{hint} Check that the reward looks "
            "for the answer where the task writes it (see the reward's options, such as `extract`)"
        )
    if short:
        named = ", ".join(map(str, short[:_NAMED])) + (", …" if len(short) > _NAMED else "")
        text += f"; not on row {named}. Remove rows that no response can solve"
    return CheckResult(Level.NOTE if reached == 0 or short else Level.FINE, text)


def _check_counts(reward: Reward, scorer: Scorer, problems: Sequence[Problem]) -> CheckResult:
    tried = [(problem, count) for problem in problems[:_ODD_ROWS] for count in _ODD_COUNTS]
    texts, counts = [(problem, "") for problem, _ in tried], [count for _, count in tried]
    scores = scores_of(scorer, texts, [reward], counts)
    _refuse_failure(reward, scores, [f"{count:,} tokens" for _, count in tried])
    values = ", ".join(
        f"{count:,}: {value:g}"
        for count, value in zip(_ODD_COUNTS, scores.values[:, 0].tolist(), strict=False)
    )
    return CheckResult(
        Level.FINE,
        f"reward {reward.name} in [{reward.low:g}, {reward.high:g}], by number of tokens: {values}",
    )


def _check_bad_response(
    task: Task, rewards: Sequence[Reward], scorer: Scorer, problems: Sequence[Problem]
) -> CheckResult | RewardError:
    judged = [r for r in rewards if r.of == "text" and not r.asks_elsewhere]
    bad = [(problem, task.bad_completion) for problem in problems]
    values = scores_of(scorer, bad, judged).values
    for number, (problem, row) in enumerate(zip(problems, values.tolist(), strict=True), 1):
        pairs = [
            (reward, value)
            for reward, value in zip(judged, row, strict=True)
            if applies(problem.weights, reward.name) and not isnan(value)
        ]
        if pairs and all(value == reward.high for reward, value in pairs):
            text = (
                f"row {number}: a bad response ({task.bad_completion[:60]!r}) gets the maximum of "
                f"every reward that applies ({', '.join(reward.name for reward, _ in pairs)})"
            )
            if len(rewards) == len(task.rewards):
                text += ". Correct the rewards, or the task's bad_completion"
                return RewardError(text)
            return CheckResult(
                Level.NOTE,
                f"{text}. Only a reward that the recipe leaves out may recognize it as bad",
            )
    return CheckResult(Level.FINE, "rewards: a bad response scores below the maximum on every row")


def _refuse_short(reward: Reward, short: Sequence[tuple[int, str, float]], hint: str) -> None:
    number, gold, value = short[0]
    more = f" {len(short) - 1:,} more rows score too low as well." if len(short) > 1 else ""
    raise RewardError(
        f"reward {reward.name!r}: the reference answer of row {number} scores {value:g}, not the "
        f"maximum {reward.high:g}: {gold[:200]!r}.{more}{hint} Correct the row's "
        "answer or the reward"
    )


def _refuse_failure(reward: Reward, scores: Scores, where: Sequence[str]) -> None:
    if scores.failures:
        first = scores.failures[0]
        raise RewardError(
            f"reward {reward.name!r} failed on {where[first.index]}: {first.kind}: "
            f"{first.message}. For any completion, a reward must return a number in "
            f"[{reward.low:g}, {reward.high:g}], or None if the reward does not apply"
        )


def gold_of(task: Task, problem: Problem, number: int) -> str | None:
    """Return the reference answer of a row as a completion, or None if the row has none.

    It does not start with a tag that the chat template has opened.
    """
    where = f"task {task.name!r}: gold_completion failed on row {number}"
    with boundary(RewardError, lambda error: f"{where}: {spelled(error)}", passed=SystemExit):
        gold = task.gold_completion(problem.reference)
    return gold.lstrip().removeprefix(problem.opened.rstrip()) if gold and problem.opened else gold
