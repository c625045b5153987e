"""Drawn runs, written in several layouts and orders, and what `gdpo analyze` says of each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.rollouts.built import rollout
from tests.rollouts.readers import written

from gdpo.advantages import grpo
from gdpo.analysis import analyze
from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import read_rollout_files

Rows = list[dict[str, Any]]


def drawn(seed):
    """Return the rows of a run: several tasks with rewards of their own, and uneven groups.

    A row has step, group, prompt, completion, advantage, and rewards by name, None where a reward
    does not apply. One reward may be None in every row. No reward is constant: in a file whose
    rewards are inferred, it would be none.
    """
    rng = np.random.default_rng(seed)
    names = [f"r{k}_reward" for k in range(int(rng.integers(2, 7)))]
    tasks = rng.random((int(rng.integers(1, 4)), len(names))) < rng.choice([0.5, 0.8, 1.0])
    tasks[:, -1] &= rng.random() < 0.7 or len(names) == 2
    tasks[:, 0] |= ~tasks.any(axis=1)
    scales = rng.choice([0.01, 1.0, 30.0], len(names))
    rates = rng.choice([0.1, 0.5, 0.9], len(names))
    binary, alike = rng.random(len(names)) < 0.5, rng.random() < 0.5
    rows: Rows = []
    for step in range(1, int(rng.integers(3, 16))):
        of_step = rng.integers(len(tasks))
        for group in range(int(rng.integers(2, 10))):
            applies = tasks[of_step if alike else rng.integers(len(tasks))]
            size = (int(rng.integers(2, 6)), len(names))
            values = np.where(binary, rng.random(size) < rates, rng.normal(size=size)) * scales
            values[0] += scales * (group == 0)
            values = np.where(applies, np.round(values, 6), np.nan)
            advantages = grpo(values[None], np.ones(len(names)))[0]
            for sample, (row, advantage) in enumerate(zip(values, advantages, strict=True)):
                known = [None if np.isnan(value) else float(value) for value in row]
                rows.append(
                    {
                        "step": step,
                        "group_id": group,
                        "sample": sample,
                        "prompt": f"q{step} {group}",
                        "completion": f"c{sample}",
                        "advantage": float(advantage),
                        "rewards": dict(zip(names, known, strict=True)),
                    }
                )
    return rows


def _flat(row):
    kept = {name: row[name] for name in ("step", "prompt", "completion")}
    return kept | row["rewards"] | {"advantage": row["advantage"]}


def _lines(folder, rows):
    written.lines(folder / "rows.jsonl", rows)


def flat(folder, rows):
    """Leave a reward out where it does not apply, unless it never applies."""
    there = {name for row in rows for name, value in row["rewards"].items() if value is not None}
    kept = [
        {k: v for k, v in _flat(row).items() if v is not None or k not in there} for row in rows
    ]
    _lines(folder, kept)


def nulls(folder, rows):
    _lines(folder, [_flat(row) for row in rows])


def nested(folder, rows):
    own = ("group_id", "sample")
    _lines(folder, [{k: v for k, v in row.items() if k not in own} for row in rows])


def in_csv(folder, rows):
    written.rows(folder / "rows.csv", [*map(_flat, rows)])


def _table(rows):
    floats = [(name, pa.float64()) for name in rows[0]["rewards"]]
    texts = [("prompt", pa.string()), ("completion", pa.string())]
    schema = pa.schema([("step", pa.int64()), *texts, *floats, ("advantage", pa.float64())])
    return pa.Table.from_pylist([*map(_flat, rows)], schema)


def parquet(folder, rows):
    table = _table(rows)
    names = [{"completion": "response"}.get(name, name) for name in table.column_names]
    pq.write_table(table.rename_columns(names), folder / "rows.parquet")


def _by_step(rows):
    for step in dict.fromkeys(row["step"] for row in rows):
        yield step, [row for row in rows if row["step"] == step]


def trl(folder, rows):
    for step, of_step in _by_step(rows):
        pq.write_table(_table(of_step), folder / f"completions_{step:05d}.parquet")


def record(folder, rows):
    for step, of_step in _by_step(rows):
        kept = [
            rollout(
                *(step, row["group_id"], row["sample"], row["rewards"]),
                prompt=row["prompt"],
                advantage=row["advantage"],
            )
            for row in of_step
        ]
        write_rollouts(rollout_file(folder, step), kept)


LAYOUTS: tuple[Callable[[Path, Rows], None], ...]
LAYOUTS = (flat, nulls, nested, in_csv, parquet, trl, record)


def orders(rows, seed):
    """Yield the rows as written, in reverse and shuffled."""
    yield rows
    yield rows[::-1]
    yield [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


_BY_REWARD = ("weights", "sizes", "shares")


def said(folder):
    """Return what is said of a run, with the options that an unknown verdict proposes.

    Another order of the rows may change the last digits of a number, and the order in which a
    setting lists the rewards. Numbers are therefore rounded, and rewards are sorted by name.
    """
    asked: dict[str, Any] = {}
    for _ in range(2):
        analysis = analyze(read_rollout_files(folder, **asked))
        (run,) = analysis.runs
        verdict = analysis.verdict(run)
        if not verdict.assumed:
            break
        given = dict(verdict.assumed)
        asked["rewards"] = given.pop("--rewards").split(",")
        asked["columns"] = dict(pair.split("=") for pair in given.pop("--columns").split(","))
        assert not given, given
    numbers = ("missing", "weight_share", "influence_share", "influence_margin")
    rewards = {
        each.name: tuple(round(getattr(each, what), 6) + 0.0 for what in numbers)
        for each in sorted(run.rewards, key=lambda each: each.name)
    }
    found = [held.finding for held in run.findings]
    findings = [(each.kind, each.severity, each.rewards, each.message) for each in found]
    readings = [
        replace(
            each,
            **{name: dict(sorted(getattr(each, name).items())) for name in _BY_REWARD},
            less=tuple(sorted(each.less)),
        )
        for each in verdict.readings
    ]
    sentence = replace(verdict, readings=tuple(readings)).sentence
    return rewards, (findings, verdict.action, verdict.kind, verdict.rewards, sentence)
