"""Records the results of lifelines and rliable on a few runs in tests/golden/few_seeds.json.

Both need an older pandas than gdpo's tested set, so run this in a separate environment:

    python -m venv V && V/bin/pip install 'lifelines==0.30.3' 'rliable==1.2.0' 'pandas<3'
    V/bin/python tests/oracles/survival_and_robust.py > tests/golden/few_seeds.json
"""

import importlib.metadata
import json
import platform
import sys
import warnings

import numpy as np

SURVIVAL = {
    "all reach it": ([30, 45, 45, 60, 81], [1, 1, 1, 1, 1]),
    "two of five never": ([100, 37, 100, 62, 90], [0, 1, 0, 1, 1]),
    "one failed early": ([12, 40, 55, 70, 300, 300, 41], [0, 1, 1, 1, 1, 0, 1]),
    "none": ([300, 300, 20], [0, 0, 0]),
    "many": (
        [5, 9, 9, 14, 20, 20, 22, 31, 44, 44, 50, 61, 75, 80, 90, 99, 120, 120, 150, 150],
        [1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0],
    ),
}

STRATA = {"runs": 10, "tasks": 4, "seed": 7, "draws": 20_000}


def plain(values):
    """Return the values with None for infinity and NaN, which JSON does not have."""
    return [float(v) if np.isfinite(v) else None for v in np.ravel(values)]


def survival(times, reached):
    from lifelines import KaplanMeierFitter
    from lifelines.utils import median_survival_times

    fitter = KaplanMeierFitter().fit(times, reached)
    limits = median_survival_times(fitter.confidence_interval_)
    return {
        "times": times,
        "reached": reached,
        "median": plain([fitter.median_survival_time_]),
        "median_limits": plain(limits),
    }


def robust():
    from rliable import library, metrics

    rng = np.random.default_rng(STRATA["seed"])
    scores = np.round(rng.beta(3, 2, (STRATA["runs"], STRATA["tasks"])), 3)
    scores[:, 1] += 2.0  # strata far apart: resampling across them would widen the interval
    values, limits = library.get_interval_estimates(
        {"label": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=STRATA["draws"]
    )
    return {
        "scores": scores.tolist(),
        "draws": STRATA["draws"],
        "iqm": float(values["label"][0]),
        "low": float(limits["label"][0, 0]),
        "high": float(limits["label"][1, 0]),
    }


def main():
    warnings.simplefilter("ignore")
    versions = {
        name: importlib.metadata.version(name)
        for name in ("lifelines", "rliable", "arch", "numpy", "pandas", "scipy")
    }
    found = {
        "source": "https://github.com/CamDavidsonPilon/lifelines and "
        "https://github.com/google-research/rliable, as installed",
        "versions": {"python": platform.python_version(), **versions},
        "date": "2026-11-21",
        "how": "tests/oracles/survival_and_robust.py; the runs are our own. null: infinite or NaN. "
        "rliable's draws follow no seed with this arch: low and high move by 0.002 between calls.",
        "survival": {name: survival(*runs) for name, runs in SURVIVAL.items()},
        "robust": robust(),
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
