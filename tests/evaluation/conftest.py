"""Rows of small benchmarks."""

import pytest
from tests.rollouts.readers.written import lines

from gdpo.lab.evaluation._bfcl_handlers import OURS
from gdpo.lab.evaluation.benchmarks import BENCHMARKS, problems


def written(path, rows):
    return str(lines(path, rows))


def bfcl_problems(category, limit, handler=OURS):
    return problems(BENCHMARKS[f"{handler.name}_{category}"], limit)


@pytest.fixture
def gsm8k_file(tmp_path):
    rows = [{"question": f"{i}+{i}?", "answer": f"#### {2 * i}"} for i in range(70)]
    return written(tmp_path / "gsm8k.jsonl", rows)


@pytest.fixture
def mbpp_file(tmp_path):
    rows = [
        {
            "text": "Add one.",
            "test_list": [f"assert f({i}) == {i + 1}"],
            "code": "f = lambda x: x+1",
        }
        for i in range(3)
    ]
    return written(tmp_path / "mbpp.jsonl", rows)
