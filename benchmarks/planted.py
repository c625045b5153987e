"""Four runs whose driving reward is known: what gdpo and two other tools say about them.

    python -m benchmarks.planted --seeds 20 [--rldoctor PYTHON] [--rewardspy PYTHON]

Each run has 200 steps of 16 groups of 8 rollouts, GRPO's advantages and weights 1 and 1. Nothing
is trained: all steps have the same distribution. `truth` is the influence share in 200,000 other
groups, from a formula in this file. gdpo reads the rollouts as `gdpo analyze` does, from a file
with declared ranges. rldoctor reads scalar logs only, so it gets the metrics that TRL logs. Each
other tool runs in its own environment, whose Python is the value of the option:

    pip install rldoctor==0.2.0      # and for rewardspy, in a clone of AvAdiii/rewardspy
    git checkout 2b775fe && pip install .
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gdpo import grpo
from gdpo.analysis import analyze
from gdpo.diagnostics.diagnosis import Finding
from gdpo.rollouts.readers import read_rollout_files

STEPS, GROUPS, SAMPLES, MANY = 200, 16, 8, 200_000


@dataclass(frozen=True)
class Planted:
    """A run of two rewards."""

    what: str
    names: tuple[str, str]
    """The reward that drives the run, and the other one."""
    draw: Callable[[np.random.Generator, tuple[int, int]], tuple[np.ndarray, np.ndarray]]
    """Values of both rewards, `[group, sample]`, in the order of `names`."""
    high: tuple[float, float] = (1.0, 1.0)

    def named(self, values: Iterable[float]) -> dict[str, float]:
        return dict(zip(self.names, map(float, values), strict=True))

    def rewards(self, random: np.random.Generator, groups: int) -> np.ndarray:
        drawn = self.draw(random, (groups, SAMPLES))
        return np.stack([each + np.zeros((groups, SAMPLES)) for each in drawn], axis=-1)


def _all_or_nothing(random, size):
    return random.random(size) < 0.5, random.random((size[0], 1)) < 0.5


def _saturated(random, size):
    return random.random(size) < 0.1, np.ones(size)


def _judge(random, size):
    return np.clip(random.normal(50, 20, size), 0, 100), random.random(size) < 0.5


def _easy_and_hard(random, size):
    rate = np.where(random.random((size[0], 1)) < 0.5, 0.99, 0.01)
    return np.clip(random.normal(0.5, 0.05, size), 0, 1), random.random(size) < rate


RUNS = (
    Planted("correctness all or nothing per prompt", ("format", "correctness"), _all_or_nothing),
    Planted("format saturated, correctness rare", ("correctness", "format"), _saturated),
    Planted("judge with std 20", ("judge", "correctness"), _judge, (100.0, 1.0)),
    Planted("easy and hard prompts, slight tone", ("tone", "correctness"), _easy_and_hard),
)


def truth(run: Planted) -> tuple[float, float]:
    """Return the driver's share of Σ A z over many groups, and its standard error."""
    rewards = run.rewards(np.random.default_rng(10**6), MANY)
    total = rewards.sum(axis=-1)
    z, a = _standardized(rewards), _standardized(total[..., None])[..., 0]
    u = np.einsum("gs,gsk->gk", a, z)
    share = u[:, 0].sum() / u.sum()
    off = u[:, 0] - share * u.sum(axis=1)
    return share, float(np.sqrt(np.sum(off**2)) / u.sum())


def _standardized(values: np.ndarray) -> np.ndarray:
    std = np.std(values, axis=1, ddof=1, keepdims=True)
    still = np.ptp(values, axis=1, keepdims=True) == 0
    return np.where(still, 0.0, (values - values.mean(axis=1, keepdims=True)) / (std + still))


