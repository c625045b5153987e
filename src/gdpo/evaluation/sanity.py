"""Tries benchmarks without a model: their own answers must be right, and no answer must be wrong.

It evaluates `gold` and `empty` as any model is evaluated, in a temporary folder.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gdpo.evaluation.benchmarks import Benchmark, rewards_of
from gdpo.evaluation.evaluation import Progress, Settings, evaluate
from gdpo.evaluation.named import responder_of
from gdpo.evaluation.responders import Sampling
from gdpo.rewards import Reward
from gdpo.rollouts import Rollout, read_rollouts

TOLERATED = 0.05
"""Share of rows whose own answer may fall short: published data are not without mistakes."""

_DECIDING = ("correctness", "flexible", "pass_all", "pass_rate")
"""What an empty response must not get; a format or the absence of bugs may come with it."""

_SILENCE = "irrelevance"
"""In the name of benchmarks that want no call: there the leaderboard takes silence for right."""

OnSanityProgress: TypeAlias = Callable[[str, Progress], None]
"""Called with who answers, `gold` or `empty`, and how far that is."""

_LIMIT = 4000
_SHOWN = 200
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Sanity:
    """What a benchmark's own answers and an empty response came to."""

    benchmark: str
    problems: int
    unanswered: int
    """Problems that bring no answer of their own: nothing is known of those."""
    exceptions: tuple[str, ...]
    """Problems whose own answer is not fully right, and why."""
    lucky: tuple[str, ...]
    """Problems on which an empty response is not fully wrong, and what it got."""
    applies: dict[str, int]
    """Rewards that leave out some of the problems that bring an answer: to how many they apply."""
    unjudged: bool = False
    """Whether what decides applies to no problem."""

    @property
    def answered(self) -> int:
        """Problems that bring an answer."""
        return self.problems - self.unanswered

    @property
    def wants_silence(self) -> bool:
        """Whether an empty response is right, so that none is tried."""
        return _SILENCE in self.benchmark

    @property
    def sane(self) -> bool:
        """Whether 19 in 20 answers are fully right, no empty response is, and some are judged."""
        right = len(self.exceptions) <= TOLERATED * self.answered
        return right and not self.lucky and not self.unjudged


def sanity(
    benchmark: Benchmark, rows: int | None = None, on_progress: OnSanityProgress = lambda *_: None
) -> Sanity:
    """Evaluate a benchmark's own answers, and an empty response to each problem.

    A problem's own answer must get the maximum of every reward of the text that applies to it. One
    that must apply to every row (`Task.judges_every_row`) and does not is an exception, too; of the
    others it is counted to how many answers they apply. An empty response must get the minimum of
    what decides (correctness, passed tests), except where no call is what is wanted.

    Args:
        benchmark: Which.
        rows: The first so many problems; None: all.
        on_progress: Of the progress.

    Raises:
        DataError: The rows cannot be had or read.
    """
    rewards = [r for r in rewards_of(benchmark, _LIMIT) if r.of == "text"]
    gold, empty = (_answered(who, benchmark, rows, on_progress) for who in ("gold", "empty"))
    bare = [rollout for rollout in gold if not rollout.completion]
    tried = [rollout for rollout in gold if rollout.completion]
    deciding = [r for r in rewards if r.name in _DECIDING] or rewards[:1]
    silent = _SILENCE in benchmark.name
    every_row = benchmark.task().judges_every_row
    applies = {r.name: sum(each.rewards[r.name] is not None for each in tried) for r in rewards}
    return Sanity(
        benchmark=benchmark.name,
        problems=len(gold),
        unanswered=len(bare),
        exceptions=tuple(_short(tried, rewards, every_row)),
        lucky=() if silent else tuple(_lucky(empty, deciding)),
        applies={
            name: count
            for name, count in applies.items()
            if count < len(tried) and name not in every_row
        },
        unjudged=bool(tried) and not any(applies[r.name] for r in deciding),
    )


def _answered(
    who: str, benchmark: Benchmark, rows: int | None, on_progress: OnSanityProgress
) -> list[Rollout]:
    settings = Settings(who, Sampling(), _LIMIT, rows)
    answering = responder_of(who, settings.sampling, server=None, at_once=1)
    with tempfile.TemporaryDirectory() as folder:
        evaluate(settings, [benchmark], answering, Path(folder), lambda now: on_progress(who, now))
        files = sorted((Path(folder) / benchmark.name).iterdir())
        return [rollout for file in files for rollout in read_rollouts(file)]


def _short(
    rollouts: Sequence[Rollout], rewards: Sequence[Reward], every_row: Sequence[str]
) -> Iterator[str]:
    for rollout in rollouts:
        got = {r.name: (rollout.rewards[r.name], r.high) for r in rewards}
        wrong = [
            f"{name} does not apply" if value is None else f"{name} {value:.3g} of {high:g}"
            for name, (value, high) in got.items()
            if value != high and (value is not None or name in every_row)
        ]
        if wrong:
            yield f"problem {rollout.group_id + 1}: {', '.join(wrong)}{_why(rollout)}"


def _why(rollout: Rollout) -> str:
    """What is known of the reason: a failed reward, a program's first error, or the answer."""
    if failed := rollout.extra.get("failed"):
        names = {why: [n for n, its in failed.items() if its == why] for why in failed.values()}
        return "".join(f" ({', '.join(of)}: {why[:_SHOWN]})" for why, of in names.items())
    reference, said = rollout.extra["reference"], rollout.completion
    if reference.get("tests") is not None and isinstance(said, str):
        from gdpo.rewards.code import verdict_of

        verdict = verdict_of(said, reference)
        why = verdict.message if verdict else ""
    else:
        why = f"its answer: {reference.get('answer', '')}"
    return f" ({why[:_SHOWN]})" if why else ""


def _lucky(rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> Iterator[str]:
    for rollout in rollouts:
        for reward in rewards:
            value = rollout.rewards[reward.name]
            if value is not None and value != reward.low:
                got = f"an empty response gets {value:.3g} of {reward.name}"
                yield f"problem {rollout.group_id + 1}: {got}"
