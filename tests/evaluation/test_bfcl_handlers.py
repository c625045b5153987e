"""ToolRL's prompts and calls for BFCL equal those of its handler. bfcl-eval is not needed."""

import json

import pytest
from tests.environments import ROOT

from gdpo.lab.evaluation._bfcl_handlers import OURS, TOOLRL

PUBLISHED = json.loads((ROOT / "tests/golden/bfcl_toolrl_published.json").read_text("utf-8"))
NO_TOOL = '<tool_call>\n{"name": "None", "parameters": {}}\n</tool_call>'


def as_qwen_reads(prompt):
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in prompt)
    return f"{turns}<|im_start|>assistant\n"


def in_words(message):
    """The published handler writes the results of tools into the prompt."""
    if message["role"] != "tool":
        return message
    text = f"{message['name']}. Execution returns: {message['content'].strip()}"
    return {"role": "tool", "content": f"You have made the tool call {text}"}


@pytest.mark.parametrize("case", PUBLISHED["prompts"], ids=lambda case: case["turn_type"])
def test_prompts_are_those_of_toolrls_handler(case):
    ask = {"single_turn": TOOLRL.ask, "multi_turn": TOOLRL.ask_in_turns}[case["turn_type"]]
    said = [in_words(message) for message in case["messages"]]
    assert as_qwen_reads(ask(PUBLISHED["tools"], said)) == case["prompt"]


@pytest.mark.parametrize("case", PUBLISHED["read"], ids=lambda case: case["text"])
def test_calls_are_those_that_toolrls_handler_reads(case):
    assert [{name: parameters} for name, parameters in TOOLRL.calls(case["text"])] == case["calls"]
    runs = TOOLRL.runs(case["text"])
    messages = TOOLRL.tool_messages(runs, [" {} "] * len(runs))
    assert messages == [
        f"You have made the tool call {run}. Execution returns: {{}}" for run in case["runs"]
    ]


def test_a_call_named_none_is_a_call_only_for_our_handler():
    assert OURS.calls(NO_TOOL)
    assert not TOOLRL.calls(NO_TOOL)
    assert not TOOLRL.runs(NO_TOOL)


@pytest.mark.parametrize("depth", [99, 102, 985, 50_000])
def test_a_deeply_nested_call_is_not_a_call_for_toolrl_either(depth):
    x = "[" * (depth - 2) + "]" * (depth - 2)
    text = f'<tool_call>\n{{"name": "f", "parameters": {{"x": {x}}}}}\n</tool_call>'
    assert bool(TOOLRL.calls(text)) == bool(TOOLRL.runs(text)) == (depth < 100)
