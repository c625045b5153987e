"""Completions that a lazy policy writes."""

import pytest

from gdpo.lab.tasks import Problem, Task
from gdpo.lab.tasks.lazy import (
    POLICIES,
    form_of,
    in_place_of,
    lazy_completions,
    padded,
    shell_of,
    without_form,
)

CALL = '<think>a</think>\n<tool_call>\n{"name": "f"}\n</tool_call>'
PROGRAM = "<think>so</think>\n```python\ndef add(a, b):\n    return a + b < 3\n```"


def written(gold, *others, budget=100):
    task = Task("t", (("q",),), lambda _: None, (), lambda ref: ref["gold"], "no idea")
    problem = Problem([{"role": "user", "content": "the question"}], {"gold": gold})
    lazy = lazy_completions(task, problem, others=others, budget=budget)
    return {each.policy: each for each in lazy}


def test_every_policy_fills_the_form_of_the_reference_answer():
    gold, other = (f"<think>worked out</think>\n<answer>{n}</answer>" for n in (12, 345))
    texts = {name: each.text for name, each in written(gold, other).items()}
    assert texts["empty"] == ""
    assert texts["refusal"] == "no idea"
    assert texts["prompt copied"] == "the question"
    assert texts["form without content"] == "<think></think>\n<answer></answer>"
    assert texts["form with a dot"] == "<think>.</think>\n<answer>.</answer>"
    assert texts["shortest"] == "<think>.</think>\n<answer>345</answer>"
    assert texts["answer of another row"] == other
    assert texts["several answers"] == gold.replace("12", "345 or 12 or 345")
    assert texts["several completions"].count("<answer>") == 3
    assert "call repeated" not in texts
    assert set(texts) < set(POLICIES)


def test_only_completions_with_the_reference_answer_need_it():
    lazy = written(CALL, CALL.replace("f", "g"))
    needing = {name for name, each in lazy.items() if each.needs_gold}
    assert needing == {"several answers", "several completions", "call repeated"}
    assert lazy["call repeated"].text.count('{"name": "f"}') == 4


def test_the_longest_completion_fills_the_budget_and_no_other_exceeds_it():
    lazy = written(CALL, "x" * 5000, budget=50)
    assert lazy["longest"].num_tokens == 50
    assert max(each.num_tokens for each in lazy.values()) == 50
    assert len(lazy["answer of another row"].text) == 200


def test_a_reference_answer_without_a_form_has_no_shell():
    lazy = written("7", "8", "9")
    assert not any(name.startswith("form") for name in lazy)
    assert shell_of("7") == ""
    assert lazy["several answers"].text == "8 or 7 or 9"


def test_a_program_becomes_one_that_does_nothing():
    assert shell_of(PROGRAM).endswith("```python\ndef add(*_): pass\n```")
    in_class = (
        "```python\nclass S:\n    def m(self):\n        def inner(): pass\n        x = 1\n```"
    )
    program = shell_of(in_class).removeprefix("```python\n").removesuffix("\n```")
    assert program == "class S:\n    pass\n    def m(*_): pass"
    compile(program, "stub", "exec")
    assert "several answers" not in written(PROGRAM, PROGRAM)


def test_a_program_of_another_row_gets_the_name_of_this_row():
    other = "```python\ndef sub(x):\n    return sub(x - 1)\n```"
    assert in_place_of(PROGRAM, other) == other.replace("sub", "add")
    assert in_place_of(CALL, other) == other


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (r"a \boxed{\frac{1}{2}} b", ("\\boxed{", "}")),
        (r"a \boxed{1", ("\\boxed{",)),
        ("```python\nx < y > z <b>\n```", ("```python", "```")),
        ("```python\nx", ("```python",)),
        ("1 < 2 > 1", ()),
    ],
)
def test_tags_fences_and_boxes_are_the_form(text, form):
    assert form_of(text) == form


def test_padding_lengthens_the_thinking_and_nothing_else():
    text = padded(PROGRAM, 50)
    assert form_of(text) == form_of(PROGRAM)
    assert len(text) == pytest.approx(200, abs=5)
    assert text.partition("</think>")[2] == PROGRAM.partition("</think>")[2]
    assert padded("7", 50) == "7"
    assert padded(PROGRAM, 3) == PROGRAM


def test_without_its_form_a_completion_keeps_its_contents():
    assert without_form(CALL) == 'a {"name": "f"}'
