"""Which rollouts the page shows: groups of all runs and steps, as many as it has room for.

First one of each run; then in turn one somewhere else, evenly over the steps, and the one that the
estimators disagree on most.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from math import nan
from typing import Any

import numpy as np

from gdpo.experiments.reading import Experiment
from gdpo.report._record import read_texts
from gdpo.report._replay import Replay, Replayed
from gdpo.report.text import embedded, messages, visible
from gdpo.rollouts import Rollout

ROOM = 1_200_000
"""Bytes for the texts of all rollouts together."""

_GROUPS, _READ = 300, 60_000
"""Groups that are looked at, and rollouts of the steps that are read for them, at most."""

_SAMPLES = 8
"""Rollouts of a group that are shown, at most: those with the largest disagreement."""

PROMPT, COMPLETION = 2_000, 3_000
"""Characters of each that are shown."""

GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Sample:
    """The rollouts that are shown."""

    data: dict[str, Any]
    """For the page's script."""
    rollouts: int


def sample(experiment: Experiment, replay: Replay) -> Sample:
    """Choose groups and read their texts."""
    prompts: dict[str, int] = {}
    groups: list[dict[str, Any]] = []
    room = ROOM
    for replayed, group in _chosen(experiment, replay):
        found = _group(experiment, replayed, group)
        prompt = embedded(found["prompt"])
        size = len(embedded(found).encode()) - (len(prompt.encode()) if prompt in prompts else 0)
        if size > room:
            continue
        room -= size
        found["prompt"] = prompts.setdefault(prompt, len(prompts))
        groups.append(found)
    data: dict[str, Any] = {
        "estimators": [visible(name) for name in replay.estimators],
        "rewards": list(dict.fromkeys(visible(n) for r in replay.steps for n in r.step.names)),
        "runs": [{"arm": visible(run.arm), "seed": run.seed} for run in experiment.runs],
        "prompts": [json.loads(prompt) for prompt in prompts],
        "groups": groups,
    }
    return Sample(data, sum(len(group["samples"]) for group in groups))


def _chosen(experiment: Experiment, replay: Replay) -> Iterator[tuple[Replayed, int]]:
    """Groups to show, the most wanted first, each once."""
    seen: set[tuple[int, int]] = set()
    read = 0
    places = {id(replayed): i for i, replayed in enumerate(replay.steps)}
    even = _evenly(experiment, replay)
    one_each = ((choice, None) for choice in islice(even, len(experiment.runs)))
    for pair in chain(one_each, zip_longest(even, _by_disagreement(replay))):
        for choice in pair:
            if choice is None or (key := (places[id(choice[0])], choice[1])) in seen:
                continue
            if len(seen) == _GROUPS or read > _READ:
                return
            seen.add(key)
            read += choice[0].step.rollouts
            yield choice


def _evenly(experiment: Experiment, replay: Replay) -> Iterator[tuple[Replayed, int]]:
    """Run by run in turn; however early one stops, the steps lie about evenly."""
    runs = [steps for run in experiment.runs if (steps := replay.of_run(run))]
    for turn in range(_GROUPS):
        for steps in runs:
            replayed = steps[int(len(steps) * ((turn * GOLDEN) % 1))]
            yield replayed, turn % len(replayed.disagreement)


def _by_disagreement(replay: Replay) -> Iterator[tuple[Replayed, int]]:
    """The group of each step that is disagreed on most, the worst step first."""
    worst = [(float(np.max(r.disagreement)), i) for i, r in enumerate(replay.steps)]
    for disagreement, i in sorted(worst, key=lambda pair: (-pair[0], pair[1])):
        if disagreement > 0:
            replayed = replay.steps[i]
            yield replayed, int(np.argmax(np.max(replayed.disagreement, axis=1)))


def _group(experiment: Experiment, replayed: Replayed, group: int) -> dict[str, Any]:
    step = replayed.step
    there = np.flatnonzero(replayed.there[group])
    shown = sorted(
        there[np.argsort(-replayed.disagreement[group, there], kind="stable")][:_SAMPLES]
    )
    rollouts = read_texts(step, [int(step.rows[group, s]) for s in shown])
    return {
        "run": next(i for i, run in enumerate(experiment.runs) if run is replayed.run),
        "step": step.number,
        "id": rollouts[0].group_id,
        "size": len(there),
        "prompt": messages(rollouts[0].prompt, PROMPT),
        "samples": [
            _sample(rollout, replayed, group, s) for rollout, s in zip(rollouts, shown, strict=True)
        ],
    }


def _sample(rollout: Rollout, replayed: Replayed, group: int, s: int) -> dict[str, Any]:
    values = {visible(name): value for name, value in rollout.rewards.items()}
    return {
        "id": rollout.sample_id,
        "completion": messages(rollout.completion, COMPLETION),
        "rewards": {name: four_digits(value) for name, value in values.items()},
        "advantages": [four_digits(a) for a in replayed.advantages[:, group, s].tolist()],
        "disagreement": four_digits(float(replayed.disagreement[group, s])),
        "tokens": rollout.num_tokens,
        "end": visible(rollout.finish_reason)[:40],
    }


def four_digits(value: float | None) -> float:
    """Four digits are enough to read, and less to carry."""
    return nan if value is None else float(f"{value:.4g}")
