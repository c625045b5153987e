"""Decides the hypotheses about the study over warm starts.

    python -m benchmarks.study.warm_starts collect FOLDER
    python -m benchmarks.study.warm_starts tables

research/preregistration/2026-11-27-warm-starts.md registers them.

- collect: reads the runs that `python -m benchmarks.study --warm-starts --output FOLDER` trained,
  and writes what each ended with to research/study_warm_starts.json. Nothing is decided about a
  part with missing runs.
- tables: prints the results and the decisions from that file.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers
import trl
from benchmarks.study._map import REWARD, map_cells

from gdpo.lab.experiments.reading import read_experiment
from gdpo.lab.experiments.statistics import log_rank_scores, paired_difference, permutation_test
from gdpo.lab.experiments.threshold import REACHED, WINDOW, final, first_reached

RECORD = Path(__file__).parents[2] / "research" / "study_warm_starts.json"
ESTIMATORS = ("grpo", "gdpo")
ALPHA, EQUAL = 0.05, 0.05
WARM_STARTS = 10


def outcomes(folder):
    """Return, for each estimator and reward of a comparison, what each warm start ended with."""
    experiment = read_experiment(folder)
    found = {"steps": experiment.total_steps, "runs": {}}
    for label in ESTIMATORS:
        found["runs"][label] = {
            reward.name: {
                str(run.seed): outcome(run.means[reward.name], reward)
                for run in experiment.runs_of(label)
                if run.state == "finished"
            }
            for reward in experiment.rewards
        }
    return found


def outcome(curve, reward):
    """Return the end of a run in units of the range, and when it reached 80 % (None: never)."""
    threshold = reward.low + REACHED * (reward.high - reward.low)
    at = first_reached(curve, threshold, window=WINDOW)
    end = (final(curve) - reward.low) / (reward.high - reward.low)
    return {"end": round(float(end), 4), "at": None if at is None else int(at)}


def collect(folder, record=RECORD):
    """Write the outcomes of all runs in the folder of the study to the record."""
    versions = {each.__name__: each.__version__ for each in (torch, transformers, trl)}
    found = dict(versions)
    for name in ("tools", "maths", *(cell.name for cell in map_cells())):
        if (folder / name).exists():
            found[name] = outcomes(folder / name)
    record.write_text(json.dumps(found, indent=1) + "\n")


def paired(part, reward, key):
    """Return one number per warm start that has both runs, for grpo and for gdpo."""
    runs = [part["runs"][label][reward] for label in ESTIMATORS]
    both = sorted(set(runs[0]) & set(runs[1]), key=int)
    return [np.array([own[seed][key] for seed in both], dtype=float) for own in runs]


def verdict(missing, *, supported, refuted):
    if missing:
        return f"not decided, {missing} runs are missing"
    return "supported" if supported else "refuted" if refuted else "undecided"


def interval(ours, theirs):
    """Return the mean paired difference and its interval. Equal differences are known exactly."""
    found = paired_difference(ours, theirs)
    mean = found.value
    return (mean, mean, mean) if np.isnan(found.low) else (mean, found.low, found.high)


def missing(part):
    """Return how many runs of a part have not finished."""
    return sum(
        WARM_STARTS - min(len(runs) for runs in rewards.values())
        for rewards in part["runs"].values()
    )


def shown(mean, low, high, digits=2):
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def map_decision(found):
    """Print the runs that have the rare reward at the end, per cell, and the main hypothesis."""
    print(f"\n## map\n\n| learning rate | samples | {' | '.join(ESTIMATORS)} |\n|---|---|---|---|")
    cells = {cell: found[cell.name] for cell in map_cells() if cell.name in found}
    learned = {label: [] for label in ESTIMATORS}
    for cell, part in cells.items():
        for label in ESTIMATORS:
            runs = part["runs"][label][REWARD]
            learned[label].append({seed: run["end"] >= REACHED for seed, run in runs.items()})
        shares = " | ".join(
            f"{sum(own[-1].values())} of {len(own[-1])}" for own in learned.values()
        )
        print(f"| {cell.learning_rate:g} | {cell.samples} | {shares} |")
    whole = sorted(set.intersection(*(set(own) for each in learned.values() for own in each)))
    grpo, gdpo = (
        np.array([np.mean([own[seed] for own in learned[label]]) for seed in whole])
        for label in ESTIMATORS
    )
    mean, low, high = interval(gdpo, grpo)
    pairs = zip(learned["gdpo"], learned["grpo"], strict=True)
    more = sum(sum(ours.values()) > sum(theirs.values()) for ours, theirs in pairs)
    absent = 2 * WARM_STARTS * (len(map_cells()) - len(cells)) + sum(map(missing, cells.values()))
    word = verdict(absent, supported=more == len(map_cells()) and low > 0, refuted=high < 0)
    print(
        f"\nShare of the cells learned, gdpo - grpo, over {len(whole)} warm starts: "
        f"{shown(mean, low, high)} (gdpo {gdpo.mean():.2f}, grpo {grpo.mean():.2f}); more in "
        f"{more} of {len(cells)} cells, in {np.sum(gdpo > grpo)} warm starts, fewer in "
        f"{np.sum(gdpo < grpo)}. Main hypothesis: {word}"
    )


def tools_decision(part):
    """Print the steps to 80 % of both rewards, and the hypothesis about them."""
    print("\n## tools\n\n| reward | grpo | gdpo | p |\n|---|---|---|---|")
    verdicts = {}
    for reward, ours_first in (("format", True), ("correctness", False)):
        at = paired(part, reward, "at")
        reached = [~np.isnan(each) for each in at]
        times = [
            np.where(known, each, part["steps"]) for known, each in zip(reached, at, strict=True)
        ]
        theirs, ours = log_rank_scores(tuple(times), tuple(reached))
        p = permutation_test(ours, theirs).p
        ahead = (ours.sum() > 0) == ours_first
        verdicts[reward] = (p < ALPHA and ahead, p < ALPHA and not ahead)
        cells = [
            f"{np.median(when):.0f} (reached in {known.sum()} of {len(known)})"
            for when, known in zip(times, reached, strict=True)
        ]
        print(f"| {reward} | {' | '.join(cells)} | {p:.2g} |")
    supported, refuted = (list(each) for each in zip(*verdicts.values(), strict=True))
    word = verdict(missing(part), supported=all(supported), refuted=any(refuted))
    print(f"\nHypothesis: {word}")
    ends(part)


def ends(part):
    """Print the ends of every reward and return the intervals of the paired differences."""
    print(f"\n| reward | {' | '.join(ESTIMATORS)} | gdpo - grpo |\n|{'---|' * 4}")
    found = []
    for reward in part["runs"]["grpo"]:
        grpo, gdpo = paired(part, reward, "end")
        mean, low, high = interval(gdpo, grpo)
        found.append((low, high))
        print(f"| {reward} | {grpo.mean():.3f} | {gdpo.mean():.3f} | {shown(mean, low, high, 3)} |")
    return found


def maths_decision(part):
    """Print the ends of the three rewards, and whether they are equal."""
    print("\n## maths")
    found = ends(part)
    same = all(low > -EQUAL and high < EQUAL for low, high in found)
    apart = any(low > EQUAL or high < -EQUAL for low, high in found)
    print(f"\nHypothesis: {verdict(missing(part), supported=same, refuted=apart)}")


def requested_decision(name, errors):
    """Print how far the realized shares are from the requested ones."""
    known = np.array([each for each in errors.values() if each is not None])
    mean, low, high = interval(known, np.zeros(len(known)))
    word = verdict(WARM_STARTS - len(errors), supported=high < EQUAL, refuted=low > EQUAL)
    print(
        f"\n## {name}\n\nMean error of the share over {len(known)} of {len(errors)} warm starts: "
        f"{shown(mean, low, high, 3)}. Hypothesis: {word}"
    )


def tables(record=RECORD):
    """Print all parts that the record has."""
    found = json.loads(record.read_text())
    print(", ".join(f"{key} {value}" for key, value in found.items() if isinstance(value, str)))
    if any(cell.name in found for cell in map_cells()):
        map_decision(found)
    if "tools" in found:
        tools_decision(found["tools"])
    if "maths" in found:
        maths_decision(found["maths"])
    for name, errors in found.items():
        if name.startswith("requested"):
            requested_decision(name, errors)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("collect", "tables"))
    parser.add_argument("folder", nargs="?", type=Path, help="folder of the study's runs")
    options = parser.parse_args()
    if options.part == "tables":
        tables()
    elif options.folder is None:
        parser.error("collect needs FOLDER")
    else:
        collect(options.folder)


if __name__ == "__main__":
    main()
