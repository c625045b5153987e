"""How BFCL's rows are put to a model, and which calls its messages hold: ours, and ToolRL's.

Asked how they evaluated, the paper's authors point to ToolRL: `TOOLRL` is its handler, written
from `benchmarks/BFCL/rlla_qwen.py` of https://github.com/qiancheng0/ToolRL (commit 8cee13e,
Apache-2.0); the sentences are its own, to the letter, because what a model answers depends on them.
What it leaves to BFCL is done as BFCL does it for models without an interface for calls: see
`base_handler.py` and `utils.py` of https://github.com/ShishirPatil/gorilla at 58f96342, a
commit of BFCL-v3 (24 May 2025).

The handler has a sentence of its own for several turns, which BFCL at that commit never asks it
for. It is used here, as it was meant; which BFCL the authors had is not known.

`OURS` shows the whole schema of a tool, adds no sentence, and reads calls as the task
`tool_calling` does.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from gdpo.evaluation._bfcl_tools import Calls
from gdpo.tasks.tool_calling import tool_prompt
from gdpo.tasks.tool_calling._calls import DEEPEST, deeper
from gdpo.tasks.tool_calling._parsing import parse

Messages: TypeAlias = Sequence[Mapping[str, str]]
Tools: TypeAlias = Sequence[Mapping[str, Any]]
Ask: TypeAlias = Callable[[Tools, Messages], list[dict[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One way to ask BFCL's questions and to read the calls of what comes back."""

    name: str
    """Its benchmarks are called this, `_` and the category."""
    ask: Ask
    """The prompt of a row with one turn, from its tools and the dialogue."""
    ask_in_turns: Ask
    """The prompt within several turns, from the tools and the dialogue so far."""
    calls: Callable[[str], Calls]
    """The calls that are compared with the answers; none if none can be read."""
    runs: Callable[[str], Calls]
    """The calls that are carried out; none ends the turn."""
    told: Callable[[Calls, Sequence[str]], list[str]]
    """What the model reads of what its calls gave back."""
    lists_new_tools: bool
    """Whether tools that come in a later turn are listed with the others from there on. Else the
    user's message of that turn describes them."""


def _ask_ours(tools: Tools, dialogue: Messages) -> list[dict[str, str]]:
    rest = [message for message in dialogue if message["role"] != "system"]
    told = [message["content"] for message in dialogue if message["role"] == "system"]
    if told:  # ToolRL's prompt has its own system message: what a row says there comes first
        rest = [{"role": "user", "content": "\n\n".join(told)}, *rest]
    return tool_prompt(tools, rest)


def _calls_ours(text: str) -> Calls:
    return [(call.name, call.parameters) for call in parse(text).calls or ()]


def _told_ours(calls: Calls, results: Sequence[str]) -> list[str]:
    told = zip(calls, results, strict=True)
    return [json.dumps([{"name": name, "results": result} for (name, _), result in told])]


OURS = Handler(
    name="bfcl",
    ask=_ask_ours,
    ask_in_turns=_ask_ours,
    calls=_calls_ours,
    runs=_calls_ours,
    told=_told_ours,
    lists_new_tools=True,
)

_AT_ONCE = (
    "If there's no appropriate tools to apply or required parameters are missing, please directly "
    "inform me in your response without any tool call, or call the tool with the name as 'None'. "
    "Otherwise, you should use one or more necessary tool calls to complete the given task in this "
    "turn."
)
_IN_TURNS = (
    "Use the one or more necessary tool calls to complete the task. You could perform tool calls "
    "for multiple rounds so you can try and error. Please make a comprehensive plan about how to "
    "achieve the goal step by step, and begin to call the tool step by step. If no tools apply or "
    "required parameters are missing, please also directly state this in your response without "
    "tool calls."
)
_GO_ON = (
    "If you think you have completed the current task, or the task cannot be finished, please "
    "respond directly without additional tool calls. If you encounter an error during tool "
    "execution or the task remains unfinished, retry with the one or more necessary tool calls "
    "according to your thought and plan until completion. Based on the tool execution feedback, "
    "reflect on if understanding or selectioin of tool is wrong, what tool calling step is "
    "missing, and how to achieve the task goal from now on."
)
"""What the user says after what the tools gave back, with the handler's own spelling."""


def _ask_toolrl(tools: Tools, dialogue: Messages, *, closing: str) -> list[dict[str, str]]:
    shown = [{**tool, "parameters": tool["parameters"].get("properties", {})} for tool in tools]
    system, history = tool_prompt(shown, [])
    forms = {
        "system": "",
        "user": f"<user> {{}}\n{closing} </user>\n",
        "assistant": "\n{}\n",
        "tool": "<obs> {} </obs>\n",
    }
    said = "".join(forms[m["role"]].format(m["content"].strip()) for m in dialogue)
    if dialogue[-1]["role"] == "tool":
        said += f"\n<user> {_GO_ON} </user>"
    return [
        {**system, "content": system["content"] + "\n"},
        {**history, "content": (history["content"] + said).strip()},
    ]


def _lines_toolrl(text: str) -> list[dict[str, Any]]:
    """The objects of the last `<tool_call>`, which need not be closed; other lines are skipped."""
    _, opening, block = text.rpartition("<tool_call>")
    lines = block.partition("</tool_call>")[0].strip().split("\n") if opening else []
    return [line for line in map(_json, lines) if line is not None]


def _json(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(value, dict) and not deeper(value, DEEPEST)
    return cast("dict[str, Any]", value) if known else None


def _calls_toolrl(text: str) -> Calls:
    whole = [line for line in _lines_toolrl(text) if {"name", "parameters"} <= set(line)]
    return _meant(line for line in whole if isinstance(line["name"], str))


def _runs_toolrl(text: str) -> Calls:
    """A line without a name is called, which is an error that the model reads."""
    lines = [{"name": "", "parameters": {}, **line} for line in _lines_toolrl(text)]
    return _meant(lines) if all(isinstance(line["name"], str) for line in lines) else []


def _meant(lines: Iterable[Mapping[str, Any]]) -> Calls:
    """All but those named "None"; nothing if one has parameters that are no object."""
    meant = [line for line in lines if line["name"].strip().lower() != "none"]
    if not all(isinstance(line["parameters"], dict) for line in meant):
        return []
    return [(line["name"], line["parameters"]) for line in meant]


def _told_toolrl(calls: Calls, results: Sequence[str]) -> list[str]:
    return [
        f"You have made the tool call {_python(*call).strip()}. Execution returns: {result.strip()}"
        for call, result in zip(calls, results, strict=True)
    ]


def _python(name: str, parameters: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"


TOOLRL = Handler(
    name="bfcl_toolrl",
    ask=partial(_ask_toolrl, closing=_AT_ONCE),
    ask_in_turns=partial(_ask_toolrl, closing=_IN_TURNS),
    calls=_calls_toolrl,
    runs=_runs_toolrl,
    told=_told_toolrl,
    lists_new_tools=False,
)

HANDLERS = (OURS, TOOLRL)
