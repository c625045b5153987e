"""Analyzes the rollouts of several runs in one pass over their steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gdpo._naming import did_you_mean
from gdpo.analysis.replay import RECORDED, Replay, Replayed
from gdpo.analysis.run import LengthBins, RunAnalysis
from gdpo.analysis.sample import Sample, SampledGroup
from gdpo.analysis.steps import (
    UNKNOWN_WEIGHTS,
    Batch,
    Bounds,
    StepAnalysis,
    analyze_step,
    batch_of,
    check_weights,
)
from gdpo.analysis.unchecked import Unchecked, unchecked_of
from gdpo.analysis.verdict import Verdict, verdict_of, worst
from gdpo.diagnostics.watch import HeldFinding
from gdpo.errors import ConfigError, DataError
from gdpo.rollouts.readers import ReadReport, RolloutReading, RolloutTable
from gdpo.rollouts.readers.names import listed

_VIEWED = ("grpo", "gdpo")
"""Estimators whose advantages are shown alongside the recorded advantages by default. These
estimators are stateless, so they are called only on the sampled steps."""


@dataclass(slots=True)
class Analysis:
    """Stores the results for all runs that were read."""

    report: ReadReport
    runs: list[RunAnalysis] = field(default_factory=list[RunAnalysis])
    replayed: list[Replayed] = field(default_factory=list[Replayed])
    """Comparison of estimators. Empty if no comparison was requested."""
    sample: list[SampledGroup] = field(default_factory=list[SampledGroup])
    lengths: dict[str, LengthBins] = field(default_factory=dict[str, LengthBins])
    """Rewards by completion length, for each run."""
    not_analyzed: int = 0
    """Number of rollouts that were read but not analyzed, because their step has no rewards, no
    trained rollouts, or groups of very different sizes."""
    problems: dict[str, int] = field(default_factory=dict[str, int])
    """Reasons why steps could not be analyzed, with the number of rollouts in these steps."""

    def add(self, batch: Batch, step: StepAnalysis) -> None:
        """Add the next step of a run."""
        run = next((run for run in self.runs if run.run == step.run), None)
        if run is None:
            run = RunAnalysis(step.run)
            self.runs.append(run)
        run.add(step)
        bins = self.lengths.setdefault(step.run, LengthBins())
        for name, rewards in zip(batch.table.names, batch.table.rewards.T, strict=True):
            bins.add(name, batch.table.num_tokens, rewards)

    @property
    def weights_to_give(self) -> bool:
        """Whether unknown weights may explain why no estimator gives the recorded advantages."""
        others = [r for r in self.replayed if r.estimator != RECORDED and r.steps]
        return (
            bool(others)
            and others[0].baseline == RECORDED
            and not any(r.same for r in others)
            and any(UNKNOWN_WEIGHTS in run.weightings for run in self.runs)
        )

    def findings(self) -> list[tuple[RunAnalysis, HeldFinding]]:
        """Return the lasting findings of all runs, sorted by severity, then by number of steps."""
        found = [(run, held) for run in self.runs for held in run.findings() if held.lasting]
        return sorted(found, key=lambda pair: (pair[1].finding.rank[0], -pair[1].steps))

    def unchecked(self, run: RunAnalysis) -> tuple[Unchecked, ...]:
        """Return the checks that could not run on a run, but would matter for it."""
        return tuple(unchecked_of(run, self.report))

    def verdict(self, run: RunAnalysis) -> Verdict:
        """Return what a run calls for."""
        return verdict_of(run, self.unchecked(run))

    def worst_verdict(self) -> Verdict | None:
        """Return the most urgent verdict of all runs, or None if there are no runs."""
        return worst([self.verdict(run) for run in self.runs])


def analyze(
    reading: RolloutReading,
    *,
    weights: Mapping[str, float] | None = None,
    low: Bounds = None,
    high: Bounds = None,
    replayed: Sequence[str] | None = None,
    sampled: bool = False,
    progress: Callable[[RolloutTable], None] | None = None,
) -> Analysis:
    """Return the analysis of all steps. Each step is diagnosed as soon as it is read.

    If a step cannot be analyzed, the reason is added to `problems`, and the next step is analyzed.

    Args:
        reading: Result of `read_rollout_files`.
        weights: Weights, keyed by reward name. Default: the recorded weights, or 1 if there are
            none.
        low: Lowest possible value of each reward, keyed by name. Default: as declared in the files.
        high: Highest possible value of each reward, keyed by name. Default: as declared in the
            files.
        replayed: Names of the estimators that recompute the advantages of every step (see
            `Replay`). An empty sequence means all estimators, and None means no estimator. For
            steps without recorded advantages, the first estimator (or GRPO by default) computes the
            advantages.
        sampled: Whether to sample some groups for display. Default: False.
        progress: Function that is called with each step before it is analyzed. Default: None.

    Raises:
        ConfigError: If a requested reward is not in any file, a weight or bound refers to an
            unknown reward, a range does not have low < high, or an estimator is unknown.
    """
    replay = None if replayed is None else Replay(replayed or None, low=low, high=high)
    viewed = Replay(low=low, high=high, among=_VIEWED)
    estimator = next((name for name in replayed or () if name != RECORDED), "grpo")
    done, sample = Analysis(reading.report), Sample()
    names: dict[str, None] = {}
    for table in reading:
        if progress is not None:
            progress(table)
        names |= dict.fromkeys(table.names)
        try:
            batch = batch_of(table, weights)
        except DataError as error:
            done.problems[str(error)] = done.problems.get(str(error), 0) + len(table)
            batch = None
        if batch is None:
            done.not_analyzed += len(table)
            continue
        done.add(batch, analyze_step(batch, estimator=estimator, low=low, high=high))
        found = None if replay is None else replay.add(batch)
        if sampled and sample.turn():
            sample.look(batch, viewed.advantages(batch) if found is None else found)
    _refuse_absent(reading.report)
    check_weights(weights, names)
    check_weights(low, names, what="low values")
    check_weights(high, names, what="high values")
    for run in done.runs:
        run.sort()
    done.sample = sample.groups
    done.replayed = [] if replay is None else replay.results()
    return done


def _refuse_absent(report: ReadReport) -> None:
    for name in report.absent:
        fields = f", only the fields {listed(report.fields)}" if report.fields else ""
        has = f"the files contain no numbers{fields}"
        if report.offered:
            has = did_you_mean(name, report.offered)
        raise ConfigError(f"reward {name!r} is in none of the files: {has}")
