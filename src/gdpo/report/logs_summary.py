"""Summarizes logged metrics for a terminal, for `gdpo analyze` without rollouts."""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite, nan

from rich.text import Text

from gdpo._text import counted, one_line
from gdpo.analysis.logs.trends import RewardTrend, RunTrends
from gdpo.diagnostics.diagnosis import interval
from gdpo.report.terminal import as_number, as_share, finding_lines, short_name, table, wrapped

_RUNS, _REWARDS = 3, 16
"""Maximum number of runs, and of rewards of a run."""


def logs_summary(runs: Sequence[RunTrends], *, width: int = 100, whole: bool = False) -> list[Text]:
    """Return lines to print with rich: for each run its rewards and findings, then the limits.

    Args:
        runs: The results for each run, those with the most steps first.
        width: Width of the terminal in cells. Longer lines are wrapped.
        whole: Whether tables contain whole names and may be wider, as in a file.
    """
    lines = [line for run in runs[:_RUNS] for line in _run(run, width, whole=whole)]
    if len(runs) > _RUNS:
        lines.append(Text(f"and {len(runs) - _RUNS:,} more runs: pass one of their files"))
    return [*lines, *wrapped(_limits(runs), width)]


def _run(trends: RunTrends, width: int, *, whole: bool) -> Iterator[Text]:
    yield from wrapped(_heading(trends), width)
    columns = _columns(trends.rewards)
    rows = [
        (one_line(reward.name), *(cell(reward) for cell in columns.values()))
        for reward in trends.rewards[:_REWARDS]
    ]
    yield from table([("reward", *columns), *rows], width, whole=whole)
    if (rest := len(trends.rewards) - _REWARDS) > 0:
        yield Text(f"and {counted(rest, 'more reward')} (--json prints all)", style="dim")
    for finding in trends.findings:
        message, remedy = one_line(finding.message), one_line(finding.remedy)
        yield from finding_lines(finding.severity, message, remedy, width)


def _heading(trends: RunTrends) -> Iterator[str]:
    run, log = trends.run, trends.run.log
    steps = counted(len(run.steps), "logged row" if log.numbered else "logged step")
    span = f" ({run.steps[0]:,.0f} to {run.steps[-1]:,.0f})" if len(run.steps) > 1 else ""
    name = f", run {one_line(log.run)}" if log.run else ""
    yield f"metrics only, no rollouts: {steps}{span} from {log.source}{name}: {_path(log.path)}"
    if run.copies:
        others = ", ".join(f"{copy.source} ({_path(copy.path)})" for copy in run.copies)
        yield f"the same numbers are in {others}"
    if log.numbered:
        yield "the rows contain no step, and are numbered in order"
    if log.problem:
        yield f"! the file was not read to its end: {log.problem}"
    if any(reward.weight != 1 for reward in trends.rewards):
        weights = (f"{short_name(r.name)} {r.weight:g}" for r in trends.rewards)
        yield f"weights: {', '.join(weights)}"
    else:
        yield "weights: assumed to be 1 for each reward, because metrics contain none (--weights)"
    if "warnings" in run.batch:
        warned = int((run.batch["warnings"] > 0).sum())
        yield f"gdpo logged warnings in {warned:,} of {steps.removesuffix('s')}s"


def _columns(rewards: Sequence[RewardTrend]) -> dict[str, Callable[[RewardTrend], str]]:
    columns: dict[str, Callable[[RewardTrend], str]] = {
        "mean: first → last": lambda r: f"{as_number(r.first)} → {as_number(r.last)}",
        "trend": _trend,
    }
    if any(isfinite(reward.std) for reward in rewards):
        columns["std"] = lambda r: as_number(r.std)
    columns["weight share"] = lambda r: as_share(r.weight_share)
    if any(isfinite(reward.zero_variance_groups) for reward in rewards):
        columns["zero variance"] = lambda r: as_share(r.zero_variance_groups)
    if any(isfinite(reward.influence_share) for reward in rewards):
        columns["influence share"] = lambda r: interval(r.influence_share, nan)
    elif "std" in columns:
        columns["weight × std"] = lambda r: as_share(r.std_share)
    return columns


def _trend(reward: RewardTrend) -> str:
    change, margin = reward.change, reward.margin
    if not isfinite(margin):
        return "unclear" if margin == margin else "too few steps"
    if abs(change) <= margin:
        return "none" if margin == 0 else f"none (± {as_number(margin)})"
    verb = "rises" if change > 0 else "falls"
    return f"{verb} by {as_number(abs(change))} ± {as_number(margin)}"


def _limits(runs: Sequence[RunTrends]) -> Iterator[str]:
    if any(not isfinite(r.std) for run in runs for r in run.rewards):
        yield (
            "without the std of a reward, as in TRL up to 0.15, metrics cannot show whether the "
            "reward is constant or ignored. It may be, even if its mean changes"
        )
    if any(isfinite(r.std) for run in runs if not run.within_groups for r in run.rewards):
        yield (
            "std is over the whole batch. It also contains the differences between prompts, such "
            "as their difficulty, which do not affect the advantages within a group"
        )
    logged = all(isfinite(r.influence_share) for run in runs for r in run.rewards)
    influence = "" if logged else "the influence share of each reward, "
    yield (
        f"metrics cannot show {influence}whether rewards conflict, or what another estimator "
        "would change"
    )
    yield (
        "to find out, record rollouts, as with log_completions=True in TRL (see "
        "docs/how-to/analyze.md)"
    )


def _path(path: object) -> str:
    return one_line(str(path))
