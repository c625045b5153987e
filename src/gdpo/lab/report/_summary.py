"""Summarizes the results of a comparison for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdpo._text import counted, visible
from gdpo.lab.experiments.comparison import Comparison, further, headline
from gdpo.lab.experiments.reading import OPEN, Experiment, Measured
from gdpo.lab.experiments.statistics import FEWEST_SEEDS, Interval
from gdpo.report.html import shortened
from gdpo.report.text import NAME, number, probability


def summary(comparison: Comparison) -> RenderableType:
    """Return the conclusion and a table of the results, to print with rich."""
    experiment = comparison.experiment
    parts: list[RenderableType] = [
        Text(visible(f"{experiment.name}: {setup(experiment)}"), style="dim"),
        Text(visible(headline(comparison)), style="bold"),
    ]
    if sentence := further(comparison):
        parts.append(Text(visible(sentence)))
    if comparison.exploratory:
        parts.append(Text(caution(comparison), style="yellow"))
    parts.append(_table(comparison))
    if experiment.unlike:
        first = visible(experiment.labels[0])
        note = f"–: not compared, because its gate or options differ from those of {first}"
        parts.append(Text(note, "dim"))
    failed = [run for run in experiment.runs if run.state == "failed"]
    for run in failed[:3]:
        why = run.why.strip().splitlines()
        reason = visible(why[-1])[:200] if why else "the reason is not known"
        parts.append(Text(f"{visible(run.label)}, seed {run.seed} failed: {reason}", style="red"))
    if len(failed) > 3:
        parts.append(Text(f"{counted(len(failed) - 3, 'more run')} failed", style="red"))
    return Group(*parts)


def setup(experiment: Experiment) -> str:
    """Return the numbers of runs, steps, seeds, failed and unended runs, and what is left out."""
    states = [run.state for run in experiment.runs]
    failed, going = states.count("failed"), sum(state in OPEN for state in states)
    seeds = shortened(", ".join(map(str, experiment.seeds)))
    parts = [
        f"{counted(len(states), 'run')} of {experiment.total_steps:,} steps",
        f"seed{'s' * (len(experiment.seeds) != 1)} {seeds}",
        f"{failed} failed" if failed else "",
        f"{going} not ended" if going else "",
        f"removed recipe keys left out: {', '.join(experiment.left_out)}"
        if experiment.left_out
        else "",
    ]
    return " · ".join(filter(None, parts))


def caution(comparison: Comparison) -> str:
    """Return a warning about the small number of seeds."""
    seeds = counted(comparison.fewest_seeds, "seed")
    return f"Exploratory: {seeds}. At least {FEWEST_SEEDS} are needed to report a difference."


def with_interval(found: Interval, reward: Measured, *, sign: bool = False) -> str:
    """Return a number with its interval, rounded to about a thousandth of the reward's range."""
    value, low, high = (
        number(end, reward.low, reward.high, sign=sign)
        for end in (found.value, found.low, found.high)
    )
    return value if low == high == "–" else f"{value} [{low}, {high}]"


def _table(comparison: Comparison) -> Table:
    labels = comparison.experiment.labels
    table = Table(show_edge=False, pad_edge=False)
    widest = max((len(visible(r.name)) for r in comparison.experiment.rewards), default=0)
    table.add_column("reward", style="cyan", overflow="fold", min_width=min(widest, NAME))
    table.add_column("estimator", style="bold", overflow="fold")
    headings = ["final (95 %)"]
    if comparison.differences:
        headings += [f"minus {visible(labels[0])}", "p (raw at least)"]
    for heading in [*headings, "reached", "median step"]:
        table.add_column(Text(heading), justify="right", overflow="fold")
    differences = comparison.by_place
    for reward in comparison.experiment.rewards:
        for place, label in enumerate(labels):
            outcome = comparison.outcome(label, reward.name)
            median = outcome.survival.median.value
            found = differences.get((label, reward.name))
            compared = ["–", "–"] if differences else []
            if found is not None:
                p = f"{probability(found.p_adjusted)} ({probability(found.p_floor)})"
                compared = [with_interval(found.final, reward, sign=True), p]
            cells = [
                visible(reward.name) if place == 0 else "",
                visible(label),
                with_interval(outcome.final, reward),
                *compared,
                f"{outcome.reached} of {outcome.runs}",
                "never" if median != median else f"{median:.0f}",
            ]
            table.add_row(*map(Text, cells), end_section=label == labels[-1])
    return table
