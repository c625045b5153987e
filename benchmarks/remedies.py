"""Whether a setting that `gdpo analyze` prints as a remedy gives the share that it prints.

    python benchmarks/remedies.py --findings 500 --seed 0

Each file has a planted fault: a reward with a small range, one that varies in few groups, one that
is opposed to another, one that is missing from many rollouts, or two of these. Each printed setting
is computed again without the replay: with the estimator, and with the formulas of the share and its
interval written out. A finding is right if all numbers agree, the text and the verdict print these
numbers, and the advice is the first setting of the text. The exit code is 1 if one is wrong.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from gdpo.advantages import ESTIMATORS
from gdpo.cli import main as gdpo
from gdpo.diagnostics.diagnosis import Remedy, interval

FAULTS = ("range", "sparse", "opposed", "missing")
USED = ("grpo", "grpo", "grpo_no_std", "mo_grpo", "gdpo", "per_reward_batch_std", "gd2po_hard")


def planted(rng, faults, binary, size):
    """Return the rewards `[prompt, sample, reward]` of a step. The first one has the faults."""
    level = rng.uniform(0.2, 0.8, (size[0], 1, 1))
    rewards = np.where(binary, rng.random(size) < level, rng.normal(0, 0.5, size))
    first, other = rewards[..., 0].copy(), rewards[..., 1]
    if "opposed" in faults:
        first -= faults["opposed"] * other
    if "range" in faults:
        first *= faults["range"]
    if "sparse" in faults:
        first[rng.random(size[0]) >= faults["sparse"]] = 0.0
    if "missing" in faults:
        first[rng.random(size[:2]) < faults["missing"]] = np.nan
    rewards[..., 0] = first
    rewards[rng.random(size[:2]) < faults["shorter"]] = np.nan  # groups of different sizes
    return rewards


def a_run(rng):
    """Return the steps, the weights, the estimator, and whether the advantages are recorded."""
    drawn = {
        "range": 10 ** rng.uniform(-2, -0.5),
        "sparse": rng.uniform(0.05, 0.25),
        "opposed": rng.uniform(0.3, 1.5),
        "missing": rng.uniform(0.5, 0.9),
    }
    chosen = rng.choice(FAULTS, rng.choice([1, 1, 2]), replace=False)
    faults = {"shorter": rng.choice([0, 0, 0.1]), **{fault: drawn[fault] for fault in chosen}}
    size = (int(rng.choice([1, 4, 8, 16])), int(rng.choice([4, 8, 16])), int(rng.integers(2, 5)))
    binary, groups = rng.random(size[2]) < 0.5, int(rng.integers(64, 200))
    steps = [planted(rng, faults, binary, size) for _ in range(-(-groups // size[0]))]
    weights = rng.choice([0.5, 1, 1, 2, -1], size[2])
    return steps, weights, str(rng.choice(USED)), bool(rng.random() < 0.5)


def write(path, steps, advantages):
    """Write the rollouts. `advantages`: those of each step, or None."""
    with path.open("w", encoding="utf-8") as file:
        for step, rewards in enumerate(steps, 1):
            for p, s in np.argwhere(~np.all(np.isnan(rewards), axis=-1)).tolist():
                known = {f"r{k}": v for k, v in enumerate(rewards[p, s].tolist()) if v == v}
                row = {"step": step, "prompt": f"{step} {p}", "completion": "x", "rewards": known}
                if advantages is not None:
                    row["advantage"] = float(advantages[step - 1][p, s])
                file.write(json.dumps(row) + "\n")


def computed(steps, weights, k, remedy):
    """Return the influence share of a reward with a setting, and the half-width of its interval."""
    raised = weights * np.where(np.arange(len(weights)) == k, remedy["factor"], 1)
    total, products, sampled, groups, before, known = 0, 0, 0, 0, None, False
    for step in steps:
        rewards = step[np.any(~np.isnan(step), axis=(1, 2))]  # the groups that are in the file
        if not len(rewards):
            continue
        a = np.asarray(ESTIMATORS[remedy["estimator"]](rewards, raised))
        count = np.sum(~np.isnan(rewards), axis=1, keepdims=True)
        apart = rewards - np.nansum(rewards, axis=1, keepdims=True) / np.maximum(count, 1)
        std = np.sqrt(np.nansum(apart**2, axis=1, keepdims=True) / np.maximum(count - 1, 1))
        z = np.nan_to_num(np.where(std > 1e-12, apart / np.maximum(std, 1e-12), 0))
        u = np.sum(a[..., None] * z, axis=1)
        n = len(u)
        total, groups = total + u.sum(axis=0), groups + n
        known = known | np.any(~np.isnan(rewards), axis=(0, 1))  # a file may begin without a reward
        if n > 1:
            off = u - u.mean(axis=0)
            products, sampled = products + off.T @ off * n / (n - 1), sampled + n
        elif before is not None and np.all(before[1] == known):
            off = u - before[0]
            products, sampled = products + off.T @ off / 2, sampled + 1
        before = (u, known) if n == 1 else None
    size, sign = np.sum(np.abs(total)), np.sign(weights[k])
    slope = (np.eye(len(weights))[k] - total[k] / size * np.sign(total)) / size
    variance = slope @ products @ slope * groups / sampled
    return sign * total[k] / size, 1.959964 * np.sqrt(max(variance, 0)), groups


def wrong(finding, verdict, steps, weights):
    """Return what is wrong with the remedies of a finding, or an empty string."""
    name, evidence = finding["rewards"][0], finding["evidence"]
    if "from_step" in evidence:  # the finding is about the 64 groups from this step
        start = int(evidence["from_step"]) - 1
        steps = steps[start : start - (-64 // len(steps[0]))]
    for remedy in finding["remedies"]:
        found = computed(steps, weights, int(name[1:]), remedy)
        printed = remedy["share"], remedy["margin"], remedy["groups"]
        if not np.allclose(found, printed, rtol=0, atol=1e-7):
            return f"{remedy} gives {found}"
    texts = [str(Remedy(**remedy)) for remedy in finding["remedies"]]
    text = finding["remedy"].partition(" would have: ")[2]
    if not all(each in text for each in texts):
        return f"{texts} are not in {text!r}"
    first = finding["remedies"][[text.startswith(each) for each in texts].index(True)]
    half, now = 0.5 * evidence["weight_share"], max(evidence["influence_share"], 0)
    helps = [
        r for r in finding["remedies"] if r["share"] >= half and r["share"] - r["margin"] > now
    ]
    advised = first["estimator"] in finding["remedy"].partition(". ")[0]
    if advised == finding["remedy"].startswith("no replayed setting") or (helps and not advised):
        return f"the advice is not the first setting: {finding['remedy']}"
    if verdict["rewards"] == [name] and verdict["kind"] == finding["kind"]:
        share = interval(first["share"], first["margin"])
        if (verdict["remedy"] == first) != advised or (
            advised and share not in verdict["sentence"]
        ):
            return f"the verdict is another: {verdict['sentence']}"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--findings", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts, seed = Counter(), options.seed
    while counts.total() < options.findings:
        steps, weights, estimator, recorded = a_run(np.random.default_rng(seed))
        advantages = [np.asarray(ESTIMATORS[estimator](each, weights)) for each in steps]
        given = ",".join(f"r{k}={weight}" for k, weight in enumerate(weights.tolist()))
        printed = io.StringIO()
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            path = Path(folder) / "run.jsonl"
            write(path, steps, advantages if recorded else None)
            arguments = ["analyze", str(path), "--weights", given, "--output", "json"]
            with contextlib.suppress(SystemExit):
                gdpo(arguments if recorded else [*arguments, "--estimators", estimator])
        (run,) = json.loads(printed.getvalue())["runs"]
        for finding in run["findings"]:
            if finding["remedies"] and counts.total() < options.findings:
                why = wrong(finding, run["verdict"], steps, weights)
                counts["wrong" if why else finding["kind"]] += 1
                if why:
                    print(f"seed {seed}: {finding['message']}: {why}", flush=True)
        seed += 1
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    right = counts.total() - counts["wrong"]
    print(f"{right} of {counts.total()} findings have the share that they print ({kinds})")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
