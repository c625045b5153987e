"""Measures how often intervals and tests with 3, 5 and 10 seeds are correct.

    python benchmarks/few_seeds.py

Prints Markdown tables. Runs are drawn from distributions with a known true value (for the
interquartile mean: its expectation over samples of that size), with seed 0. The first line has the
number of simulated experiments. A 95 % interval should contain the true value in 95 % of them. A
test at 0.05 should find a difference between equal estimators in at most 5 %. Needs the extra `dev`
(scipy).

- normal: final rewards are normal with mean 0.5 and standard deviation 0.1.
- skewed: most runs are near the top of a bounded reward (Beta(8, 2)).
- two ends: a run learns the reward (0.9 ± 0.03) with probability 0.7, or does not (0.1 ± 0.03).
"""

import platform

import numpy as np
import scipy
from scipy import stats

from gdpo.lab.experiments.statistics import (
    bootstrap,
    expanded_level,
    interquartile_mean,
    log_rank_scores,
    paired_difference,
    permutation_test,
)

EXPERIMENTS = 2_000
DRAWS = 2_000
SEEDS = (3, 5, 10)


def chi_squared(times, reached):
    """Return the p-value of the usual log-rank test; 1 if no run reached the threshold."""
    labels = [
        stats.CensoredData(uncensored=t[r], right=t[~r])
        for t, r in zip(times, reached, strict=True)
    ]
    with np.errstate(all="ignore"):
        return np.nan_to_num(stats.logrank(*labels).pvalue, nan=1.0)


def normal(rng, count):
    return rng.normal(0.5, 0.1, count)


def skewed(rng, count):
    return rng.beta(8, 2, count)


def two_ends(rng, count):
    return np.where(rng.random(count) < 0.7, 0.9, 0.1) + rng.normal(0, 0.03, count)


RUNS = {"normal": normal, "skewed": skewed, "two ends": two_ends}


def holds(interval, truth):
    """Return whether an interval contains the true value. NaN: there is no interval."""
    return np.nan if np.isnan(interval.low) else interval.low <= truth <= interval.high


def share(flags):
    return f"{100 * np.nanmean(flags):.1f}"


def table(title, heads, rows):
    print(f"\n{title}\n")
    print("| " + " | ".join(["runs", "seeds", *heads]) + " |")
    print("|---|---:|" + "---:|" * len(heads))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def averages(draw, count, rng):
    """Return how often intervals of the interquartile mean contain the true value."""
    truth = np.mean(interquartile_mean(draw(rng, 200_000 * count).reshape(-1, count)))
    found = {"percentile": [], "expanded percentile": []}
    for _ in range(EXPERIMENTS):
        runs = [draw(rng, count)]
        plain = bootstrap(interquartile_mean, runs, draws=DRAWS)
        wide = bootstrap(interquartile_mean, runs, draws=DRAWS, level=expanded_level(count))
        found["percentile"].append(holds(plain, truth))
        found["expanded percentile"].append(holds(wide, truth))
    return found


def paired(draw, count, rng):
    """Return how often intervals of the mean paired difference of equal estimators contain 0."""
    ours = draw(rng, EXPERIMENTS * count).reshape(-1, count)
    theirs = draw(rng, EXPERIMENTS * count).reshape(-1, count)
    with np.errstate(all="ignore"):
        bca = stats.bootstrap(
            ((ours - theirs),),
            np.mean,
            axis=-1,
            n_resamples=DRAWS,
            batch=100,
            method="BCa",
            rng=rng,
        ).confidence_interval
    return {
        "percentile": [holds(bootstrap(mean, [d], draws=DRAWS), 0.0) for d in (ours - theirs)],
        "expanded percentile": [
            holds(bootstrap(mean, [d], draws=DRAWS, level=expanded_level(count)), 0.0)
            for d in (ours - theirs)
        ],
        "BCa": np.where(np.isnan(bca.low), np.nan, (bca.low <= 0) & (bca.high >= 0)),
        "Student (used)": [
            holds(paired_difference(*pair), 0.0) for pair in zip(ours, theirs, strict=True)
        ],
    }


def mean(values):
    return values.mean(-1)


def tests(draw, count, rng):
    """Return the experiments in which a difference between equal estimators is found."""
    found = {"Student's t": [], "permutation (used)": []}
    for _ in range(EXPERIMENTS):
        ours, theirs = draw(rng, count), draw(rng, count)
        found["Student's t"].append(stats.ttest_ind(ours, theirs).pvalue < 0.05)
        found["permutation (used)"].append(permutation_test(ours, theirs).p < 0.05)
    return found


def times(rng, count, *, lost):
    """Return steps to a threshold, up to 300; a share of the runs never reaches it."""
    true = np.where(rng.random(count) < lost, np.inf, np.ceil(rng.gamma(4.0, 30.0, count)))
    return np.minimum(true, 300.0), true <= 300


def pace(count, rng, *, lost):
    found = {"chi-squared": [], "permutation (used)": []}
    for _ in range(EXPERIMENTS):
        (t, reached), (t2, reached2) = times(rng, count, lost=lost), times(rng, count, lost=lost)
        pair = (t, t2), (reached, reached2)
        found["chi-squared"].append(chi_squared(*pair) < 0.05)
        found["permutation (used)"].append(permutation_test(*log_rank_scores(*pair)).p < 0.05)
    return found


def rows(measure):
    rng = np.random.default_rng(0)
    found = [(name, n, measure(draw, n, rng)) for name, draw in RUNS.items() for n in SEEDS]
    return list(found[0][2]), [(name, n, *map(share, by.values())) for name, n, by in found]


def main():
    print(
        f"{EXPERIMENTS:,} experiments each, {DRAWS:,} draws; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, scipy {scipy.__version__}. All figures in %."
    )
    table("95 % intervals of the interquartile mean that contain the true value:", *rows(averages))
    table("95 % intervals of the mean difference that contain the true value:", *rows(paired))
    table("Equal estimators that differ at p < 0.05, final rewards:", *rows(tests))
    rng = np.random.default_rng(0)
    found = [
        (f"{lost:.0%} never", n, pace(n, rng, lost=lost)) for lost in (0.0, 0.3) for n in SEEDS
    ]
    table(
        "Equal estimators that differ at p < 0.05, steps to the threshold (log-rank):",
        list(found[0][2]),
        [(name, n, *map(share, by.values())) for name, n, by in found],
    )


if __name__ == "__main__":
    main()
