"""The suite as Markdown: steps until each reward is reached."""

from collections.abc import Mapping
from math import inf

from gdpo.experiments._reading import Experiment, Measured
from gdpo.experiments._threshold import first_reached


def table(experiments: Mapping[str, Experiment]) -> str:
    """A table per toy, a row per estimator: the step at which the seeds have each reward.

    A cell is the median (the step at which half of the seeds had it) and the range over the seeds,
    then how many never had it, if any. Had: `first_reached` says that the curve was at `reach` of
    the reward's range; it may be lost again.
    """
    return "\n\n".join(_table(experiment) for experiment in experiments.values()) + "\n"


def _table(experiment: Experiment) -> str:
    names = [measured.name for measured in experiment.rewards]
    lines = [
        [experiment.name, *names],
        ["---"] * (1 + len(names)),
        *(
            [f"`{a}`", *(_cell(experiment, a, m) for m in experiment.rewards)]
            for a in experiment.arms
        ),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(experiment: Experiment, arm: str, measured: Measured) -> str:
    if any(run.state == "failed" for run in experiment.runs_of(arm)):
        return "failed"
    level = measured.low + experiment.reach * (measured.high - measured.low)
    reached = [first_reached(c, level) for c in experiment.curves(arm, measured.name)]
    steps = sorted(inf if step is None else step for step in reached)
    never = reached.count(None)
    if never == len(steps):
        return "never"
    median, low, high = (
        f">{experiment.total_steps}" if step == inf else f"{step}"
        for step in (steps[(len(steps) - 1) // 2], steps[0], steps[-1])
    )
    return f"{median} [{low} to {high}]" + (f", {never} never" if never else "")
