"""Measures what logged means and standard deviations show about each reward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo._shapes import Float
from gdpo.analysis.logs.rows import Log, fields_of
from gdpo.analysis.logs.sources import SOURCES
from gdpo.analysis.trend import Series, end_means, known_mean, trend

_OF_BATCH = {
    "frac_reward_zero_std": "zero_advantage_groups",
    "diagnostics/zero_advantage_groups": "zero_advantage_groups",
    "gdpo/zero_advantage_groups": "zero_advantage_groups",
    "diagnostics/warnings": "warnings",
    "gdpo/warnings": "warnings",
}
_EQUAL = 1e-4
"""Relative difference below which two logged values count as the same. TensorBoard rounds to
float32."""
_UNLOGGED = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRun:
    """Stores the numbers that a run logged for each reward. NaN: not logged in this step."""

    log: Log
    steps: Float[np.ndarray, " step"]
    rewards: Mapping[str, Mapping[str, Series]]
    """Arrays by reward and by name, such as `std`. There is always a `mean`."""
    batch: Mapping[str, Series]
    """`zero_advantage_groups` and `warnings`, if they were logged."""
    copies: tuple[Log, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardTrend:
    """Stores what the log of a run shows about one reward. NaN: unknown."""

    name: str
    weight: float
    first: float
    """Mean over the first tenth of the logged steps."""
    last: float
    """Mean over the last tenth of the logged steps."""
    change: float
    """Mean over the last third of the logged steps, minus that over the first third."""
    margin: float
    """Half-width of the 95 % confidence interval of `change`. Infinite or NaN: too few steps."""
    std: float
    """Standard deviation, averaged over the logged steps."""
    first_std: float
    """Standard deviation, averaged over the first tenth of the logged steps."""
    last_std: float
    """Standard deviation, averaged over the last tenth of the logged steps."""
    std_share: float
    """Share of |weight| · std in its sum over the rewards."""
    weight_share: float
    zero_variance_groups: float
    """The value that gdpo logged, averaged over the logged steps."""
    influence_share: float
    """The value that gdpo logged, averaged over the logged steps."""


@dataclass(frozen=True, slots=True)
class RunTrends:
    """Stores what the log of a run shows."""

    run: LoggedRun
    rewards: tuple[RewardTrend, ...]
    within_groups: bool
    """Whether the standard deviations are over the samples of a prompt, not over the batch."""


def logged_runs(logs: Sequence[Log], names: Sequence[str] | None = None) -> list[LoggedRun]:
    """Return the runs that logged rewards, without copies, those with the most steps first.

    With `names`, only these rewards are returned. A name that no run has raises a ConfigError.
    """
    runs: list[LoggedRun] = []
    found = [run for run in map(_run, logs) if run.rewards]
    for run in sorted(found, key=lambda run: (-len(run.steps), SOURCES.index(run.log.source))):
        twin = next((i for i, other in enumerate(runs) if _is_copy(run, other)), None)
        if twin is None:
            runs.append(run)
        else:
            runs[twin] = replace(runs[twin], copies=(*runs[twin].copies, run.log))
    if names is None:
        return runs
    known = [name for run in runs for name in run.rewards]
    refuse_unknown(names if runs else (), known, "--rewards: unknown reward")
    selected = (
        replace(run, rewards={n: run.rewards[n] for n in names if n in run.rewards}) for run in runs
    )
    return [run for run in selected if run.rewards]


def _run(log: Log) -> LoggedRun:
    """Return the numbers of a log, without the steps in which it has none."""
    keys = {key for row in log.rows.values() for key in row}
    of_reward = fields_of(keys)
    found: dict[str, dict[str, Series]] = {}
    batch: dict[str, Series] = {}
    nothing = np.full(len(log.rows), nan)
    for place, (_, row) in enumerate(sorted(log.rows.items())):
        for key, value in row.items():
            if (known := of_reward.get(key)) is not None:
                of, name = found.setdefault(known[0], {}), known[1]
            elif name := _OF_BATCH.get(key.removeprefix("train/"), ""):
                of = batch
            else:
                continue
            number = value if abs(value) < 1e300 else nan
            of.setdefault(name, nothing.copy())[place] = number
    rewards = {name: {"mean": nothing, **of} for name, of in found.items()}
    logged = [values for of in rewards.values() for values in of.values()]
    kept = ~np.all(np.isnan(logged), axis=0) if logged else np.ones(len(nothing), bool)
    return LoggedRun(
        log,
        np.array(sorted(log.rows), float)[kept],
        {name: {what: v[kept] for what, v in of.items()} for name, of in rewards.items()},
        {name: values[kept] for name, values in batch.items()},
    )


def _is_copy(run: LoggedRun, longer: LoggedRun) -> bool:
    if not set(run.rewards) <= set(longer.rewards) or not np.isin(run.steps, longer.steps).all():
        return False
    places = np.searchsorted(longer.steps, run.steps)
    return all(
        field in longer.rewards[name]
        and np.allclose(values, longer.rewards[name][field][places], _EQUAL, 1e-9, equal_nan=True)
        for name, of in run.rewards.items()
        for field, values in of.items()
    )


def trends_of(run: LoggedRun, *, weights: Mapping[str, float]) -> RunTrends:
    """Return what the log of a run shows about its rewards. The default weight is 1."""
    within = all("group_std" in of for of in run.rewards.values())
    key = "group_std" if within else "std"
    stds = {name: of.get(key, _UNLOGGED) for name, of in run.rewards.items()}
    used = {name: weights.get(name, 1.0) for name in stds}
    sizes = {name: abs(used[name]) * known_mean(std) for name, std in stds.items()}
    rewards = tuple(
        RewardTrend(
            name,
            used[name],
            *end_means(of["mean"]),
            *trend(of["mean"]),
            known_mean(stds[name]),
            *end_means(stds[name]),
            _ratio(sizes[name], sum(sizes.values())),
            _ratio(abs(used[name]), sum(map(abs, used.values()))),
            known_mean(of.get("zero_variance_groups", _UNLOGGED)),
            known_mean(of.get("influence_share", _UNLOGGED)),
        )
        for name, of in run.rewards.items()
    )
    return RunTrends(run, rewards, within)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else nan
