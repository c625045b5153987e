"""Analyzes the rollouts of several runs in one pass over their steps."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gdpo._naming import did_you_mean
from gdpo._text import remedied
from gdpo.analysis.priorities import PriorityOverall
from gdpo.analysis.replay import RECORDED, Replay, Replayed
from gdpo.analysis.run import RunAnalysis, RunSteps, run_of
from gdpo.analysis.sample import GroupSampler, SampledGroup
from gdpo.analysis.steps import analyze_step, batch_of, refuse_unnamed
from gdpo.analysis.verdict import Action, Verdict, verdict_of
from gdpo.diagnostics.readings import Meaning
from gdpo.diagnostics.watch import HeldFinding
from gdpo.errors import ConfigError, DataError
from gdpo.rollouts.readers import ReadReport, RolloutReading
from gdpo.rollouts.readers.names import listed
from gdpo.rollouts.table import UNKNOWN_WEIGHTS, Bounds


@dataclass(slots=True)
class Analysis:
    """Stores the results for all runs that were read."""

    report: ReadReport
    runs: Sequence[RunAnalysis] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """The verdict on each run."""
    replayed: list[Replayed] = field(default_factory=list)
    """Comparison of estimators. Empty if no comparison was requested."""
    sample: list[SampledGroup] = field(default_factory=list)
    priorities: dict[str, PriorityOverall] = field(default_factory=dict)
    """Whether the primary reward won, for each run. Empty if no primary reward was named."""
    not_analyzed: int = 0
    """Number of rollouts that were read, but whose step could not be analyzed."""
    problems: Counter[str] = field(default_factory=Counter)
    """Reasons why steps could not be analyzed, with the number of rollouts in these steps."""

    @property
    def weights_to_give(self) -> bool:
        """Whether unknown weights may be why no estimator gives the recorded advantages."""
        others = [r for r in self.replayed if r.estimator != RECORDED and r.steps]
        return (
            bool(others)
            and others[0].baseline == RECORDED
            and not any(r.same for r in others)
            and not any(run.equal_to for run in self.runs)
            and any(UNKNOWN_WEIGHTS in run.weightings for run in self.runs)
        )

    def findings(self) -> list[tuple[RunAnalysis, HeldFinding]]:
        """Return the lasting findings of all runs, sorted like those of a run."""
        found = [(run, held) for run in self.runs for held in run.findings if held.lasting]
        return sorted(found, key=lambda pair: (pair[1].finding.rank[0], -pair[1].steps))

    def verdict(self, run: RunAnalysis) -> Verdict:
        """Return the verdict on a run, with the checks that could not run."""
        return self.verdicts[run.run]

    def worst_verdict(self) -> Verdict | None:
        """Return the most urgent verdict, or None without runs."""
        verdicts = self.verdicts.values()
        return min(verdicts, key=lambda v: list(Action).index(v.action), default=None)


def analyze(  # noqa: PLR0913 (what the caller knows about the files)
    reading: RolloutReading,
    *,
    weights: Mapping[str, float] | None = None,
    sizes_are_weights: bool = False,
    low: Bounds = None,
    high: Bounds = None,
    replayed: Sequence[str] | None = None,
    sampled: bool = False,
    primary: str | None = None,
) -> Analysis:
    """Return the analysis of all steps. Each step is diagnosed as soon as it is read.

    If a step cannot be analyzed, the reason is added to `problems`, and the next step is analyzed.

    Args:
        reading: Result of `read_rollout_files`.
        weights: Weights by reward name. Default: the recorded weights, or 1 if there are none.
        sizes_are_weights: Whether the sizes of the rewards say how much they matter (see
            `gdpo.diagnostics.readings`).
        low: Lowest possible value of each reward, keyed by name. Default: as declared in the files.
        high: Highest possible value, as `low`.
        replayed: Estimators that recompute the advantages of every step (see `Replay`). Empty: all.
            None: none. The first one, or GRPO, also computes advantages that are not recorded.
        sampled: Whether to sample some groups for display.
        primary: Reward that should always win (see `PriorityOverall`). None: not checked.

    Raises:
        ConfigError: If a requested reward is in no file, a weight or bound names an unknown reward,
            a range does not have low < high, or an estimator is unknown.
    """
    replay = None if replayed is None else Replay(replayed, low=low, high=high)
    estimator = next((name for name in replayed or () if name != RECORDED), "grpo")
    done = Analysis(reading.report)
    sample = GroupSampler()
    names: dict[str, None] = {}
    steps: dict[str, RunSteps] = {}
    for table in reading:
        names |= dict.fromkeys(table.names)
        try:
            batch = batch_of(table, weights)
        except DataError as error:
            done.problems[remedied(error.what, error.remedy, options=True)] += len(table)
            batch = None
        if batch is None:
            done.not_analyzed += len(table)
            continue
        steps.setdefault(table.run, RunSteps(table.run)).add(
            analyze_step(batch, estimator=estimator, low=low, high=high), batch
        )
        if primary is not None:
            done.priorities.setdefault(table.run, PriorityOverall(table.run, primary)).add(batch)
        found = None if replay is None else replay.add(batch)
        if sampled:
            sample.look(batch, found)
    _refuse_absent(reading.report, names, primary)
    refuse_unnamed(weights, names, "weights")
    refuse_unnamed((*(low or ()), *(high or ())), names, "range")
    purpose = Meaning.SIZES if sizes_are_weights else Meaning.WEIGHTS if weights else None
    done.runs = [run_of(run, purpose) for run in steps.values()]
    done.verdicts = {
        run.run: verdict_of(run, done.report, weighted=weights or (), primary=primary)
        for run in done.runs
    }
    done.sample = sample.groups
    done.replayed = [] if replay is None else replay.results()
    return done


def _refuse_absent(report: ReadReport, names: Collection[str], primary: str | None) -> None:
    for name in report.absent:
        fields = f", only the fields {listed(report.fields)}" if report.fields else ""
        has = f"the files contain no numbers{fields}"
        if report.offered:
            has = did_you_mean(name, report.offered)
        raise ConfigError(f"reward {name!r} is in none of the files: {has}")
    if names and primary not in names and primary in report.fields:  # even if not read
        raise ConfigError(
            f"primary: {primary!r} is not read as a reward (rewards: {listed(names)}). If it is "
            "one, add it to rewards"
        )
    refuse_unnamed((primary,) if primary else (), names, "primary")


def as_dict(analysis: Analysis) -> dict[str, Any]:
    """Return an analysis as nested dicts and lists, with NaN for unknown values.

    docs/how-to/analyze.md lists the main keys.
    """
    report = analysis.report
    return {
        "paths": [str(path) for path in report.paths],
        "rows": {
            "all": report.rows,
            **_fields(report, "read", "skipped"),
            "not_analyzed": analysis.not_analyzed,
        },
        "files": [
            {
                "path": str(file.path),
                **_fields(file, "format", "format_from", "rows", "read", "skipped"),
                "rewards": list(file.given.names),
                "rewards_from": file.given.rewards.how(options=True),
            }
            for file in report.files
        ],
        "left_out": [
            {"path": str(path), "why": report.why_not(path).sentence(options=True)}
            for path in report.left_out
        ],
        "notices": [
            {
                "file": str(n.file),
                "line": n.line,
                "what": n.oddity.sentence(options=True),
                **_fields(n, "count", "rows"),
            }
            for n in report.notices.values()
        ],
        "groups": {
            "count": report.groups,
            "sizes": {str(size): count for size, count in sorted(report.group_sizes.items())},
            "by": dict(report.grouped_by),
            "findings": [each.sentence(options=True) for each in report.of_groups()],
        },
        "problems": [{"what": w, "rollouts": n} for w, n in analysis.problems.items()],
        "runs": [_run(run, analysis.verdict(run)) for run in analysis.runs],
        "estimators": [{**asdict(each), "same": each.same} for each in analysis.replayed],
        "priority": [each.as_dict() for each in analysis.priorities.values()],
    }


def _fields(each: object, *names: str) -> dict[str, Any]:
    return {name: getattr(each, name) for name in names}


def _run(run: RunAnalysis, verdict: Verdict) -> dict[str, Any]:
    return {
        **_fields(run, "run", "rollouts", "left_out", "weights_from"),
        "steps_with_recorded_advantages": run.recorded,
        "estimators": list(run.estimators),
        "rewards": [
            {
                **asdict(reward),
                "over_time": {k: v.tolist() for k, v in run.over_time[reward.name].items()},
            }
            for reward in run.rewards
        ],
        "correlation": [[run.correlation(a, b) for b in run.names] for a in run.names],
        "findings": [_finding(run, held) for held in run.findings],
        "unchecked": [asdict(each) for each in verdict.unchecked],
        "verdict": verdict.as_dict(),
        "turns": [asdict(turn) for turn in run.turns],
        "over_time": {
            "step": list(run.steps),
            "batch_gain": run.batch_gain.tolist(),
            "num_tokens": run.num_tokens.tolist(),
            "truncated": run.truncated.tolist(),
        },
    }


def _finding(run: RunAnalysis, held: HeldFinding) -> dict[str, Any]:
    finding, spans = held.finding, run.spans(held)
    return {
        **_fields(finding, "kind", "severity"),
        "rewards": list(finding.rewards),
        "message": finding.message,
        "remedy": finding.advice(options=True),
        "causes": list(finding.causes),
        "evidence": dict(finding.evidence),
        "first": spans[0][0],
        "last": spans[-1][1],
        **_fields(held, "steps", "in_a_row", "of", "lasting", "certain", "past"),
    }
