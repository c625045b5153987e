"""Training rows that match test questions are found."""

import json
import os
from pathlib import Path

import pytest

from gdpo.lab.evaluation import BENCHMARKS
from gdpo.lab.evaluation.benchmarks import GROUPS, find_benchmark, problems
from gdpo.lab.evaluation.overlap import overlap_findings
from gdpo.lab.recipes.data import Rows, read_data
from gdpo.lab.recipes.recipe import DataConfig
from gdpo.lab.tasks import TASKS, load_rows
from gdpo.lab.training.reward_checks import Level

DATA = os.environ.get("GDPO_DATA")
SINGLE = ("bfcl_simple_python", "bfcl_live_multiple")
TASK = TASKS["tool_calling"]


@pytest.fixture
def bfcl():
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed: docs/how-to/evaluate.md")
    pytest.importorskip("tree_sitter")


def xlam(questions, folder):
    rows = [{"query": q, "tools": "[]", "answers": "[]"} for q in questions]
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    return read_data(TASK, DataConfig(source=str(path)))


def test_a_test_question_among_the_rows_is_an_error_that_names_both(tmp_path):
    test = tmp_path / "test.jsonl"
    question = "Weng earns 12 dollars an hour for babysitting. She babysat 50 minutes. How much?"
    test.write_text(json.dumps({"question": question, "answer": "#### 10"}))
    rows = xlam(["Hello?", question.lower()], tmp_path)
    (finding,) = overlap_findings(TASK, rows, [find_benchmark("gsm8k", str(test))])
    assert finding.level is Level.WRONG
    assert finding.text.startswith("overlap: 1 of 2 rows")
    assert f"row 2 of {tmp_path / 'rows.json'} (question 1 of gsm8k)" in finding.text


def test_a_named_benchmark_that_cannot_be_read_is_an_error(tmp_path):
    rows = xlam(["Hello?"], tmp_path)
    (finding,) = overlap_findings(TASK, rows, [find_benchmark("gsm8k", str(tmp_path / "no.json"))])
    assert finding.level is Level.WRONG
    assert "benchmark 'gsm8k'" in finding.text
    assert "no.json" in finding.text


def test_a_missing_package_of_bfcl_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr("gdpo.lab.evaluation._bfcl.find_spec", lambda name: None)
    (finding,) = overlap_findings(TASK, xlam(["Hello?"], tmp_path))
    assert finding.level is Level.NOTE
    assert "bfcl-eval" in finding.text


def test_a_task_without_a_benchmark_at_hand_is_compared_with_nothing(tmp_path):
    assert overlap_findings(TASKS["gsm8k"], Rows((), (), {}, {})) == []


def test_every_question_of_bfcl_is_found_among_the_rows(bfcl, tmp_path):
    for name in SINGLE:
        found = problems(BENCHMARKS[name], None)
        asked = [test.prompt[1]["content"].split("<user> ")[-1][:-8] for test in found]
        (finding,) = overlap_findings(TASK, xlam(asked, tmp_path), [BENCHMARKS[name]])
        assert finding.text.startswith(f"overlap: {len(found):,} of {len(found):,} rows")


@pytest.mark.skipif(DATA is None, reason="GDPO_DATA is not set")
def test_no_row_of_the_tool_calling_data_asks_what_bfcl_tests(bfcl, tmp_path):
    folder = Path(DATA or "") / "tools"
    names = ("rlla_sft.json.gz", "api_bank_level1.json.gz")
    data = DataConfig(source=tuple(str(folder / name) for name in names), near_duplicates="keep")
    rows = read_data(TASK, data)
    seal = xlam([row["query"] for row in load_rows(folder / "seal_tools_dev.jsonl.gz")], tmp_path)
    (finding,) = overlap_findings(
        TASK, Rows(rows.problems + seal.problems, rows.places + seal.places, {}, {})
    )
    assert finding.level is Level.FINE
    assert finding.text.startswith("overlap: 0 of 1,499 rows")
    assert len(GROUPS["bfcl"]) >= 13