def ours(run: Planted, rewards: np.ndarray, folder: Path) -> tuple[float, float, list[Finding]]:
    """Return the driver's share, its margin, and the lasting findings, from `gdpo analyze`."""
    advantages = grpo(rewards, [1.0, 1.0])
    rows = []
    for g, i in np.ndindex(rewards.shape[:2]):
        row = {"step": g // GROUPS + 1, "group_id": g % GROUPS, "prompt": f"prompt {g}"}
        row |= {"completion": "", "advantage": advantages[g, i]}
        row |= {"rewards": run.named(rewards[g, i]), "weights": run.named((1, 1))}
        rows.append(row)
    reading = read_rollout_files(_written(folder / "rollouts.jsonl", rows))
    done = analyze(reading, low=run.named((0, 0)), high=run.named(run.high))
    driver = next(reward for reward in done.runs[0].rewards() if reward.name == run.names[0])
    found = [held.finding for _, held in done.findings()]
    return driver.influence_share, driver.influence_margin, found


def rldoctor(python: str, run: Planted, rewards: np.ndarray, folder: Path) -> str:
    """Return the reward with the largest share, and how grave it is, from TRL's metrics."""
    steps = rewards.reshape(STEPS, GROUPS, SAMPLES, 2)
    total = steps.sum(axis=-1)
    rows = []
    for i in range(STEPS):
        row = {"step": i + 1, "reward": total[i].mean()}
        row["reward_std"] = total[i].std(axis=-1, ddof=1).mean()
        row["frac_reward_zero_std"] = (np.ptp(total[i], axis=-1) == 0).mean()
        for k, name in enumerate(run.names):
            row[f"rewards/{name}/mean"] = steps[i, ..., k].mean()
            row[f"rewards/{name}/std"] = steps[i, ..., k].std(ddof=1)
        rows.append(row)
    program = "import sys; from rl_doctor.cli import main; sys.exit(main(sys.argv[1:]))"
    file = str(_written(folder / "log.jsonl", rows))
    findings = json.loads(_run(python, program, "diagnose", file, "--format", "json"))["findings"]
    one = next(each for each in findings if each["detector"] == "reward_composition")
    print(f"    rldoctor: {one['severity']}: {one['summary']}")
    return one["metrics"]["dominant"]


_SPY = """
import sys
from rewardspy.detectors import DetectionEngine
from rewardspy.exporters import read_jsonl
from rewardspy.store import MetricStore
store = MetricStore("planted")
engine = DetectionEngine(store)
for i, record in enumerate(read_jsonl(sys.argv[1]), 1):
    store.append(record)
    engine.process(record)
    if i % int(sys.argv[2]) == 0:
        print(engine.latest["component"].message or "OK")
"""


def rewardspy(python: str, run: Planted, rewards: np.ndarray, folder: Path) -> str:
    """Return what its detector of dominant components says at the end of most steps."""
    rows = []
    for i, values in enumerate(rewards.reshape(-1, 2)):
        row = {"call_id": str(i), "timestamp": i, "step": i, "scalar_reward": values.sum()}
        rows.append(row | {"components": run.named(values)})
    file = str(_written(folder / "spy.jsonl", rows))
    printed = _run(python, _SPY, file, str(GROUPS * SAMPLES)).splitlines()
    said = Counter((re.findall(r"'(\w+)'", line) or [line])[0] for line in printed)
    print(f"    rewardspy: {dict(said)}")
    return said.most_common(1)[0][0]


def _written(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    with file.open("w", encoding="utf-8") as opened:
        opened.writelines(json.dumps(row) + "\n" for row in rows)
    return file


def _run(python: str, program: str, *arguments: str) -> str:
    done = subprocess.run([python, "-c", program, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python} failed:\n{done.stderr}")
    return done.stdout


def measured(run: Planted, seeds: int, peers: dict[str, Callable[..., str]]) -> list[str]:
    """Print what is said about each seed, and return the row of a run."""
    (share, error), driver = truth(run), run.names[0]
    said: dict[str, Counter[str]] = {name: Counter() for name in ("findings", *peers)}
    shares, holds = [], 0
    for seed in range(seeds):
        rewards = run.rewards(np.random.default_rng(seed), STEPS * GROUPS)
        print(f"{run.what}, seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            own, margin, found = ours(run, rewards, Path(folder))
            print(f"    gdpo: {own:.3f} ± {margin:.3f}, {[each.message for each in found]}")
            shares.append((own, margin))
            holds += abs(own - share) <= margin + 1e-9
            said["findings"].update({f"{', '.join(f.rewards)} {f.kind.value}" for f in found})
            for name, peer in peers.items():
                said[name][peer(run, rewards, Path(folder))] += 1
    own, margin = np.mean(shares, axis=0)
    return [
        run.what,
        f"{driver} {share:.1%} (se {error:.1%})",
        f"{own:.1%} ± {margin:.1%}",
        f"{holds} of {seeds}",
        *(", ".join(f"{what}: {n}" for what, n in each.most_common()) for each in said.values()),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    for tool in (rldoctor, rewardspy):
        parser.add_argument(f"--{tool.__name__}", metavar="PYTHON")
    given = parser.parse_args()
    asked = {each: getattr(given, each.__name__) for each in (rldoctor, rewardspy)}
    asked = {each: python for each, python in asked.items() if python}
    peers = {each.__name__: partial(each, python) for each, python in asked.items()}
    program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    titles = [
        f"{each.__name__} {_run(asked[each], program, each.__name__).strip()}" for each in asked
    ]
    rows = [measured(run, given.seeds, peers) for run in RUNS]
    columns = ["run", "truth", "gdpo: share", "interval holds it", "gdpo: findings, seeds"]
    columns += [f"{title}: names, seeds" for title in titles]
    print(f"\ngdpo {version('gdpo')}, numpy {np.__version__}, {given.seeds} seeds\n")
    for row in [columns, ["---"] * len(columns), *rows]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
