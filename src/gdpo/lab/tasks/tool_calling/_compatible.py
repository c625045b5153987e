"""Reproduces the published rewards of ToolRL exactly, including their quirks.

They give the values of `verl/utils/reward_score/rlla.py` (ToolRL, commit 8cee13e; the same file in
NVlabs/GDPO, b080e63) if the only environment variable set is an `EXPERIMENT_NAME` that contains
Qwen. Use them to compare your runs with published ones.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gdpo.lab.tasks.tool_calling._rewards import HIGH, LOW
from gdpo.rewards import Example, Reference, Reward
from gdpo.rewards.reward import binary, examples_of

_THINK = r"<think>.*?</think>"
_BODY = {
    "tool_call": r"\n<tool_call>\n.*?\n</tool_call>",
    "response": r"\n<response>.*?</response>",
}
_KINDS: tuple[tuple[str, ...], ...] = ((), ("response",), ("tool_call",), ("tool_call", "response"))
_WHOLE: dict[tuple[str, ...], re.Pattern[str]] = {
    kind: re.compile(_THINK + "".join(_BODY[tag] for tag in kind), re.DOTALL) for kind in _KINDS
}

_ANY_FAULT = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
"""Exceptions that unexpected JSON can cause. The published code catches every exception at this
point."""


def _last_turn(completion: str) -> str:
    return completion.split("<|im_start|>assistant")[-1].split("<|im_end|>")[0].strip()


def _format(completion: str, reference: Reference) -> float:
    gold, text = reference["output"], _last_turn(completion)
    kind = tuple(tag for tag in _BODY if f"<{tag}>" in gold)
    once = all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in kind)
    return float(once and _WHOLE[kind].fullmatch(text) is not None)


def _correctness(completion: str, reference: Reference) -> float | None:
    gold, text = reference["output"], _last_turn(completion)
    if "<tool_call>" not in gold:
        return 0.0
    try:
        gold_calls = _first_block(gold)
    except (ValueError, RecursionError):  # the published code raises here
        return None
    if "</tool_call>" not in text:
        return LOW
    try:
        return _graded(gold_calls, _first_block(text))
    except _ANY_FAULT:
        return LOW


def _first_block(text: str) -> list[Any]:
    """Return one JSON value per line of the first `<tool_call>` block."""
    block = text.split("<tool_call>")[1].split("</tool_call>")[0].strip()
    return [json.loads(line) for line in block.split("\n")]


def _graded(gold: list[Any], written: list[Any]) -> float:
    if gold == written:
        return HIGH
    score = _overlap([call["name"] for call in gold], [call["name"] for call in written])
    possible = 1.0
    used: set[int] = set()
    for call in gold:
        name, parameters = call["name"], call["parameters"]
        possible += 1.0 + len(parameters)
        best, best_index = 0.0, -1
        for index, other in enumerate(written):
            if index in used or other["name"] != name:
                continue
            likeness = _likeness(parameters, other["parameters"])
            if likeness > best:
                best, best_index = likeness, index
        if best_index >= 0:
            used.add(best_index)
            score += best
    return (HIGH - LOW) * score / possible + LOW


def _likeness(gold: Any, written: Any) -> float:
    names = _overlap(list(gold.keys()), list(written.keys()))
    return names + sum(
        1.0 for key, value in gold.items() if key in written and written[key] == value
    )


def _overlap(a: Sequence[Any], b: Sequence[Any]) -> float:
    if a == b:
        return 1.0
    if not a or not b:
        return 0.0
    common = (Counter(a) & Counter(b)).total()
    return common / (len(a) + len(b) - common)


_CALL = '<think> a </think>\n<tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'
_TALK = "<think> a </think>\n<response> b </response>"

format_reward = binary(
    "format",
    _format,
    *examples_of(
        {"output": _CALL},
        {
            _CALL: 1.0,
            _CALL.replace(" a ", " a <tool_call> "): 0.0,
        },
    ),
    *examples_of(
        {"output": _TALK},
        {
            _TALK: 1.0,
            _TALK.replace("\n", " "): 0.0,
        },
    ),
    scope="opened",
)
"""1 if the completion has all fields whose tags occur anywhere in the reference answer, and
exactly one newline between the fields, otherwise 0. The published code does the same, but a
`<think>` that the chat template has opened does not count there, so that its value is always 0."""

correctness_reward = Reward(
    name="correctness",
    function=_correctness,
    low=LOW,
    high=HIGH,
    examples=(
        *examples_of(
            {"output": _CALL},
            {
                _CALL: 3.0,
                _CALL.replace("1", "true"): 3.0,  # Python's 1 == True
                _CALL.replace("1", "2"): 1.0,
                _CALL.replace("{", "{\n"): -3.0,  # one line per call
            },
        ),
        Example(_CALL, {"output": _TALK}, 0.0),
        Example(_CALL, {"output": _CALL.replace(" a ", " a <tool_call> ")}, None),
    ),
)
"""The published correctness in [-3, 3]. If a line in the reference answer's first block is not
valid JSON, the published code raises an exception. This reward then returns `None`."""
