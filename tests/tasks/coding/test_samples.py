"""Prompts and solutions of every coding dataset. test_rows.py covers their tests."""

import json

import pytest
from tests.refusals import data_error
from tests.tasks.coding.test_rows import HUMANEVAL, LEETCODE, MBPP, STDIO

from gdpo.lab.tasks import TASKS

TASK = TASKS["coding"]
CONTESTS = {
    "description": "Double it.",
    "public_tests": {"input": ["1\n"], "output": ["2\n"]},
    "solutions": {"language": [2, 3, 3], "solution": ["int main", "print(2)", "print(3)"]},
}
APPS = {"question": "Double it.", "input_output": json.dumps(STDIO), "solutions": '["print(2)"]'}
STARTER = "class Solution:\n    def f(self, x):"
EURUS = {
    "prompt": [{"role": "system", "content": "think"}, {"role": "user", "content": "Double it."}],
    "reward_model": {"ground_truth": json.dumps(STDIO), "style": "rule"},
}


@pytest.mark.parametrize(
    ("row", "asked", "solution"),
    [
        ({**MBPP, "text": "Double it."}, "Double it.\n\nIt must pass these tests:", MBPP["code"]),
        ({**MBPP, "prompt": "Double it."}, "Double it.\n\nIt must", MBPP["code"]),
        (
            {**HUMANEVAL, "canonical_solution": "    return 2 * x\n"},
            "Complete this Python function:\n```python\n",
            f"{HUMANEVAL['prompt']}    return 2 * x\n",
        ),
        ({**HUMANEVAL, "canonical_solution": None}, "Complete this", None),
        ({**LEETCODE, "query": "Two sum.", "completion": "a = 1"}, "Two sum.\n\nThink", "a = 1"),
        (APPS, "Double it.\n\nThe program reads from standard input", "print(2)"),
        ({**APPS, "solutions": ""}, "Double it.", None),
        ({**APPS, "solutions": []}, "Double it.", None),
        (
            {**APPS, "starter_code": STARTER},
            f"Double it.\n\nBegin with this:\n```python\n{STARTER}",
            "print(2)",
        ),
        (CONTESTS, "Double it.\n\nThe program reads from standard input", "print(2)"),
        ({**CONTESTS, "solutions": None}, "Double it.", None),
    ],
)
def test_what_is_asked_and_a_solution(row, asked, solution):
    sample = TASK.read_row(row)
    (message,) = sample.prompt
    assert message["role"] == "user"
    assert message["content"].startswith(asked)
    assert message["content"].endswith("ends with ```.")
    assert sample.reference["solution"] == solution
    gold = TASK.gold_completion(sample.reference)
    assert gold == (
        None if solution is None else f"<think>worked out</think>\n```python\n{solution}\n```"
    )


def test_a_row_with_messages_keeps_them_and_brings_no_solution():
    sample = TASK.read_row(EURUS)
    assert sample.prompt == EURUS["prompt"]
    assert TASK.gold_completion(sample.reference) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**APPS, "solutions": "[1"}, "column 'solutions'"),
        ({**MBPP, "text": "a", "code": 3}, "solution .*got int 3"),
        ({**EURUS, "prompt": "Double it."}, "column 'prompt'"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(row, message):
    with data_error(message):
        TASK.read_row(row)
