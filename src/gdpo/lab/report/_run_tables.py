"""Builds tables of runs that gdpo trained, with the page's numbers and untruncated texts."""

from collections.abc import Iterator

from gdpo.lab.experiments.comparison import Comparison, Difference, Outcome
from gdpo.lab.experiments.reading import Measured
from gdpo.lab.experiments.statistics import Interval
from gdpo.lab.report._front_chart import front_table
from gdpo.lab.report._run_contents import Contents
from gdpo.lab.report._tables import NOTHING, Cell, Estimate, Name, Table, estimate
from gdpo.report.text import number, probability


def tables(contents: Contents) -> list[Table]:
    """Return all tables of the page, except the one of rollouts."""
    comparison = contents.comparison
    found = [_results(comparison), _seeds(comparison)]
    if contents.trade_off is not None:
        found.append(front_table(contents.trade_off))
    found += [_runs(comparison), _findings(contents)]
    if contents.analysis.replayed:
        found.append(_advantages(contents))
    return [table for table in found if table.rows]


def _results(comparison: Comparison) -> Table:
    experiment = comparison.experiment
    found = {(d.label, d.reward): d for d in comparison.differences}
    columns = ["reward", "estimator", "final"]
    if found:
        columns += [
            f"difference from {experiment.labels[0]}",
            "p, corrected",
            "raw p",
            "smallest attainable raw p",
        ]
    columns += ["threshold", "reached the threshold", "median steps"]
    rows = [
        [
            Name(reward.name),
            Name(label),
            estimate(outcome.final, reward),
            *(_difference(found.get((label, reward.name)), reward) if found else ()),
            number(experiment.threshold(reward), reward.low, reward.high),
            f"{outcome.reached} of {outcome.runs}",
            steps(outcome.survival.median),
        ]
        for reward in experiment.rewards
        for label in experiment.labels
        if (outcome := comparison.outcome(label, reward.name))
    ]
    return Table("results", "Final reward of each estimator", columns, rows)


def _difference(found: Difference | None, reward: Measured) -> list[Cell]:
    if found is None:
        return [NOTHING] * 4
    values = (found.p_adjusted, found.p_value, found.p_floor)
    return [estimate(found.final, reward, sign=True), *map(probability, values)]


def _seeds(comparison: Comparison) -> Table:
    experiment = comparison.experiment
    rewards = {reward.name: reward for reward in experiment.rewards}
    found = {(d.label, d.reward): d for d in comparison.differences}
    columns = ["reward", "estimator", "runs", "failed", "best"]
    columns += [f"final, seed {seed}" for seed in experiment.seeds]
    if found:
        columns += ["pairs", "raw p, final reward", "raw p, steps", "corrected p, steps"]
    rows = [
        [
            Name(outcome.reward),
            Name(outcome.label),
            str(outcome.runs),
            str(outcome.failed),
            estimate(outcome.best, rewards[outcome.reward]),
            *_finals(comparison, outcome, rewards[outcome.reward]),
            *(_tests(found.get((outcome.label, outcome.reward))) if found else ()),
        ]
        for outcome in comparison.outcomes
    ]
    return Table("seeds", "All numbers, for each reward and estimator", columns, rows)


def _finals(comparison: Comparison, outcome: Outcome, reward: Measured) -> Iterator[str]:
    runs = comparison.experiment.runs_of(outcome.label)
    ends = dict(zip([run.seed for run in runs], outcome.finals.tolist(), strict=True))
    for seed in comparison.experiment.seeds:
        yield number(ends.get(seed, float("nan")), reward.low, reward.high)


def _tests(found: Difference | None) -> list[str]:
    if found is None:
        return [NOTHING] * 4
    values = (found.p_value, found.p_time, found.p_time_adjusted)
    return [str(found.pairs), *map(probability, values)]


def _runs(comparison: Comparison) -> Table:
    experiment = comparison.experiment
    rows = [
        [
            Name(run.label),
            str(run.seed),
            run.state,
            str(run.steps),
            str(experiment.total_steps),
            Name(run.path.name),
            Name(run.why.strip()),
        ]
        for run in experiment.runs
    ]
    columns = ["estimator", "seed", "state", "steps", "planned steps", "folder", "reason"]
    return Table("runs", "Runs", columns, rows)


def _findings(contents: Contents) -> Table:
    rows = [
        [
            Name(label),
            found.finding.severity.value,
            found.finding.kind.value.replace("_", " "),
            Name(", ".join(found.finding.rewards)),
            "; ".join(found.when()),
            Name(found.finding.message),
            Name(found.finding.remedy),
        ]
        for label, _, every in contents.findings
        for found in every
    ]
    columns = ["estimator", "severity", "finding", "rewards", "when", "what", "what to do"]
    return Table("findings", "Findings that lasted", columns, rows)


def _advantages(contents: Contents) -> Table:
    analysis = contents.analysis
    baseline = analysis.replayed[0].baseline
    columns = [
        "estimator",
        f"correlation with {baseline}",
        f"opposite sign to {baseline}, %",
        "advantage exactly 0, %",
        "largest difference from the recorded advantages",
        "problem",
    ]
    rows = [
        [
            Name(each.estimator),
            NOTHING if each.problem else number(each.correlation),
            NOTHING if each.problem else percentage(each.sign_flips),
            NOTHING if each.problem else percentage(each.zero),
            off_record(analysis.off_record.get(each.estimator)),
            Name(each.problem),
        ]
        for each in analysis.replayed
    ]
    return Table("advantages", "The same rollouts under every estimator", columns, rows)


def off_record(value: float | None) -> str:
    """Return a difference from recorded advantages, with two significant digits."""
    return NOTHING if value is None else f"{value:.1e}".replace("-", "−")


def percentage(share: float) -> str:
    """Return a share as a percentage, without the unit."""
    return NOTHING if share != share else f"{100 * share:.1f}"


def steps(found: Interval) -> Cell:
    """Return a number of steps with its interval, or "not reached" for NaN."""
    if found.value != found.value:
        return "not reached"
    value, low, high = (
        NOTHING if end != end else f"{end:.0f}" for end in (found.value, found.low, found.high)
    )
    return Estimate(value, low, high)
