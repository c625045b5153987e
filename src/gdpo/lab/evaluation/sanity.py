"""Tests benchmarks without a model: reference answers must pass, and empty responses must fail.

`gold` and `empty` are evaluated like any model, in a temporary folder.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gdpo.lab.evaluation.benchmarks import Benchmark, rewards_of
from gdpo.lab.evaluation.evaluation import EvaluationSettings, Progress, evaluate
from gdpo.lab.evaluation.named import responder_of
from gdpo.lab.evaluation.responders import Sampling
from gdpo.rewards import Reward
from gdpo.rollouts import Rollout, read_rollouts

TOLERATED = 0.05
"""Share of rows whose reference answer may fail, because published datasets contain errors."""

_DECIDING = ("correctness", "flexible", "pass_all", "pass_rate")
"""Rewards that must have their lowest value for an empty response. Other rewards may be higher,
such as the reward for code without bugs."""

_SILENCE = "irrelevance"
"""Substrings of the names of benchmarks in which the leaderboard accepts an empty response."""

OnSanityProgress: TypeAlias = Callable[[str, Progress], None]
"""Function called with the responder (`gold` or `empty`) and its progress."""

_LIMIT = 4000
_SHOWN = 200
"""Maximum length of a reason, in characters."""


@dataclass(frozen=True, slots=True)
class Sanity:
    """Stores how a benchmark scored its reference answers and empty responses."""

    benchmark: str
    problems: int
    unanswered: int
    """Number of problems that cannot be tested, because they have no reference answer."""
    exceptions: tuple[str, ...]
    """Problems whose reference answer does not get the maximum of every reward, with the reason."""
    lucky: tuple[str, ...]
    """Problems on which an empty response gets more than the lowest score, with that score."""
    applies: dict[str, int]
    """For each reward that does not apply to all reference answers, the number of reference answers
    to which the reward applies."""
    unjudged: bool = False
    """Whether the deciding rewards (correctness, passed tests) apply to no problem."""

    @property
    def answered(self) -> int:
        """Number of problems with a reference answer."""
        return self.problems - self.unanswered

    @property
    def wants_silence(self) -> bool:
        """Whether an empty response is correct, and therefore not tested."""
        return _SILENCE in self.benchmark

    @property
    def sane(self) -> bool:
        """Whether at least 95 % of reference answers pass and no empty response passes.

        False if the deciding rewards apply to no problem.
        """
        right = len(self.exceptions) <= TOLERATED * self.answered
        return right and not self.lucky and not self.unjudged


def sanity(
    benchmark: Benchmark, rows: int | None = None, on_progress: OnSanityProgress = lambda *_: None
) -> Sanity:
    """Evaluate the reference answer and an empty response for the first `rows` problems.

    A reference answer must get the maximum of every text reward that applies to it. A row to which
    a reward of `Task.judges_every_row` does not apply counts as a failure. An empty response must
    get the minimum of the deciding rewards (correctness, passed tests), unless the benchmark
    accepts empty responses.
    """
    rewards = [r for r in rewards_of(benchmark, _LIMIT) if r.of == "text"]
    gold, empty = (_answered(who, benchmark, rows, on_progress) for who in ("gold", "empty"))
    bare = [rollout for rollout in gold if not rollout.completion]
    tried = [rollout for rollout in gold if rollout.completion]
    deciding = [r for r in rewards if r.name in _DECIDING] or rewards[:1]
    every_row = benchmark.task().judges_every_row
    applies = {r.name: sum(each.rewards[r.name] is not None for each in tried) for r in rewards}
    return Sanity(
        benchmark=benchmark.name,
        problems=len(gold),
        unanswered=len(bare),
        exceptions=tuple(_short(tried, rewards, every_row)),
        lucky=tuple(
            f"problem {rollout.group_id + 1}: an empty response gets {value:.3g} for {reward.name}"
            for rollout in ([] if _SILENCE in benchmark.name else empty)
            for reward in deciding
            if (value := rollout.rewards[reward.name]) not in (None, reward.low)
        ),
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
    settings = EvaluationSettings(who, Sampling(), _LIMIT, rows)
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
    """Return the reason: a failed reward, a program's first error, or the reference answer."""
    if failed := rollout.extra.get("failed"):
        names = {why: [n for n, its in failed.items() if its == why] for why in failed.values()}
        return "".join(f" ({', '.join(of)}: {why[:_SHOWN]})" for why, of in names.items())
    reference, said = rollout.extra["reference"], rollout.completion
    if reference.get("tests") is not None and isinstance(said, str):
        from gdpo.lab.rewards.code import verdict_of

        verdict = verdict_of(said, reference)
        why = verdict.message if verdict else ""
    else:
        why = f"reference answer: {reference.get('answer', '')}"
    return f" ({why[:_SHOWN]})" if why else ""
