"""Checks what every complete training must show, from the files that it wrote."""

import argparse
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

from gdpo.advantages import AdvantageRule
from gdpo.analysis.steps import batch_of
from gdpo.rollouts import read_rollouts
from gdpo.rollouts.readers import read_rollout_files

CLOSE = 1e-5
"""Largest allowed difference of an advantage: float32 has seven digits."""

SAME_WEIGHTS = 0.02
"""Largest mean difference of a log-probability between sampler and trainer, in nats a token.

A sampler that rounds to bfloat16 explains up to 0.01. If the weights do not arrive, it is 0.15
after one step and 0.4 after four.
"""


def advantage_difference(folder, estimator="gdpo", options=None):
    """Return the largest difference of a recorded advantage from the estimator's, over all steps.

    Args:
        folder: Folder of a rollout record. With turns, the advantages are those of the turns.
        estimator: Estimator with which the run was trained.
        options: Its options, by name.
    """
    rule, largest = None, 0.0
    for file in steps(folder):
        (table,) = read_rollout_files(file)
        step, of_turns = batch_of(table), {}
        rewards, advantages = step.rewards, step.advantages
        if table.turns is not None:
            rewards, advantages = step.turns.rewards, step.turns.advantages
            of_turns = {"turns": step.turns.counts}
        rule = rule or AdvantageRule(estimator, step.names, options, turns=bool(of_turns))
        expected = rule(rewards, step.weights, **of_turns)
        if not of_turns:
            rule.update(rewards, step.weights)
        assert np.isfinite(advantages).all(), f"{file} has an advantage that is not a number"
        largest = max(largest, float(np.abs(expected - advantages).max()))
    assert rule is not None, f"{folder} contains no step"
    assert largest < CLOSE, f"an advantage differs by {largest} from {estimator}"
    return largest


def steps(folder):
    return sorted(Path(folder).glob("step_*.parquet"))


def means(folder, reward):
    """Return the mean of a reward at every step."""
    return [
        float(np.mean([each.rewards[reward] for each in read_rollouts(file)]))
        for file in steps(folder)
    ]


def learned(folder, reward, by):
    """Return the name, the first mean and the last mean. The mean must rise by `by`."""
    first, *_, last = means(folder, reward)
    assert last >= first + by, f"{reward} went from {first:.3f} to {last:.3f}, not up by {by}"
    return [reward, first, last]


def close(differences):
    """Return the first and the last difference of log-probabilities. Check every one."""
    assert all(each < SAME_WEIGHTS for each in differences), differences  # NaN is not below it
    return [differences[0], differences[-1]]


def figures(record, rewards, *, by, differences=None, estimator="gdpo"):
    """Check what a training recorded, and return its figures.

    Args:
        record: Folder of its rollout record.
        rewards: Names of its rewards. The mean of the first one must rise by `by`.
        by: Smallest rise.
        differences: Differences of log-probabilities between sampler and trainer at each step.
        estimator: Estimator with which the run was trained.
    """
    assert analyzed(record) == rewards
    found = {"advantage_difference": advantage_difference(record, estimator)}
    if differences is not None:
        found["logprob_difference"] = close(differences)
    return {**found, "component": learned(record, rewards[0], by)}


def analyzed(folder):
    """Return the rewards that `gdpo analyze` finds in a folder. It must read every row."""
    analysis = json.loads(gdpo("analyze", folder, "--output", "json"))
    assert analysis["rows"]["read"] == analysis["rows"]["all"] > 0, analysis["rows"]
    return analysis["files"][0]["rewards"]


def gdpo(*arguments):
    """Run a command of gdpo in this environment. Return what it prints."""
    command = [sys.executable, "-m", "gdpo", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stderr}"
    return done.stdout


def main(runs, packages):
    """Execute the run that the command line names, and print what it showed as the last line.

    Args:
        runs: Function of each run by name. It takes an empty folder and the policy's folder, and
            returns figures.
        packages: Distributions whose versions are part of the result.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("run", nargs="?", choices=list(runs))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    options = parser.parse_args()
    if options.list:
        print(*runs, sep="\n")  # noqa: T201
        return
    figures = runs[options.run](options.folder.absolute(), options.policy.absolute())
    shown = {"versions": {each: version(each) for each in packages}, "figures": figures}
    sys.stdout.flush()
    sys.stderr.flush()
    print("\n" + json.dumps({"run": options.run, **shown}))  # noqa: T201
