"""Compares two runs, or two evaluations, bit for bit, except for times."""

import json
import re

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from gdpo.lab.runs.directory import RunDirectory, read_environment, read_metrics, read_run

_TIMES = ("step_time", "train_runtime")

_LEFT = re.compile(r".*\.partial|\.model\..*|\..+\.[a-z0-9_]{8}|\.others|.*\.process")


def differing(folder, reference):
    """Return sentences on what differs between two run directories."""
    mine, theirs = RunDirectory(folder), RunDirectory(reference)
    found = []
    if _metrics(mine) != _metrics(theirs):
        found.append("metrics.jsonl")
    found += _tables(mine.rollouts, theirs.rollouts)
    if not (mine.model / "model.safetensors").is_file():
        return [*found, "there is no model"]
    a, b = (load_file(run.model / "model.safetensors") for run in (mine, theirs))
    if a.keys() != b.keys() or not all(torch.equal(a[name], b[name]) for name in a):
        found.append("weights")
    if not mine.readme.is_file() or "finished" not in read_environment(mine):
        found.append("README.md or its end is missing")
    return found


def differing_evaluations(folder, reference):
    """What differs between two evaluations, in words."""
    results = [json.loads((each / "results.json").read_text()) for each in (folder, reference)]
    found = [] if results[0] == results[1] else ["results.json"]
    return found + _tables(folder, reference)


def steps(folder):
    """Steps that a run has logged, and the one that it goes on from; equal where it is finished."""
    run = RunDirectory(folder)
    if not run.environment.is_file():
        return 0, 0
    facts = read_run(run)
    return facts.logged, facts.logged if facts.finished else facts.last.step if facts.last else 0


def left_over(trial):
    """Files that should not be there when all is done."""
    found = (path for path in trial.rglob("*") if _LEFT.fullmatch(path.name))
    return [str(path.relative_to(trial)) for path in found]


def _metrics(run):
    return [{k: v for k, v in row.items() if k not in _TIMES} for row in read_metrics(run)]


def _tables(folder, reference):
    mine, theirs = (
        {p.relative_to(f): p for p in f.rglob("*.parquet")} for f in (folder, reference)
    )
    if mine.keys() != theirs.keys():
        return [f"files: {sorted(map(str, mine.keys() ^ theirs.keys()))}"]
    return [str(n) for n in mine if not pq.read_table(mine[n]).equals(pq.read_table(theirs[n]))]
