"""Evaluates models on benchmarks, and saves the responses after every 32 problems."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gdpo._files import read_json, write_json
from gdpo.errors import ConfigError, DataError
from gdpo.lab.evaluation._bfcl_multi_turn import Conversations
from gdpo.lab.evaluation._intervals import Estimate, Number, share
from gdpo.lab.evaluation.benchmarks import Benchmark, measure_of, problems, rewards_of
from gdpo.lab.evaluation.responders import Responder, Sampling
from gdpo.lab.evaluation.server import ANSWERED
from gdpo.lab.runs.lock import alone
from gdpo.lab.tasks import Problem
from gdpo.rewards import Reward, Scorer
from gdpo.rewards.text import after_tag
from gdpo.rollouts import Rollout, read_rollouts, write_rollouts

logger = logging.getLogger(__name__)

_LEFT_OVERS = (".*.partial", "*/*.partial")
"""Patterns of partial files that remain if a process is killed while writing."""

PART = 32
"""Number of problems that are evaluated and saved together."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Stores the progress on one benchmark."""

    benchmark: str
    problems: int
    """Number of problems in the benchmark."""
    done: int
    """Number of problems whose responses are scored and saved."""
    part: int = 0
    """Number of problems in progress."""
    answered: int = 0
    """Number of responses received for the problems in progress."""
    responses: int = 0
    """Number of responses requested for the problems in progress."""
    scored: int = 0
    """Number of scores computed so far. Reported only if scoring takes a long time."""
    scores: int = 0
    """Number of scores to compute."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Defines an evaluation, which can be resumed only with the same settings."""

    model: str
    sampling: Sampling
    token_limit: int
    rows: int | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    """Files with the rows, keyed by benchmark."""
    weights: str = ""
    """Digest of local weights, used to detect whether a model has been trained further."""
    engine: str = "transformers"
    """Library that runs the model in this process."""
    max_model_len: int | None = None
    """Maximum combined length of prompt and response for vLLM, in tokens. None: the model's
    maximum."""


@dataclass(frozen=True, slots=True)
class Result:
    """Stores a model's result on one benchmark."""

    benchmark: str
    problems: int
    samples: int
    estimates: dict[str, Estimate]
    """Mean and confidence interval, keyed by measure."""
    of_problems: dict[str, list[Number]]
    """For each measure, the mean over the samples of each problem. NaN: the measure does not
    apply."""
    identities: list[str]
    """Digest of each problem's prompt and reference, used to pair the problems of two models."""
    unscorable: dict[str, list[int]]
    """For each measure, the numbers (from 1) of the problems that no response can pass. These
    problems count as wrong."""


def evaluate(
    settings: EvaluationSettings,
    benchmarks: Sequence[Benchmark],
    responder: Callable[[Benchmark], Responder],
    folder: Path,
    on_progress: OnProgress = lambda *_: None,
) -> list[Result]:
    """Evaluate a model on each benchmark. Responses saved in the folder are reused.

    Args:
        settings: Settings of the evaluation.
        benchmarks: Evaluated in order.
        responder: Returns a benchmark's responder. Called only for unfinished benchmarks.
        folder: For responses (rollout records), settings and results.
        on_progress: Called whenever the progress changes.

    Raises:
        ConfigError: If the folder has an evaluation with other settings, is in use, or cannot be
            written to.
        DataError: If rows cannot be read, before any response is generated.
    """
    work = [(benchmark, problems(benchmark, settings.rows)) for benchmark in benchmarks]
    rows = {
        benchmark.name: _digest(_identity(p.prompt, p.reference) for p in problems)
        for benchmark, problems in work
    }
    settled = _settled(folder, settings, rows)
    with alone(folder, doing="evaluates into", left_overs=_LEFT_OVERS):
        write_json(folder / "settings.json", settled)
        results = [
            _evaluate_one(settings, benchmark, problems, responder, folder, on_progress)
            for benchmark, problems in work
        ]
        write_json(folder / "results.json", [asdict(r) for r in results])
    return results


