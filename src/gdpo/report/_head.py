"""What the page says first: the question, the answer, and the numbers behind it."""

from collections.abc import Iterable, Sequence

from gdpo.experiments.comparison import Comparison, Difference, Interval
from gdpo.experiments.reading import Measured, Run
from gdpo.report._charts import COLOURS
from gdpo.report.text import html, number, probability, short

_FOREST = 84
"""Width of the picture of an interval, in pixels."""


_LISTED = 10
"""Seeds that are written out, at most."""


def swatch(place: int) -> str:
    """The line with which an arm is drawn."""
    return (
        f'<svg class="swatch a{place % COLOURS}" viewBox="0 0 26 8" aria-hidden="true">'
        '<path class="bold" d="M1 4H25"/></svg>'
    )


def arm_name(comparison: Comparison, arm: str) -> str:
    """Name and line of an arm."""
    return f"{swatch(comparison.experiment.arms.index(arm))} <bdi>{html(arm)}</bdi>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table whose first column is the headings of its rows; the cells are HTML already."""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="wide"><table>'
        f"<caption>{caption}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def setup(comparison: Comparison) -> str:
    """What was run, in a line."""
    experiment = comparison.experiment
    failed = sum(run.state == "failed" for run in experiment.runs)
    parts = [
        f"{len(experiment.runs)} run{'s' * (len(experiment.runs) != 1)} of "
        f"{experiment.total_steps:,} steps",
        f"seed{'s' * (len(experiment.seeds) != 1)} {_listed(map(str, experiment.seeds))}",
    ]
    if failed:
        parts.append(f"{failed} failed")
    return html(" · ".join([experiment.name, *parts]))


def result_tables(comparison: Comparison) -> str:
    """A table per reward: how it ended, against the first arm, and how soon."""
    return "".join(_result_table(comparison, reward) for reward in comparison.experiment.rewards)


def _result_table(comparison: Comparison, reward: Measured) -> str:
    arms = comparison.experiment.arms
    differences = {d.arm: d for d in comparison.differences if d.reward == reward.name}
    headings = ["arm", "final (95&nbsp;%)"]
    if differences:
        headings += [f"against {html(arms[0])}", f"p, floor {_floors(differences.values())}"]
    headings += [f"came to {_plain(comparison.threshold(reward), reward)}", "median steps"]
    scale = _forest_scale(differences.values())
    rows = [
        [
            arm_name(comparison, arm),
            interval(outcome.final, reward),
            *(_difference_cells(differences.get(arm), reward, scale) if differences else ()),
            f"{outcome.reached} of {outcome.runs}",
            steps(outcome.survival.median),
        ]
        for arm in arms
        for outcome in [comparison.outcome(arm, reward.name)]
    ]
    return table(
        headings,
        rows,
        f"<b><bdi>{html(reward.name)}</bdi></b> <span>{short(reward.low)} to {short(reward.high)}, "
        f"weight {'varied' if reward.weight is None else short(reward.weight)}</span>",
    )


def _difference_cells(found: Difference | None, reward: Measured, scale: float) -> tuple[str, str]:
    if found is None:
        return "–", "–"
    p = f"<b>{probability(found.p_adjusted)}</b> <span>alone {probability(found.p_value)}</span>"
    return f"{_forest(found.final, scale)} {interval(found.final, reward, sign=True)}", p


def _floors(differences: Iterable[Difference]) -> str:
    """The least p-values that were possible; arms with fewer seeds have a higher one."""
    return " to ".join(map(probability, sorted({d.p_floor for d in differences})))


def _forest_scale(differences: Iterable[Difference]) -> float:
    ends = [abs(end) for d in differences for end in (d.final.value, d.final.low, d.final.high)]
    return max((end for end in ends if end == end), default=0.0) or 1.0


