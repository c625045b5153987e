"""Drawn runs, each written in six layouts and three orders, and what `gdpo analyze` says of each."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.rollouts.built import rollout

from gdpo.advantages import grpo
from gdpo.analysis import analyze
from gdpo.rollouts import rollout_file, write_rollouts
from gdpo.rollouts.readers import read_rollout_files


def drawn(seed: int) -> list[dict[str, Any]]:
    """Return the rows of a run: several tasks with rewards of their own, and uneven groups.

    A row has step, group, prompt, completion, advantage, and rewards by name, None where a reward
    does not apply. One reward may be None in every row. No reward is constant: in a file whose
    rewards are inferred, it would be none.
    """
    rng = np.random.default_rng(seed)
    names = [f"r{k}_reward" for k in range(int(rng.integers(2, 7)))]
    tasks = rng.random((int(rng.integers(1, 4)), len(names))) < rng.choice([0.5, 0.8, 1.0])
    tasks[:, 0] |= ~tasks.any(axis=1)
    if len(names) > 2 and rng.random() < 0.3:
        tasks[:, -1] = False
        tasks[:, 0] |= ~tasks.any(axis=1)
    scales, rates = rng.choice([0.01, 1.0, 30.0], len(names)), rng.choice([0.1, 0.5, 0.9], len(names))
    binary = rng.random(len(names)) < 0.5
    alike, rows = rng.random() < 0.5, list[dict[str, Any]]()  # steps of one task each
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
                rewards = {n: None if v != v else float(v) for n, v in zip(names, row, strict=True)}
                rows.append(
                    {"step": step, "group_id": group, "sample": sample, "prompt": f"q{step} {group}"}
                    | {"completion": f"c{sample}", "advantage": float(advantage), "rewards": rewards}
                )
    return rows


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    kept = {k: row[k] for k in ("step", "prompt", "completion")}
    return kept | row["rewards"] | {"advantage": row["advantage"]}


def _lines(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def flat(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Leave a reward out where it does not apply, unless it never applies."""
    there = {name for row in rows for name, value in row["rewards"].items() if value is not None}
    _lines(
        folder,
        [{k: v for k, v in _flat(r).items() if v is not None or k not in there} for r in rows],
    )


def nulls(folder: Path, rows: list[dict[str, Any]]) -> None:
    _lines(folder, [_flat(row) for row in rows])


def nested(folder: Path, rows: list[dict[str, Any]]) -> None:
    _lines(folder, [{k: v for k, v in row.items() if k not in ("group_id", "sample")} for row in rows])


def in_csv(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(_flat(rows[0])))
        writer.writeheader()
        writer.writerows(map(_flat, rows))


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    floats = [(name, pa.float64()) for name in rows[0]["rewards"]]
    schema = [("step", pa.int64()), ("prompt", pa.string()), ("completion", pa.string()), *floats]
    return pa.Table.from_pylist([*map(_flat, rows)], pa.schema([*schema, ("advantage", pa.float64())]))


def parquet(folder: Path, rows: list[dict[str, Any]]) -> None:
    table = _table(rows)
    pq.write_table(table.rename_columns([{"completion": "response"}.get(n, n) for n in table.column_names]), folder / "rows.parquet")


def trl(folder: Path, rows: list[dict[str, Any]]) -> None:
    for step in dict.fromkeys(row["step"] for row in rows):
        of_step = [row for row in rows if row["step"] == step]
        pq.write_table(_table(of_step), folder / f"completions_{step:05d}.parquet")


def record(folder: Path, rows: list[dict[str, Any]]) -> None:
    for step in dict.fromkeys(row["step"] for row in rows):
        of_step = [
            rollout(step, r["group_id"], r["sample"], r["rewards"], prompt=r["prompt"], advantage=r["advantage"])
            for r in rows
            if r["step"] == step
        ]
        write_rollouts(rollout_file(folder, step), of_step)


LAYOUTS: tuple[Callable[[Path, list[dict[str, Any]]], None], ...] = (flat, nulls, nested, in_csv, parquet, trl, record)


def orders(rows: list[dict[str, Any]], seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows as written, in reverse and shuffled."""
    yield rows
    yield rows[::-1]
    yield [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


def said(folder: Path) -> tuple[Any, Any]:
    """Return what is said of a run, with the options that an unknown verdict proposes.

    Numbers are rounded: another order of the rows may change the last digits.
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
    rewards = {
        each.name: tuple(round(getattr(each, what), 9) + 0.0 for what in ("missing", "weight_share", "influence_share", "influence_margin"))
        for each in run.rewards()
    }
    findings = [(held.finding.kind, held.finding.severity, held.finding.rewards, held.finding.message) for held in run.findings()]
    rewards = dict(sorted(rewards.items()))
    return rewards, (sorted(findings), verdict.action, verdict.kind, verdict.rewards, verdict.sentence)