def read_results(folder: Path) -> list[Result]:
    """Return the results of a finished evaluation.

    Raises:
        ConfigError: If the folder has no readable results.
    """
    file = folder / "results.json"
    if not file.is_file():
        raise ConfigError(
            f"{folder} has no results.json, which a finished evaluation writes: finish that "
            "evaluation, or choose another folder"
        )
    try:
        return TypeAdapter(list[Result]).validate_json(file.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "content"
        raise ConfigError(
            f"{file} cannot be read by this version of gdpo ({field}: {first['msg']}, got "
            f"{first['input']!r:.80}): repeat the evaluation in another folder"
        ) from error


def _identity(prompt: Any, reference: Mapping[str, Any]) -> str:
    return _digest([json.dumps([prompt, dict(reference)], sort_keys=True, default=str)])


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


def _settled(folder: Path, settings: EvaluationSettings, rows: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings to save. Raise ConfigError if the folder contains another evaluation."""
    file = folder / "settings.json"
    requested = json.loads(json.dumps(asdict(settings)))
    requested["rows_digest"] = dict(rows)
    if file.is_file():
        try:
            saved = dict(read_json(file))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{file} cannot be read: {error}. Choose another folder with --output"
            ) from error
        differing = [
            key
            for key in requested
            if saved.get(key) != requested[key] and key not in ("data", "rows_digest")
        ]
        if differing:
            raise ConfigError(
                f"{folder} contains an evaluation with different settings: "
                + "; ".join(f"{key} is {saved.get(key)}, not {requested[key]}" for key in differing)
                + ". Use the same settings, or choose another folder with --output"
            )
        before = saved.get("rows_digest", {})
        if others := [name for name in rows if before.get(name, rows[name]) != rows[name]]:
            raise ConfigError(
                f"{folder} contains an evaluation on different rows of {', '.join(others)}. Choose "
                "another folder with --output"
            )
        for key in ("data", "rows_digest"):
            requested[key] = {**saved.get(key, {}), **requested[key]}
    elif folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ConfigError(
            f"{folder} contains files that `gdpo evaluate` did not write: choose another folder "
            "with --output"
        )
    return requested


def _evaluate_one(
    settings: EvaluationSettings,
    benchmark: Benchmark,
    problems: Sequence[Problem],
    responder: Callable[[Benchmark], Responder],
    folder: Path,
    on_progress: OnProgress,
) -> Result:
    rewards = rewards_of(benchmark, settings.token_limit)
    parts = [
        _SavedPart(i, problems[i : i + PART], folder / benchmark.name / f"problems_{i:06d}.parquet")
        for i in range(0, len(problems), PART)
    ]
    left = [part for part in parts if not _is_kept(part.file)]
    done = len(problems) - sum(len(part.problems) for part in left)
    tracker = _Tracker(on_progress)
    tracker.report(Progress(benchmark.name, len(problems), done))
    answering: Responder | None = None
    with Scorer(rewards, on_error="worst", progress=tracker.scored) as scorer:
        for part in left:
            if answering is None:
                answering = responder(benchmark)
                if benchmark.next_prompts:
                    answering = Conversations(answering, benchmark.next_prompts)
            size = len(part.problems)
            asked = size * settings.sampling.samples
            tracker.report(Progress(benchmark.name, len(problems), done, size, responses=asked))
            write_rollouts(part.file, _rollouts(settings, part, answering, scorer, tracker))
            part.file.with_name(ANSWERED).unlink(missing_ok=True)
            done += size
            tracker.report(Progress(benchmark.name, len(problems), done))
    return result_of(
        benchmark.name,
        rewards,
        [r for part in parts for r in read_rollouts(part.file)],
        judge_every_row=benchmark.task().judges_every_row,
    )


def _is_kept(file: Path) -> bool:
    """Return whether a part was saved. Rename a corrupted file, so that its part is repeated."""
    if not file.exists():
        return False
    try:
        read_rollouts(file)
    except DataError as error:
        names = (file.with_name(f"{file.name}.broken-{number}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        logger.warning(
            "%s cannot be read: renamed to %s, its part is repeated: %s", file, aside.name, error
        )
        return False
    return True


class _SavedPart(NamedTuple):
    """Problems evaluated and saved together, from the index `start` on."""

    start: int
    problems: Sequence[Problem]
    file: Path


class _Tracker:
    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress

    def report(self, now: Progress) -> None:
        self._now = now
        self._on_progress(now)

    def answered(self, more: int) -> None:
        """Report that `more` responses have arrived."""
        self.report(replace(self._now, answered=self._now.answered + more))

    def scored(self, done: int, scores: int) -> None:
        """Report that `done` of `scores` scores are computed."""
        self.report(replace(self._now, scored=done, scores=scores))


def _rollouts(
    settings: EvaluationSettings,
    part: _SavedPart,
    answering: Responder,
    scorer: Scorer,
    tracker: _Tracker,
) -> list[Rollout]:
    # The seed depends on the part, so that a resumed evaluation samples the same responses.
    drawn = settings.sampling
    answered = answering.respond(
        part.problems, drawn.seed + part.start, drawn.samples, tracker.answered
    )
    numbered = enumerate(zip(part.problems, answered, strict=True), part.start)
    pairs = [
        (number, sample_id, problem, response)
        for number, (problem, responses) in numbered
        for sample_id, response in enumerate(responses)
    ]
    scores = scorer.score(
        [after_tag(response.text, response.opened) for *_, response in pairs],
        [problem.reference for *_, problem, _ in pairs],
        num_tokens=[response.num_tokens for *_, response in pairs],
    )
    names = [reward.name for reward in scorer.rewards]
    failed = {(f.index, f.reward): str(f) for f in scores.failures}
    return [
        Rollout(
            run=settings.model,
            step=1,
            group_id=number,
            sample_id=sample_id,
            prompt=problem.prompt,
            completion=response.shown or response.text,
            rewards={
                name: None if np.isnan(value) else value
                for name, value in zip(names, values, strict=True)
            },
            weights=dict.fromkeys(names, 1.0),
            advantage=0.0,
            num_tokens=response.num_tokens,
            finish_reason=response.finish_reason,
            extra={
                "reference": dict(problem.reference),
                "opened": response.opened,
                "failed": {name: failed[i, name] for name in names if (i, name) in failed},
            },
        )
        for i, ((number, sample_id, problem, response), values) in enumerate(
            zip(pairs, scores.values.tolist(), strict=True)
        )
    ]


def result_of(
    benchmark: str,
    rewards: Sequence[Reward],
    rollouts: Sequence[Rollout],
    *,
    judge_every_row: Sequence[str] = (),
) -> Result:
    """Compute the result of a benchmark from saved responses.

    A problem to which a reward does not apply is excluded from that reward's mean, or counts as
    wrong if `judge_every_row` names the reward (`Task.judges_every_row`).
    """
    if any(reward.name not in r.rewards for r in rollouts for reward in rewards):
        raise ConfigError(
            f"the saved responses to {benchmark} were scored by rewards other than "
            f"{', '.join(reward.name for reward in rewards)}. Choose another folder with --output"
        )
    by_problem: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        by_problem.setdefault(rollout.group_id, []).append(rollout)
    of_problems: dict[str, list[float]] = {}
    estimates: dict[str, Estimate] = {}
    unscorable: dict[str, list[int]] = {}
    for reward in rewards:
        measure, low, high = measure_of(reward), reward.low, reward.high
        means = [_mean([r.rewards[reward.name] for r in group]) for group in by_problem.values()]
        missing = [
            number + 1 for number, mean in zip(by_problem, means, strict=True) if isnan(mean)
        ]
        if missing and reward.name in judge_every_row:
            unscorable[measure.name] = missing
            means = [low if isnan(mean) else mean for mean in means]
        if measure.inverted:
            means = [(high - mean) / (high - low) for mean in means]
            low, high = 0.0, 1.0
        of_problems[measure.name] = means
        estimates[measure.name] = share(means, low=low, high=high)
    samples = max((len(group) for group in by_problem.values()), default=0)
    identities = [
        _identity(group[0].prompt, group[0].extra["reference"]) for group in by_problem.values()
    ]
    return Result(
        benchmark, len(by_problem), samples, estimates, of_problems, identities, unscorable
    )


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else nan