def _forest(found: Interval, scale: float) -> str:
    """An interval beside 0."""
    if found.value != found.value:
        return ""

    def across(value: float) -> str:
        return f"{_FOREST / 2 + value / scale * (_FOREST / 2 - 4):.1f}"

    whisker = (
        f'<path d="M{across(found.low)} 7H{across(found.high)}"/>' if found.low == found.low else ""
    )
    return (
        f'<svg class="forest" viewBox="0 0 {_FOREST} 14" aria-hidden="true">'
        f'<path class="zero" d="M{_FOREST / 2} 0V14"/>{whisker}'
        f'<circle cx="{across(found.value)}" cy="7" r="3.5"/></svg>'
    )


def interval(found: Interval, reward: Measured, *, sign: bool = False) -> str:
    """A figure, and its interval where there is one."""
    value = f"<b>{_plain(found.value, reward, sign=sign)}</b>"
    if found.low != found.low or found.high != found.high:
        return value
    ends = (_plain(end, reward, sign=sign) for end in (found.low, found.high))
    return f"{value} <span>{' to '.join(ends)}</span>"


def steps(found: Interval) -> str:
    """A number of steps."""
    if found.value != found.value:
        return "not reached"
    low, high = (f"{end:.0f}" if end == end else "" for end in (found.low, found.high))
    span = f"{low} to {high}" if low and high else f"from {low}" if low else ""
    return f"<b>{found.value:.0f}</b> <span>{span}</span>"


def all_numbers(comparison: Comparison) -> str:
    """What the first tables leave out."""
    experiment = comparison.experiment
    rewards = {reward.name: reward for reward in experiment.rewards}
    seeds = _listed(map(str, experiment.seeds))
    headings = [
        "reward",
        "arm",
        "runs (failed)",
        "best (IQM, 95&nbsp;%)",
        f"final of seed {seeds}",
    ]
    found = {(d.arm, d.reward): d for d in comparison.differences}
    if found:
        headings += ["pairs", "p of the final, alone", "p of the steps, alone", "corrected"]
    rows = [
        [
            html(o.reward),
            arm_name(comparison, o.arm),
            f"{o.runs} ({o.failed})",
            interval(o.best, rewards[o.reward]),
            _listed(_plain(value, rewards[o.reward]) for value in o.finals.tolist()),
            *(_difference_numbers(found.get((o.arm, o.reward))) if found else ()),
        ]
        for o in comparison.outcomes
    ]
    return table(headings, rows, "per reward and arm") + _hypervolumes(comparison)


def _difference_numbers(found: Difference | None) -> list[str]:
    if found is None:
        return ["–"] * 4
    values = (found.p_value, found.p_time, found.p_time_adjusted)
    return [str(found.pairs), *map(probability, values)]


def _hypervolumes(comparison: Comparison) -> str:
    if not comparison.hypervolumes:
        return ""
    share = Measured("hypervolume", 0.0, 1.0, 1.0)
    rows = [[arm_name(comparison, arm), interval(v, share)] for arm, v in comparison.hypervolumes]
    return table(["arm", "share (95&nbsp;%)"], rows, "hypervolume: all rewards together")


def runs_table(comparison: Comparison) -> str:
    """How each run went, and why it failed."""
    total = comparison.experiment.total_steps
    told = any(run.why for run in comparison.experiment.runs)

    def row(run: Run) -> list[str]:
        state = f'<b class="bad">{run.state}</b>' if run.state == "failed" else run.state
        lines = run.why.strip().splitlines()[-_LINES:]
        why = f'<bdi class="why">{html(_NEWLINE.join(lines)[-600:])}</bdi>' if lines else ""
        return [
            arm_name(comparison, run.arm),
            str(run.seed),
            state,
            f"{run.steps:,} of {total:,}",
            html(run.path.name),
            *([why] if told else ()),
        ]

    headings = ["arm", "seed", "state", "steps", "folder", *(["why"] if told else ())]
    return table(headings, map(row, comparison.experiment.runs), "each run")


def _listed(texts: Iterable[str]) -> str:
    """The first of them, and how many there are."""
    every = list(texts)
    rest = f", … ({len(every)} in all)" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + rest


def _plain(value: float, reward: Measured, *, sign: bool = False) -> str:
    return number(value, reward.low, reward.high, sign=sign)


_LINES = 3
"""Last lines of what a failed run printed."""

_NEWLINE = "\n"
