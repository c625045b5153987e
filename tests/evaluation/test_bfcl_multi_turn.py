"""BFCL's multi-turn categories: reference calls are right, and no text of a model is executed."""

import json
from functools import partial

import pytest
from tests.evaluation.conftest import bfcl_problems

from gdpo.lab.evaluation._bfcl import MULTI_TURN
from gdpo.lab.evaluation._bfcl_handlers import OURS, TOOLRL, as_python, fresh_tools, play, run_tools
from gdpo.lab.evaluation._bfcl_multi_turn import (
    MOST_STEPS,
    Conversations,
    multi_turn_task,
    next_prompts,
    split_turns,
)
from gdpo.lab.evaluation.responders import Response, RowAnswers
from gdpo.lab.tasks.tool_calling.calls import parse
from gdpo.lab.tasks.tool_calling.prompt import write_completion

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _package():
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed: docs/how-to/evaluate.md")


class Saying:
    """Responds to each prompt with the next of these texts, then with empty texts."""

    def __init__(self, *texts):
        self.texts, self.prompts = list(texts), []

    def respond(self, problems, seed, samples):
        self.prompts += [problem.prompt for problem in problems]
        text = self.texts.pop(0) if self.texts else ""
        return [[Response(text, 1, "stop")] for _ in problems]


def call(name, **parameters):
    return write_completion("so", [{"name": name, "parameters": parameters}])


def talked(category, *texts, handler=OURS):
    [sample] = bfcl_problems(category, 1, handler=handler)
    saying = Saying(*texts)
    [[response]] = Conversations(saying, partial(next_prompts, handler=handler)).respond(
        [sample], 0, 1
    )
    scores = [
        reward.function(response.text, sample.reference)
        for reward in multi_turn_task(category, handler=handler).rewards
    ]
    return saying.prompts, response, scores


@pytest.mark.parametrize(
    ("category", "handler"), [*((c, OURS) for c in MULTI_TURN), ("multi_turn_miss_func", TOOLRL)]
)
def test_reference_calls_are_right_and_empty_responses_wrong(category, handler):
    task = multi_turn_task(category, handler=handler)
    samples, next_ = (
        bfcl_problems(category, 6, handler=handler),
        partial(next_prompts, handler=handler),
    )
    gold = Conversations(RowAnswers(task, gold=True), next_).respond(samples, 0, 1)
    silent = Conversations(RowAnswers(task, gold=False), next_).respond(samples, 0, 1)
    assert len(samples) == 6
    for sample, [right], [nothing] in zip(samples, gold, silent, strict=True):
        assert [r.function(right.text, sample.reference) for r in task.rewards] == [1, 1]
        assert [r.function(nothing.text, sample.reference) for r in task.rewards] == [0, 0]


def test_the_results_of_tools_are_in_the_next_prompt():
    prompts, response, _ = talked("multi_turn_base", call("pwd"), call("ls"))
    assert (
        '"results": "{\\"current_working_directory\\": \\"/workspace\\"}"'
        in (prompts[1][-1]["content"])
    )
    assert "document" in prompts[2][-1]["content"]
    assert json.loads(response.text)[:2] == [call("pwd"), call("ls")]
    assert response.shown[-1]["role"] == "assistant"


def test_a_message_without_a_call_ends_the_turn():
    assert split_turns([call("a"), "done", "no call"]) == [[call("a"), "done"], ["no call"], []]
    prompts, *_ = talked("multi_turn_base")
    asked = [prompt[-1]["content"].count("<user>") for prompt in prompts]
    assert asked == [1, 2, 3, 4]


def test_a_row_is_wrong_if_the_model_never_stops_calling():
    prompts, response, scores = talked("multi_turn_base", *[call("ls")] * 99)
    assert len(prompts) == MOST_STEPS + 1
    assert len(json.loads(response.text)) == MOST_STEPS + 1
    assert scores[0] == 0


def test_tools_of_a_later_turn_are_listed_from_that_turn_on():
    prompts, *_ = talked("multi_turn_miss_func")
    assert ["Name: sort\n" in prompt[0]["content"] for prompt in prompts] == (
        [False] * 3 + [True] * 2
    )
    assert "<user> I have updated" in prompts[3][-1]["content"]


