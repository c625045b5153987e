"""Compares the requested influence shares of the rewards with the realized ones."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gdpo._text import capitalized, visible
from gdpo.advantages import AdvantageRule
from gdpo.analysis.run import RunAnalysis
from gdpo.diagnostics.influence import Influence, pooled
from gdpo.lab.experiments.reading import ComparedRun, Experiment, Measured
from gdpo.lab.experiments.statistics import Interval
from gdpo.lab.report._summary import with_interval
from gdpo.lab.report.trained import TrainedAnalysis
from gdpo.report.text import NAME, number, short

_CODES = AdvantageRule.SET_POINT_STATUSES
_, _BOUND, _CONSTANT, _RELEASED, _NOT_ATTAINABLE, _SETTLING, _MISSED = _CODES

_MEANINGS = {
    _BOUND: "the weight is 20 times larger or smaller than requested",
    _CONSTANT: "the reward was constant in the last 256 groups",
    _RELEASED: "the mean is near the top of the range, and the weight is back at the request",
    _NOT_ATTAINABLE: "the reward is too correlated with another one",
    _SETTLING: "too few groups so far to know whether the recent share is the requested one",
    _MISSED: "the recent share is not the requested one, although the weight follows the request",
}


HEADINGS = ("requested", "realized (95 %)", "farthest run", "weight", "counted steps", "status")
"""Headings of the values of a `RequestedShare`."""

_NOTE = (
    "An influence share measures how strongly the advantages follow a reward, compared with the "
    "other rewards. Realized: over the recorded steps of all runs in which every weight followed "
    "its request (counted steps). Farthest run: the share of the run that is farthest from the "
    "request. Weight and status: at the end. Governed: the recent share is the requested one."
)


@dataclass(frozen=True, slots=True)
class RequestedShare:
    """Stores the request for one reward and its result in one label's runs."""

    label: str
    reward: str
    requested: float
    """The requested influence share, from 0 to 1."""
    realized: Interval
    """The influence share over the counted steps of all runs, with its 95 % interval. NaN: there
    are no such steps, or no rollouts were recorded."""
    farthest: float
    """Realized share of the run that is farthest from the request."""
    weight: float
    """Weight in the last step, averaged over the runs."""
    status: str
    """Status in the last step as text. If the runs differ, each status with its number of runs."""
    statuses: frozenset[str]
    """Statuses of the runs in the last step, as in `AdvantageRule.SET_POINT_STATUSES`."""
    counted: int
    """Number of recorded steps in which the weight of every requested share followed its request.
    Counting only steps that met their share would select them."""
    steps: int
    """Number of recorded steps."""


def requested_shares(experiment: Experiment, analysis: TrainedAnalysis) -> list[RequestedShare]:
    """Return each reward's requested and realized influence share, for each label.

    A label's influence is pooled over its `counted_steps`.
    """
    return [
        share for label in experiment.labels for share in _of_label(label, experiment, analysis)
    ]


def requested_summary(shares: Sequence[RequestedShare]) -> RenderableType:
    """Return a table of the shares, to print with rich."""
    parts: list[RenderableType] = []
    for label in dict.fromkeys(share.label for share in shares):
        of_label = [share for share in shares if share.label == label]
        table = Table(show_edge=False, pad_edge=False)
        widest = max(len(visible(share.reward)) for share in of_label)
        table.add_column("reward", style="cyan", overflow="fold", min_width=min(widest, NAME))
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == HEADINGS[-1] else "right")
        for share in of_label:
            table.add_row(*(Text(visible(cell)) for cell in (share.reward, *cells(share))))
        parts += [Text(f"requested influence, {visible(label)}", style="bold"), table]
    return Group(*parts, Text(note(shares), style="dim"))


def note(shares: Sequence[RequestedShare]) -> str:
    """Explain the headings and the statuses that occur."""
    found = [
        f"{capitalized(status)}: {meaning}."
        for status, meaning in _MEANINGS.items()
        if any(status in share.statuses for share in shares)
    ]
    return " ".join([_NOTE, *found])


def cells(share: RequestedShare) -> tuple[str, ...]:
    """Return the values under `HEADINGS`."""
    return (
        number(share.requested),
        with_interval(share.realized, Measured("", 0.0, 1.0, None)),
        number(share.farthest),
        short(round(share.weight, 3)) if share.weight == share.weight else "–",
        f"{share.counted:,} of {share.steps:,}",
        share.status,
    )


def _of_label(
    label: str, experiment: Experiment, analysis: TrainedAnalysis
) -> Iterator[RequestedShare]:
    runs = [
        (run, analysis.runs.get(str(place)))
        for place, run in enumerate(experiment.runs)
        if run.label == label and run.requested
    ]
    kept = [(run, recorded, counted_steps(run, recorded)) for run, recorded in runs if recorded]
    influences = [recorded.influence(steps) for _, recorded, steps in kept if steps]
    requests = {name: share for run, _ in runs for name, share in run.requested.items()}
    for name, requested in requests.items():
        each = [_share(influence, name).value for influence in influences]
        yield RequestedShare(
            label=label,
            reward=name,
            requested=requested,
            realized=_share(pooled(influences), name) if influences else Interval(nan, nan, nan),
            farthest=max(each, key=lambda share: abs(share - requested), default=nan),
            weight=float(np.mean([_last(run.weights.get(name)) for run, _ in runs])),
            status=_in_words([_words(name, run, recorded) for run, recorded in runs]),
            statuses=frozenset(_status(name, run) for run, _ in runs),
            counted=sum(len(steps) for *_, steps in kept),
            steps=sum(len(recorded.steps) for _, recorded, _ in kept),
        )


def counted_steps(run: ComparedRun, recorded: RunAnalysis) -> set[int]:
    """Return the recorded steps in which every weight followed its request."""
    known = [curve for curve in run.statuses.values() if len(curve)]
    if not known:
        return set()
    codes = [_CODES.index(status) for status in AdvantageRule.FOLLOWING]
    following = np.isin(np.stack(known), codes)
    return {
        step
        for step in recorded.steps
        if 1 <= step <= following.shape[1] and np.all(following[:, step - 1])
    }


def _share(influence: Influence, name: str) -> Interval:
    place = influence.names.index(name) if name in influence.names else None
    if place is None:
        return Interval(nan, nan, nan)
    share, margin = float(influence.shares[place]), float(influence.margins[place])
    return Interval(share, share - margin, share + margin)


def _status(name: str, run: ComparedRun) -> str:
    """Return the last status, or – if the logs average it over several steps."""
    code = _last(run.statuses.get(name))
    return _CODES[int(code)] if code in range(len(_CODES)) else "–"


def _words(name: str, run: ComparedRun, recorded: RunAnalysis | None) -> str:
    """Return the last status, with the cause if the share is not attainable."""
    status = _status(name, run)
    if status != _NOT_ATTAINABLE or recorded is None:
        return status
    others = {other: recorded.correlation(name, other) for other in run.requested if other != name}
    known = {other: found for other, found in others.items() if found == found}
    if not known:
        return status
    nearest = max(known, key=lambda other: abs(known[other]))
    return f"{status}: correlation {known[nearest]:.2f} with {nearest}"


def _in_words(statuses: list[str]) -> str:
    counts = Counter(statuses)
    if len(counts) == 1:
        return statuses[0]
    return ", ".join(f"{status} ({count})" for status, count in counts.most_common())


def _last(curve: np.ndarray | None) -> float:
    known = np.empty(0) if curve is None else curve[~np.isnan(curve)]
    return float(known[-1]) if len(known) else nan
