"""Completions that a lazy policy writes."""

import pytest

from gdpo.lab.tasks import Problem, Task
from gdpo.lab.tasks.lazy import lazy_completions, with_fields


def written(gold, *others):
    task = Task("t", (("q",),), lambda _: None, (), lambda ref: ref["gold"], "no idea")
    problem = Problem([{"role": "user", "content": "the question"}], {"gold": gold})
    return lazy_completions(task, problem, others=others, budget=100)


def test_each_policy_writes_without_solving_the_problem():
    gold, *others = (f"<think>so</think>\n<answer>{n}</answer>" for n in (12, 345, 6))
    texts = written(gold, *others)
    assert texts["empty"] == ""
    assert texts["the prompt copied"] == "the question"
    assert texts["the form without an answer"] == "<think>.</think>\n<answer>.</answer>"
    assert texts["another row's answer"] == others[0]
    assert texts["several answers"] == " or ".join(others)
    assert texts["as long as possible"].startswith("<think>.and then")
    assert len(texts["as long as possible"]) == 400
    assert texts["as long as possible"].endswith("</think>\n<answer>.</answer>")


def test_a_text_that_is_the_reference_answer_is_left_out():
    assert "the form without an answer" not in written("<answer>.</answer>", "x")


def test_an_answer_without_marks_has_no_form():
    texts = written("12", "345")
    assert texts["the form without an answer"] == ""
    assert len(texts["as long as possible"]) == 400


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (
            '<think>a</think>\n<tool_call>\n{"name": "f"}\n</tool_call>',
            "<think>.</think>\n<tool_call>\n.\n</tool_call>",
        ),
        (
            "<think>so</think>\n```python\ndef f():\n    return 1 < 3\n```",
            "<think>.</think>\n```python\n.\n```",
        ),
        ("So \\boxed{\\frac{1}{2}}", ". \\boxed{.}"),
        ("12", ""),
    ],
)
def test_calls_programs_and_boxes_are_fields(text, form):
    assert with_fields(text, lambda _: ".") == form