def test_the_users_message_describes_such_tools_for_toolrl():
    prompts, *_ = talked("multi_turn_miss_func", handler=TOOLRL)
    assert not any("Name: sort\n" in prompt[0]["content"] for prompt in prompts)
    assert ["<user> [{'name': 'sort'," in prompt[1]["content"] for prompt in prompts] == (
        [False] * 3 + [True] * 2
    )
    assert "I have updated some more functions" in prompts[3][1]["content"]


def test_toolrl_reads_each_call_with_its_result_and_is_asked_to_continue():
    prompts, response, _ = talked(
        "multi_turn_base", call("cd", folder="document"), call("None"), handler=TOOLRL
    )
    asked = prompts[1][1]["content"]
    assert (
        "<obs> You have made the tool call cd(folder='document'). Execution returns: "
        '{"current_working_directory": "document"} </obs>\n\n'
        "<user> If you think you have completed the current task,"
    ) in asked
    assert asked.endswith("how to achieve the task goal from now on. </user>")
    # a call named "None" ends the turn, and the request to go on is not kept
    assert "If you think you have completed" not in prompts[2][1]["content"]
    assert prompts[2][1]["content"].count("Use the one or more necessary tool calls") == 2
    assert len(json.loads(response.text)) == 5


HOSTILE = [
    '__import__("os").system("touch {}")',
    "open('{}','w').close",
    "pwd() or open('{}', 'w')",
    "pwd.__globals__",
]


@pytest.mark.parametrize(
    ("name", "handler"), [*((name, OURS) for name in HOSTILE), (HOSTILE[0], TOOLRL)]
)
def test_only_documented_tools_are_called(name, handler, tmp_path):
    file = tmp_path / "written"
    texts = [
        call(name.format(file), x=f"'); open('{file}', 'w'); ('"),
        call("pwd", x=f"{{open('{file}', 'w')}}"),
    ]
    prompts, *_ = talked("multi_turn_base", *texts, handler=handler)
    assert "Error during execution" in prompts[1][-1]["content"]
    assert "unexpected keyword argument" in prompts[2][-1]["content"]
    assert not file.exists()
    assert as_python([(name, {})], ["pwd", name]) == ["unknown_tool_0()"]


@pytest.mark.parametrize(
    "calls",
    [
        as_python([("power", {"base": 9, "exponent": 10**10})], ["power"]),
        ["add(a=1, b=__import__('os').kill(__import__('os').getppid(), 9))"],
    ],
    ids=["endless", "deadly"],
)
def test_a_tool_that_never_ends_or_ends_the_process_of_all_does_no_harm_to_others(calls):
    entry = {"id": "multi_turn_base_0", "initial_config": {}, "involved_classes": ["MathAPI"]}
    fine = as_python([("add", {"a": 1, "b": 2})], ["add"])
    results = run_tools([{"entry": entry, "steps": [steps]} for steps in (calls, fine)])
    assert results == [[["Error during execution: the tool took too long"]], [['{"result": 3}']]]


def test_rows_do_not_share_the_state_of_tools():
    entry = {"id": "multi_turn_long_context_0", "involved_classes": ["TravelAPI"]}
    entry["initial_config"] = {"TravelAPI": {"credit_card_list": {}, "booking_record": {}}}
    balances = as_python([("get_all_credit_cards", {})], ["get_all_credit_cards"])
    spend = """
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import travel_booking
next(iter(travel_booking.CREDIT_CARD_EXTENSION.values()))["balance"] = -1.0
"""
    before = play(entry, [balances])
    with fresh_tools():
        exec(spend)
        assert play(entry, [balances]) != before
    assert play(entry, [balances]) == before


@pytest.mark.parametrize("depth", [99, 500, 985, 988, 2000, 50_000])
def test_a_deeply_nested_call_is_not_a_call_however_deep_the_caller_is(depth):
    numbers = "[" * depth + "]" * depth
    call = f'{{"name": "mean", "parameters": {{"numbers": {numbers}}}}}'
    text = f"<think>a</think>\n<tool_call>\n{call}\n</tool_call>"
    talked("multi_turn_base", text)
    assert bool(parse(text).calls) == (depth < 100)
