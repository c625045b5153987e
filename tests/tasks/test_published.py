"""The compatible tasks give exactly the results of the published code."""

import json

import pytest
from tests.environments import ROOT

from gdpo.lab.tasks import TASKS

GOLDEN = ROOT / "tests/golden"


def cases(name):
    text = (GOLDEN / f"{name}_published.json").read_text("utf-8")
    return json.loads(text)["cases"]


@pytest.mark.parametrize("case", cases("tool_calling"))
def test_tool_calling_gives_the_published_numbers(case):
    task, reference = TASKS["tool_calling_compatible"], {"output": case["gold"]}
    got = {r.name: r.function(case["completion"], reference) for r in task.rewards}
    if "raised" in case:
        assert got["correctness"] is None
    else:
        assert got == {"format": case["format"], "correctness": case["correctness"]}


@pytest.mark.parametrize("case", cases("gsm8k"))
def test_gsm8k_gives_the_published_numbers(case):
    task, reference = TASKS["gsm8k_compatible"], {"answer": case["answer"]}
    got = {r.name: r.function(case["completion"], reference) for r in task.rewards}
    assert got == {r.name: case[r.name] for r in task.rewards}
