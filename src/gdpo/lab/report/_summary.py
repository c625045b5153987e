"""Summarizes the results of a comparison, and a trade-off of two rewards, for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdpo._text import counted, visible
from gdpo.lab.experiments.comparison import Comparison, details, headline, question
from gdpo.lab.experiments.fronts import trade_off
from gdpo.lab.experiments.statistics import FEWEST_SEEDS
from gdpo.lab.report._front_chart import front_table
from gdpo.lab.report._tables import NOTHING, Name, estimate
from gdpo.report.text import NAME, probability

_FRONT_NOTE = (
    "front: yes if no variant of the same estimator has means at least as high in both rewards and "
    "higher in at least one. Intervals: Student's t over the seeds, 95 %."
)


def summary(comparison: Comparison) -> RenderableType:
    """Return the question, the conclusion and a table of the results, to print with rich."""
    parts: list[RenderableType] = [
        Text(visible(question(comparison.experiment)), style="dim"),
        Text(visible(headline(comparison)), style="bold"),
    ]
    if sentences := details(comparison):
        parts.append(Text(visible(" ".join(sentences))))
    if comparison.exploratory:
        parts.append(Text(caution(comparison), style="yellow"))
    parts.append(_table(comparison))
    if comparison.experiment.unlike:
        first = visible(comparison.experiment.labels[0])
        note = f"–: not compared, because its gate or options differ from those of {first}"
        parts.append(Text(note, "dim"))
    failed = [run for run in comparison.experiment.runs if run.state == "failed"]
    for run in failed[:3]:
        why = run.why.strip().splitlines()
        reason = visible(why[-1])[:200] if why else "the reason is not known"
        parts.append(Text(f"{visible(run.label)}, seed {run.seed} failed: {reason}", style="red"))
    if len(failed) > 3:
        parts.append(Text(f"{counted(len(failed) - 3, 'more run')} failed", style="red"))
    return Group(*parts)


def front_summary(comparison: Comparison, rewards: tuple[str, str]) -> RenderableType:
    """Return a table of the variants and their trade-off between two rewards.

    Raises:
        ConfigError: If the experiment has no such reward, or labels define it differently.
    """
    shown = front_table(trade_off(comparison, rewards))
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("variant", style="bold", overflow="fold")
    for heading in shown.columns[2:]:
        table.add_column(Text(visible(heading)), justify="right")
    for _, *row in shown.rows:
        texts = (cell.text if isinstance(cell, Name) else str(cell) for cell in row)
        table.add_row(*(Text(visible(text)) for text in texts))
    return Group(table, Text(_FRONT_NOTE, style="dim"))


def caution(comparison: Comparison) -> str:
    """Return a warning about the small number of seeds."""
    seeds = counted(comparison.fewest_seeds, "seed")
    return f"Exploratory: {seeds}. At least {FEWEST_SEEDS} are needed to report a difference."


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
    differences = {(d.label, d.reward): d for d in comparison.differences}
    for reward in comparison.experiment.rewards:
        for place, label in enumerate(labels):
            outcome = comparison.outcome(label, reward.name)
            median = outcome.survival.median.value
            found = differences.get((label, reward.name))
            compared = [NOTHING, NOTHING] if differences else []
            if found is not None:
                p = f"{probability(found.p_adjusted)} ({probability(found.p_floor)})"
                compared = [str(estimate(found.final, reward, sign=True)), p]
            cells = [
                visible(reward.name) if place == 0 else "",
                visible(label),
                str(estimate(outcome.final, reward)),
                *compared,
                f"{outcome.reached} of {outcome.runs}",
                "never" if median != median else f"{median:.0f}",
            ]
            table.add_row(*map(Text, cells), end_section=label == labels[-1])
    return table
