"""Measures how exactly weights per prompt equal the results that one weight per reward gives.

`python -m benchmarks.prompt_weights`: for each estimator, the largest difference over all seeds to

- own batch: each prompt in a batch of its own, with its weights (estimators without a batch
  statistic);
- separate rewards: the same batch with separate rewards for each prompt and one weight per reward
  (estimators without a statistic of one reward over several prompts);
- oracle: the formula as loops in Python floats, with weights per prompt (the other estimators).
"""

import argparse

import numpy as np
from tests.advantages.claims import SUBJECTS

WEIGHTS = (1.0, 0.5, 2.0, 0.0, -1.0)


def differences(name, seed):
    """Return the largest differences of one random batch, by comparison."""
    estimator, oracle, claims, options = SUBJECTS[name]
    rng = np.random.default_rng(seed)
    shape = prompts, samples, count = 6, 8, 3
    rewards = rng.integers(-72, 72, shape, endpoint=True) / 8
    rewards[rng.random(shape) < 0.1] = np.nan
    weights = rng.choice([w for w in WEIGHTS if claims.signed or w >= 0], (prompts, count))
    given = options(rewards) if callable(options) else options
    got, found = estimator(rewards, weights, **given), {}
    if claims.local:
        own = [estimator(rewards[[p]], weights[p], **given) for p in range(prompts)]
        found["own batch"] = np.abs(got - np.concatenate(own)).max()
    if claims.pooled:
        plain = {k: np.asarray(v).tolist() if np.ndim(v) else v for k, v in given.items()}
        wanted = oracle(rewards.tolist(), weights.tolist(), **plain)
        found["oracle"] = np.abs(got - np.array(wanted)).max()
    else:
        apart = np.full((prompts, samples, prompts * count), np.nan)
        for p in range(prompts):
            apart[p, :, p * count : (p + 1) * count] = rewards[p]
        spread = {k: np.tile(v, prompts) if np.ndim(v) == 1 else v for k, v in given.items()}
        wanted = estimator(apart, weights.reshape(-1), **spread)
        found["separate rewards"] = np.abs(got - wanted).max()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    columns = ("own batch", "separate rewards", "oracle")
    print("| estimator |", " | ".join(columns), "|\n|---|---|---|---|")
    for name in SUBJECTS:
        each = [differences(name, seed) for seed in seeds]
        cells = [f"{max(d[c] for d in each):.1e}" if c in each[0] else "–" for c in columns]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
