"""Requested influence shares: how far the realized shares are, and what the request costs."""

import numpy as np
from benchmarks.set_points_price import interval

from gdpo.lab.report._run_contents import analyze_experiment
from gdpo.lab.report.requested import counted_steps

FIXED = ("gdpo", "per_reward_batch_std")
"""Estimators with fixed equal weights, which the requested shares are compared with."""

LIVE_GROUPS = 64
"""Smallest number of groups in which every reward varies for a share to be measured."""

TOLERANCE = 0.03
"""A share may differ from its request by this, plus the half-width of its interval."""

_TENTH = 10


def asked(recipe, experiment):
    """Return the recipe of an experiment with equal requested influence shares."""
    shares = {reward.name: 1.0 for reward in experiment.rewards}
    return recipe.model_copy(update={"influence": shares})


def requested_table(fixed, asked):
    """Return the share errors, and the differences in the rewards from fixed equal weights."""
    parts = [_errors(asked), ""]
    head = "| reward | case | over the run | at the end |"
    parts += [head, "|---|---|---|---|"]
    base = _curves(fixed, FIXED[0])
    for name, curve in base.items():
        ends = _ends(curve)
        parts.append(f"| {name} | fixed weights | {curve.mean():.3f} | {ends.mean():.3f} |")
    for case, experiment, label in (
        ("requested shares", asked, FIXED[0]),
        (FIXED[1], fixed, FIXED[1]),
    ):
        for name, curve in _curves(experiment, label).items():
            run = interval((curve - base[name]).mean(axis=1))
            end = interval(_ends(curve) - _ends(base[name]))
            parts.append(f"| {name} | {case}, difference | {run} | {end} |")
    return "\n".join(parts)


def _curves(experiment, label):
    """Return the curve of each reward as a part of its range, one row per seed."""
    return {
        reward.name: (experiment.curves(label, reward.name) - reward.low)
        / (reward.high - reward.low)
        for reward in experiment.rewards
    }


def _ends(curve):
    return curve[:, -max(1, curve.shape[1] // _TENTH) :].mean(axis=1)


def _errors(experiment):
    """Return a table with the share error of each run, over all its steps and over windows."""
    analysis = analyze_experiment(experiment)
    lines = [
        "| seed | counted steps | error | half-width | within | windows within |",
        "|---|---|---|---|---|---|",
    ]
    whole, parts = [], []
    for place, run in enumerate(experiment.runs):
        recorded = analysis.runs[str(place)]
        steps = sorted(counted_steps(run, recorded))
        windows = [_error(recorded.influence(each), run) for each in _windows(recorded, run, steps)]
        if not windows:
            lines.append(f"| {run.seed} | {len(steps)} | not measured | | | |")
            continue
        error, margin, within = _error(recorded.influence(steps), run)
        whole.append((error, margin, within))
        parts += windows
        lines.append(
            f"| {run.seed} | {len(steps)} | {error:.3f} | {margin:.3f} | "
            f"{'yes' if within else 'no'} | {_count(windows)} |"
        )
    if whole:
        error, margin, _ = np.mean(whole, axis=0)
        lines.append(
            f"| mean | | {error:.3f} | {margin:.3f} | {_count(whole)} | {_count(parts)}, mean "
            f"error {np.mean(parts, axis=0)[0]:.3f} |"
        )
    return "\n".join(lines)


def share_errors(experiment):
    """Return the share error of each finished run over its counted steps, by seed.

    None: no step of the run is counted.
    """
    analysis, errors = analyze_experiment(experiment), {}
    for place, run in enumerate(experiment.runs):
        if run.state != "finished":
            continue
        recorded = analysis.runs[str(place)]
        steps = sorted(counted_steps(run, recorded))
        known = next(_windows(recorded, run, steps), None) is not None
        error = float(_error(recorded.influence(steps), run)[0]) if known else None
        errors[str(run.seed)] = error
    return errors


def _windows(recorded, run, steps):
    """Yield the steps of each window in which every reward varies in `LIVE_GROUPS` groups."""
    window = []
    for step in steps:
        window.append(step)
        influence = recorded.influence(window)
        live = [influence.sums.live[influence.names.index(name)] for name in run.requested]
        if min(live) >= LIVE_GROUPS:
            yield window
            window = []


def _error(influence, run):
    """Return the largest share error, the half-width of its interval, and whether it is small."""
    rows = [influence.names.index(name) for name in run.requested]
    apart = np.abs(influence.shares[rows] - list(run.requested.values()))
    worst = int(np.argmax(apart))
    margin = influence.margins[rows][worst]
    return apart[worst], margin, apart[worst] <= TOLERANCE + margin


def _count(found):
    return f"{sum(bool(within) for *_, within in found)} of {len(found)}"
