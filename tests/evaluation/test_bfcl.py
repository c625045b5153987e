"""BFCL's single-turn categories: its own answers are right, nothing is not, and nothing is run."""

import json

import pytest

from gdpo.evaluation._bfcl import (
    CATEGORIES,
    bfcl_samples,
    bfcl_task,
)

TURN = "<think>a</think>\n<tool_call>\n{}\n</tool_call>"

WRONG_UPSTREAM = {
    "live_simple": {
        106: "a required parameter has no allowed value",
        112: "a required parameter has no allowed value",
    },
    "live_multiple": {
        507: "a required parameter has no allowed value",
        862: "the answer has a parameter that the function has not",
        964: "the answer lacks a required parameter, and has one that the function has not",
    },
    "simple_java": {
        22: "numbers in a list stay text to the checker",
        36: "a list of texts, numbers and truth values, which it compares as texts",
        64: "an answer that should be a list of texts is one text",
        65: "a list of texts and truth values, which it compares as texts",
        81: "an answer within an answer",
    },
}
"""Rows whose own answer the checker refuses, and why."""


@pytest.fixture(scope="module", autouse=True)
def _package():
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed: docs/how-to/evaluate.md")
    pytest.importorskip("tree_sitter")


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_leaderboards_own_answers_are_right_and_no_answer_is_not(category):
    task, samples = bfcl_task(category), bfcl_samples(category, None)
    golds = [task.gold_completion(sample.reference) for sample in samples]
    scores = [
        [reward.function(gold, sample.reference) for reward in task.rewards]
        for gold, sample in zip(golds, samples, strict=True)
    ]
    wrong = {i for i, (correct, _) in enumerate(scores) if correct != 1}
    assert wrong == set(WRONG_UPSTREAM.get(category, {}))
    assert all(in_format == 1 for _, in_format in scores)
    silent = [task.reward("correctness").function("", sample.reference) for sample in samples]
    wants_none = "irrelevance" in category
    assert set(silent) == {float(wants_none)}
    assert not any(task.reward("format").function("", s.reference) for s in samples)


def judged(call, category="simple_python"):
    sample = bfcl_samples(category, 1)[0]
    completion = TURN.format(call if isinstance(call, str) else json.dumps(call))
    return bfcl_task(category).reward("correctness").function(completion, sample.reference)


@pytest.mark.parametrize(
    ("call", "score"),
    [
        ({"name": "calculate_triangle_area", "parameters": {"base": 10, "height": 5}}, 1),
        ({"name": "calculate_triangle_area", "parameters": {"base": "10", "height": 5}}, 0),
        ({"name": "calculate_triangle_area", "parameters": {"base": 10}}, 0),
        ({"name": "area", "parameters": {"base": 10, "height": 5}}, 0),
        ("calculate_triangle_area(base=10, height=5)", 0),
        ('{"name": "__import__", "parameters": {"base": 10}}', 0),
        ("[" * 100_000, 0),
        (
            '{"name": "calculate_triangle_area", "parameters": {"base": '
            + "[" * 500
            + "]" * 500
            + "}}",
            0,
        ),
    ],
)
def test_calls_are_compared_and_never_run(call, score):
    assert judged(call) == score


def test_two_calls_where_one_is_wanted_are_wrong():
    call = {"name": "calculate_triangle_area", "parameters": {"base": 10, "height": 5}}
    assert judged(f"{json.dumps(call)}\n{json.dumps(call)}") == 0


def test_values_of_java_are_asked_for_as_text():
    prompt = bfcl_samples("simple_java", 1)[0].prompt[0]["content"]
    assert "This is Java 8 SDK type any in string representation." in prompt
    assert "syntax." in prompt
