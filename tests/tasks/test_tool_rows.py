"""Rows of other tool-calling datasets become ToolRL's prompt and gold text."""

import json
import os
from pathlib import Path

import pytest

from gdpo.errors import DataError
from gdpo.tasks import TASKS, load_samples

TASK = TASKS["tool_calling"]
DATA = os.environ.get("GDPO_DATA")
CALL = {"name": "add", "parameters": {"a": 1, "b": [2, None]}}
API_BANK = {"system": "tools: add", "user": "1 and 2", "answer": str([CALL])}
TOOL = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"a": {"description": "one", "type": "int"}},
}
XLAM = {
    "query": "Add 1 and 2.",
    "tools": json.dumps([TOOL]),
    "answers": json.dumps([{"name": "add", "arguments": CALL["parameters"]}]),
}


def scores(row):
    sample = TASK.read_row(row)
    gold = TASK.gold_completion(sample.reference)
    return sample, gold, [reward.function(gold, sample.reference) for reward in TASK.rewards]


@pytest.mark.parametrize(
    "row", [API_BANK, {**API_BANK, "answer": [CALL]}, XLAM, {**XLAM, "tools": [TOOL]}]
)
def test_calls_become_a_gold_text_that_gets_the_maximum(row):
    sample, gold, values = scores(row)
    assert values == [1, 3]
    assert json.dumps(CALL) in gold
    assert [message["role"] for message in sample.prompt] == ["system", "user"]


def test_a_dialogue_of_api_bank_is_taken_as_it_is():
    assert TASK.read_row(API_BANK).prompt == [
        {"role": "system", "content": "tools: add"},
        {"role": "user", "content": "1 and 2"},
    ]


def test_tools_of_xlam_are_listed_in_toolrls_prompt():
    system, user = TASK.read_row(XLAM).prompt
    assert "1. Name: add\nDescription: Adds." in system["content"]
    assert "<user> Add 1 and 2. </user>" in user["content"]


def test_where_no_tool_fits_a_response_is_wanted():
    sample, gold, (in_format, correct) = scores({**XLAM, "answers": "[]"})
    assert (in_format, correct) == (1, None)
    assert "<tool_call>" not in gold
    assert TASK.rewards[0].function(scores(XLAM)[1], sample.reference) == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**API_BANK, "answer": "[__import__('os')]"}, "column 'answer' holds no list of calls"),
        ({**API_BANK, "answer": "[" * 5000}, "column 'answer' holds no list of calls"),
        ({**API_BANK, "answer": "{'name': 'add'}"}, "column 'answer' must hold a list of objects"),
        ({**API_BANK, "answer": "[{'name': 'add'}]"}, r"column 'answer\[0\]' must have a 'name'"),
        ({**XLAM, "answers": "[1"}, "column 'answers' is no JSON"),
        ({**XLAM, "answers": '[{"name": 1, "arguments": {}}]'}, r"column 'answers\[0\]' must"),
        ({**XLAM, "tools": "{}"}, "column 'tools' must hold a list of objects"),
        ({**XLAM, "tools": '[{"name": "add"}]'}, "tool 1 lacks description, parameters"),
    ],
)
def test_what_cannot_be_read_is_named(row, message):
    with pytest.raises(DataError, match=message):
        TASK.read_row(row)


@pytest.mark.skipif(DATA is None, reason="GDPO_DATA is not set")
def test_every_row_of_api_bank_is_read_and_its_answer_gets_the_maximum():
    samples = load_samples(TASK, Path(DATA) / "tools" / "api_bank_level1.json.gz")
    assert len(samples) == 399
    for sample in samples:
        gold = TASK.gold_completion(sample.reference)
        assert [reward.function(gold, sample.reference) for reward in TASK.rewards] == [1, 3]
