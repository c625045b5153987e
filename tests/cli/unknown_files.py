"""Drawn files of a run in layouts that no framework writes, and the same run in gdpo's record."""

import json
from typing import Any

import numpy as np
from tests.rollouts.built import rollout
from tests.rollouts.readers import written

from gdpo.rollouts import rollout_file, write_rollouts

NAMES = ("correct", "format", "style", "brevity", "safety", "accuracy", "judge", "tone")
STEPS, GROUPS, SAMPLES = 12, 8, 4


def _others(rng, total):
    """Return functions for fields that are no rewards: constants, flags, lengths, copies, lists."""
    fields = {
        "reward_penalty": lambda _: 0.0,
        "bonus_reward": lambda _: 1.0,
        "reward_is_valid": lambda _: True,
        "reward_from_cache": lambda _: bool(rng.random() < 0.5),
        "truncated": lambda _: bool(rng.random() < 0.1),
        "response_length": lambda _: int(rng.integers(5, 90)),
        "latency_ms": lambda _: float(rng.random()),
        "turn_lengths": lambda _: rng.integers(1, 9, int(rng.integers(1, 4))).tolist(),
        **({f"scaled_{total}": lambda whole: 10 * whole} if total else {}),
    }
    return {name: make for name, make in fields.items() if rng.random() < 0.25}


def write_unknown(folder, seed):
    """Write a run of two to four rewards. Return the unknown file, and the folder of the record.

    Rewards may stand in an object, and a total, their weights, or both beside them. The rewards may
    be multiplied by their weights already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    form = rng.choice(["reward_{}", "{}_reward", "{}", "inside"])
    names = [form.format(n) if form != "inside" else n for n in rng.permutation(NAMES)[:count]]
    weights = rng.choice([1.0, 1.0, 0.5, 0.2, 2.0, 5.0], count)
    total = str(rng.choice(["", "reward", "total_reward", "score", "return"]))
    total = total or ("reward" if form == "{}" else "")
    multiplied = bool(total) and rng.random() < 0.4
    recorded = str(rng.choice(["", "", "weights", "reward_weights"]))
    step, prompt = rng.choice(["step", "global_step", "update"]), rng.choice(["prompt", "question"])
    group = str(rng.choice(["", "uid", "group_id", "problem_id"]))
    binary, scale = rng.random(count) < 0.5, rng.choice([0.1, 1.0, 1.0, 10.0], count)
    others = _others(rng, total)
    rows, kept = list[dict[str, Any]](), list[Any]()
    for place in np.ndindex(STEPS, GROUPS):
        rate = rng.choice([0.1, 0.5, 0.9])
        for sample in range(SAMPLES):
            raw = np.where(binary, rng.random(count) < rate, rng.normal(size=count)) * scale
            raw = np.round(raw, 3)
            whole = float(np.round(raw @ weights, 6))
            stored = np.round(raw * weights, 6) if multiplied else raw
            rewards = dict(zip(names, stored.tolist(), strict=True))
            rows.append(
                {step: place[0], prompt: f"question {place}", "response": f"answer {sample}"}
                | ({group: f"{place}"} if group else {})
                | ({"rewards": rewards} if form == "inside" else rewards)
                | ({total: whole} if total else {})
                | ({recorded: dict(zip(names, weights.tolist(), strict=True))} if recorded else {})
                | {name: make(whole) for name, make in others.items()}
            )
            kept.append((*place, sample, rewards))
    known = weights if (total or recorded) and not multiplied else np.ones(count)
    for number in range(STEPS):
        of_step = [
            rollout(*each, weights=dict(zip(names, known.tolist(), strict=True)), advantage=np.nan)
            for each in kept
            if each[0] == number
        ]
        write_rollouts(rollout_file(folder / "record", number), of_step)
    rows = [rows[i] for i in rng.permutation(len(rows))] if rng.random() < 0.3 else rows
    nested = any(isinstance(value, dict | list) for value in rows[0].values())
    kind = str(rng.choice(["jsonl", "parquet", "jsonl" if nested else "csv"]))
    return written.rows(folder / f"rows.{kind}", rows), folder / "record"


def conclusion(printed):
    """Return what the JSON of an analysis concludes, without the words."""
    verdict = json.loads(printed)["runs"][0]["verdict"]
    share = verdict["influence_share"]
    share = None if share is None or share != share else round(share, 3)
    return verdict["action"], verdict["kind"], tuple(verdict["rewards"]), share
