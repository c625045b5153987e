"""Measures how often pure noise is called a trend by `gdpo analyze` without rollouts.

    python benchmarks/trend_intervals.py

A row per number of steps, a column per correlation of neighbouring steps. 5 % would be exact.
"""

import numpy as np

from gdpo.analysis.trend import trend

RUNS = 400
LIKENESS = (0.0, 0.3, 0.6, 0.8)


def noise(rng, count, likeness):
    """Noise of variance 1 in which neighbours have this correlation."""
    values = rng.standard_normal(count)
    for i in range(1, count):
        values[i] = likeness * values[i - 1] + np.sqrt(1 - likeness**2) * values[i]
    return values


def main():
    rng = np.random.default_rng(0)
    print("steps ", *(f"{likeness:>6}" for likeness in LIKENESS))
    for count in (24, 60, 200):
        shares = []
        for likeness in LIKENESS:
            found = [trend(noise(rng, count, likeness)) for _ in range(RUNS)]
            shares.append(np.mean([abs(change) > margin for change, margin in found]))
        print(f"{count:>5} ", *(f"{share:>6.1%}" for share in shares))


if __name__ == "__main__":
    main()
