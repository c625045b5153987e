"""Is the influence share that a finding prints for a remedy the share that the remedy gives?

    python benchmarks/remedies.py --findings 500

Draws runs with a planted fault (a small range, a sparse, opposed or missing reward), writes them
as rollout files, and calls `gdpo analyze --json`. For each printed setting, the advantages are
computed by the estimator itself, and the share and its interval by the formulas of the reference
page, written out here. The exit code is 1 if a number differs, or if a setting that the verdict
advises does not give the reward a larger share.
"""

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gdpo.advantages import ESTIMATORS
from gdpo.cli import main as gdpo

FAULTS = ("range", "sparse", "opposed", "missing", "range and sparse")
USED = ("grpo", "gdpo", "grpo_no_std", "mo_grpo")
NAMES = ("first", "second", "third", "fourth")
PRINTED = re.compile(r"^(under )?(−?[\d.]+) %(?: ± (\d+(?:\.\d+)?))?")


def drawn(random):
    """Rewards [step, group, sample, reward], weights, and the estimator of a run with a fault."""
    fault, estimator = random.choice(FAULTS), random.choice(USED)
    steps, samples = random.choice([1, 2, 8]), random.integers(4, 17)
    shape = (steps, 256 // steps, samples, random.integers(2, 5))
    rewards = random.normal(size=shape)
    weights = random.choice([1.0, 0.5, 2.0], shape[-1])
    own = rewards[..., 0]
    if "range" in fault:
        own *= random.choice([0.02, 0.1, 0.2])
    if "sparse" in fault:
        own *= random.random(shape[:2])[..., None] < random.choice([0.05, 0.1, 0.2, 0.3])
    if fault == "opposed":
        own -= random.choice([0.6, 1.2]) * rewards[..., 1]
    if fault == "missing":
        own[random.random(shape[:3]) < 0.8] = np.nan
    return fault, rewards, weights, str(estimator)


def written(folder, rewards, weights, estimator):
    """Writes a file per step, as TRL does, with the advantages of the estimator."""
    for step, values in enumerate(rewards, 1):
        groups, samples, count = values.shape
        advantages = np.asarray(ESTIMATORS[estimator](values, weights))
        columns = {
            "step": [step] * (groups * samples),
            "prompt": np.repeat([f"{step}-{g}" for g in range(groups)], samples),
            "completion": ["x"] * (groups * samples),
            **{name: values[..., k].ravel() for k, name in enumerate(NAMES[:count])},
            "advantage": advantages.ravel(),
        }
        pq.write_table(pa.table(columns), folder / f"completions_{step:05d}.parquet")


def analyzed(folder, weights):
    given = ",".join(f"{name}={weight}" for name, weight in zip(NAMES, weights, strict=False))
    names = ",".join(NAMES[: len(weights)])
    printed = io.StringIO()
    command = ["analyze", str(folder), "--json", "--weights", given, "--rewards", names]
    silent, ends = contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit)
    with contextlib.redirect_stdout(printed), silent, ends:
        gdpo(command)
    (run,) = json.loads(printed.getvalue())["runs"]
    return run


def measured(rewards, weights, reward, estimator, factor):
    """Share of a reward, and the half-width of its 95 % interval by the delta method."""
    raised = weights.copy()
    raised[reward] *= factor
    by_step = []
    for values in rewards:
        advantages = np.asarray(ESTIMATORS[estimator](values, raised))
        there = ~np.isnan(values)
        count = np.maximum(there.sum(axis=1, keepdims=True), 1)
        apart = np.where(there, values - np.nansum(values, axis=1, keepdims=True) / count, 0.0)
        std = np.sqrt(np.sum(apart**2, axis=1, keepdims=True) / np.maximum(count - 1, 1))
        z = apart / np.where(std > 1e-12, std, np.inf)
        by_step.append(np.einsum("gs,gsk->gk", advantages, z))
    sums = np.sum(np.concatenate(by_step), axis=0)
    total = np.sum(np.abs(sums))
    share = sums[reward] / total
    variance = 0.0
    for u in by_step:
        slope = (u[:, reward] - share * u @ np.sign(sums)) / total
        variance += len(u) / (len(u) - 1) * np.sum((slope - slope.mean()) ** 2)
    return share, 1.959964 * np.sqrt(variance)


def printed_share(sentence, remedy):
    """The share and margin that the sentence prints for a setting, in percent."""
    raised = "" if remedy["factor"] == 1 else f" with {remedy['factor']} times the weight"
    found = re.search(rf"(?<![\w]){remedy['estimator']}{raised} (?=under |−?\d)", sentence)
    return PRINTED.match(sentence[found.end() :])


def close(text, value):
    """Whether a printed number is the value, rounded to its digits."""
    digits = len(text.partition(".")[2])
    return abs(float(text.replace("−", "-")) - value) <= 0.5 * 10**-digits + 1e-9


def right(finding, remedy, share, margin):
    if not np.allclose((remedy["share"], remedy["margin"]), (share, margin), rtol=1e-9, atol=1e-8):
        return False
    under, number, width = printed_share(finding["remedy"], remedy).groups()
    if under:
        return 100 * (share + margin) <= float(number) + 0.5
    return close(number, 100 * share) and (width is None or close(width, 100 * margin))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--findings", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    found = settings = wrong = advised = 0
    while found < options.findings:
        fault, rewards, weights, estimator = drawn(random)
        with tempfile.TemporaryDirectory() as folder:
            written(Path(folder), rewards, weights, estimator)
            run = analyzed(Path(folder), weights)
        for finding in run["findings"]:
            found += bool(finding.get("remedies"))
            for remedy in finding.get("remedies", ()):
                settings += 1
                reward = NAMES.index(finding["rewards"][0])
                numbers = measured(rewards, weights, reward, remedy["estimator"], remedy["factor"])
                if not right(finding, remedy, *numbers):
                    wrong += 1
                    print(f"{fault}, {estimator}: {numbers} but {finding['remedy']}")
        if run["verdict"]["action"] == "train":
            advised += 1
            verdict = run["verdict"]
            if not verdict["remedy"]["share"] > verdict["influence_share"]:
                wrong += 1
                print(f"{fault}, {estimator}: {verdict['sentence']}")
    print(f"{found} findings with {settings} settings, {advised} advised: {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
