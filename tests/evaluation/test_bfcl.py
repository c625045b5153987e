"""BFCL's single-turn categories: reference answers are right, empty ones wrong, no call is run."""

import json
import re

import pytest
from tests.evaluation.conftest import bfcl_problems

from gdpo.lab.evaluation._bfcl import CATEGORIES, bfcl_task
from gdpo.lab.evaluation._bfcl_handlers import HANDLERS, OURS, TOOLRL

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
"""Rows whose reference answer the checker rejects, with the reason."""


@pytest.fixture(scope="module", autouse=True)
def _package():
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed: docs/how-to/evaluate.md")
    pytest.importorskip("tree_sitter")


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.name)
@pytest.mark.parametrize("category", CATEGORIES)
def test_the_leaderboards_answers_are_right_and_empty_responses_wrong(category, handler):
    task = bfcl_task(category, handler=handler)
    samples = bfcl_problems(category, None, handler=handler)
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
    sample = bfcl_problems(category, 1)[0]
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


def test_parameters_of_java_are_described_in_the_leaderboards_words():
    prompt = bfcl_problems("simple_java", 1)[0].prompt[0]["content"]
    assert "This parameter can be of any type of Java object in string representation." in prompt
    assert "Note that the provided function is in Java 8 SDK syntax." in prompt
    prompts = "".join(sample.prompt[0]["content"] for sample in bfcl_problems("simple_java", None))
    assert (
        "This is Java Array type parameter in string representation. The list elements are of type "
        "String; they are not in string representation."
    ) in prompts


def rated(category, text, handler):
    task, [sample] = (
        bfcl_task(category, handler=handler),
        bfcl_problems(category, 1, handler=handler),
    )
    return task.reward("correctness").function(text, sample.reference)


@pytest.mark.parametrize("category", ["irrelevance", "live_irrelevance"])
def test_a_call_named_none_is_right_for_toolrl_where_no_call_is_expected(category):
    no_tool = TURN.format('{"name": "None", "parameters": {}}')
    assert rated(category, no_tool, TOOLRL) == 1
    assert rated(category, no_tool, OURS) == 0
    assert rated(category, TURN.format('{"name": "f", "parameters": {}}'), TOOLRL) == 0


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.name)
def test_any_call_is_right_where_any_is_expected(handler):
    any_call = TURN.format('{"name": "no_tool_of_the_row", "parameters": {}}')
    assert rated("live_relevance", any_call, handler) == 1
    assert rated("live_relevance", "<response> I see. </response>", handler) == 0


def test_toolrls_prompt_has_only_parameters_and_no_system_message_of_the_row():
    [ours, theirs] = [bfcl_problems("live_simple", None, handler=each) for each in HANDLERS]
    turns = [[s.prompt[1]["content"].count("<user>") for s in of] for of in (ours, theirs)]
    assert set(turns[0]) == {1, 2}
    assert set(turns[1]) == {1}
    for mine, yours in zip(ours, theirs, strict=True):
        assert parameters(yours) == [schema["properties"] for schema in parameters(mine)]


def parameters(sample):
    system = sample.prompt[0]["content"]
    return [json.loads(line) for line in re.findall("^Parameters: (.*)$", system, re.MULTILINE)]


def test_rows_of_v3_are_read_where_its_package_is_installed(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "possible_answer"
    folder.mkdir(parents=True)
    function = {"name": "Queue.push", "description": "Adds.", "parameters": {"properties": {}}}
    row = {"id": "java_0", "question": [[{"role": "user", "content": "Add."}]]}
    (folder.parent / "BFCL_v3_java.json").write_text(json.dumps({**row, "function": [function]}))
    answer = {"id": "java_0", "ground_truth": [{"Queue.pop": {}}, {"Queue.push": {}}]}
    (folder / "BFCL_v3_java.json").write_text(json.dumps(answer))
    here = {"bfcl_eval": tmp_path}
    monkeypatch.setattr("gdpo.lab.evaluation._bfcl.package_folder", here.get)
    task, [sample] = bfcl_task("simple_java"), bfcl_problems("simple_java", None)
    assert "is in Java 8 SDK syntax." in sample.prompt[0]["content"]
    assert "Queue.push" in task.gold_completion(sample.reference)
