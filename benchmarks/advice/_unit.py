"""Follows the verdict on one script from one warm start, beside the script as it was."""

import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.advice._scenarios import SCENARIOS, Scenario
from benchmarks.advice._training import STEPS, Setting, at_the_end, policy, train

from gdpo.analysis import analyze
from gdpo.analysis.verdict import Action, Verdict
from gdpo.diagnostics.readings import Meaning, Reading
from gdpo.rollouts.readers import read_rollout_files

UNCHANGED, OBEYED, OTHER = "unchanged", "obeyed", "gdpo"
"""Arms: the script as it was, the setting of the verdict, and, beside "nothing to do", GDPO."""


def run_unit(unit: tuple[str, int], folder: Path) -> dict[str, Any]:
    """Train, analyze, follow the verdict from there and from the start, and return the record.

    A unit is the name of a script and the seed of a warm start.
    """
    warnings.simplefilter("ignore")
    name, seed = unit
    scenario, here = SCENARIOS[name], folder / f"{name.replace(' ', '-')}-{seed}"
    shutil.rmtree(here, ignore_errors=True)
    start, script = policy(scenario, seed), Setting.of(scenario)
    training = partial(train, seed=seed)
    first = training(script, start, here / UNCHANGED, steps=2 * STEPS)
    verdict = verdict_on(here / UNCHANGED, scenario)
    there = here / UNCHANGED / f"checkpoint-{STEPS}"
    setting = followed(verdict, scenario, script)
    from_start = {UNCHANGED: at_the_end(first)}
    from_there = {UNCHANGED: at_the_end(first)}
    if setting is not None:
        seen = training(setting, there, here / f"{OBEYED}-there", steps=STEPS)
        from_there[OBEYED] = at_the_end(seen)
        seen = training(setting, start, here / OBEYED, steps=2 * STEPS)
        from_start[OBEYED] = at_the_end(seen)
    elif verdict.action is Action.NOTHING:
        seen = training(replace(script, estimator="gdpo"), start, here / OTHER, steps=2 * STEPS)
        from_start[OTHER] = at_the_end(seen)
    shutil.rmtree(here)
    return {
        "scenario": name,
        "seed": seed,
        "action": verdict.action.value,
        "kind": verdict.kind and verdict.kind.value,
        "rewards": list(verdict.rewards),
        "sentence": verdict.sentence,
        "meaning": (chosen := _chosen(verdict, scenario)) and chosen.meaning.value,
        "setting": setting and {"estimator": setting.estimator, "weights": dict(setting.weights)},
        "before": at_the_end(first[:STEPS]),
        "begin": at_the_end(first[:5]),
        "from there": from_there,
        "from the start": from_start,
    }


def verdict_on(folder: Path, scenario: Scenario) -> Verdict:
    """Return what `gdpo analyze` says about the first steps of a run."""
    files = sorted((folder / "completions").glob("*.parquet"))[:STEPS]
    analysis = analyze(read_rollout_files(files), weights=scenario.weights)
    (run,) = analysis.runs
    return analysis.verdict(run)


def followed(verdict: Verdict, scenario: Scenario, script: Setting) -> Setting | None:
    """Return the setting of the verdict for what the author means. None: it has no command."""
    chosen = _chosen(verdict, scenario)
    if chosen is None:
        return None
    return replace(script, estimator=chosen.estimator, weights=chosen.weights)


def _chosen(verdict: Verdict, scenario: Scenario) -> Reading | None:
    meant = Meaning.SIZES if scenario.sizes_mean else Meaning.EQUAL
    needed = [each for each in verdict.readings if each.needed]
    found = [each for each in needed if each.meaning in (meant, Meaning.WEIGHTS)]
    if not found and len(verdict.readings) == 1:
        found = needed
    return found[0] if found else None
