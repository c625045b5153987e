"""Defines two ways to turn BFCL's rows into prompts and to read calls: gdpo's and ToolRL's.

`TOOLRL` follows the handler in `benchmarks/BFCL/rlla_qwen.py` of
https://github.com/qiancheng0/ToolRL (commit 8cee13e, Apache-2.0), to which the GDPO paper's authors
refer, and copies its prompts verbatim. Steps that this handler leaves to BFCL follow BFCL's code
for models without native tool calls: `base_handler.py` and `utils.py` of
https://github.com/ShishirPatil/gorilla at 58f96342, a commit of BFCL-v3 (24 May 2025).

`TOOLRL` also uses the handler's closing sentence for multi-turn rows, which BFCL ignores at that
commit. It is not known which commit the authors used.

`OURS` shows each tool's whole schema, adds no sentences, and reads calls as the `tool_calling` task
does.
"""

import copy
import importlib
import json
import multiprocessing
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import TypeAlias

from gdpo.lab.tasks.tool_calling.calls import DEEPEST, JsonObject, deeper, parse
from gdpo.lab.tasks.tool_calling.prompt import tool_prompt

Calls: TypeAlias = Sequence[tuple[str, JsonObject]]
"""Names and arguments of the calls in one step."""


_START_S = 60.0
"""Maximum time for the process to import the tools, in seconds."""


_CPU_S = 2
"""Maximum CPU time for one conversation, in seconds. BFCL's longest reference conversation takes
0.05 s."""


_EACH_S = 20.0
"""Maximum wall-clock time for one conversation, in seconds. The limit is long enough for a busy
machine."""


_MEMORY = 2 << 30


_LONGEST = 50_000
"""Maximum length of a tool's result, in characters. Longer results are truncated."""


_DIED = "Error during execution: the tool took too long"


_UNKNOWN = "unknown_tool_{}()"
"""Call to a nonexistent tool, which results in an error in BFCL."""


_SHARED = ("CREDIT_CARD_EXTENSION", "BOOKING_RECORD_EXTENSION")


_NAME = re.compile(r"[a-zA-Z_]\w*", re.ASCII)


_numbers = count()


def as_python(calls: Calls, known: Sequence[str]) -> list[str]:
    """Return calls as Python text for BFCL. A call to an unknown tool becomes a call that fails."""
    return [
        f"{name}(**{dict(arguments)!r})"
        if name in known and _NAME.fullmatch(name)
        else _UNKNOWN.format(i)
        for i, (name, arguments) in enumerate(calls)
    ]


def run_tools(talks: Sequence[JsonObject]) -> list[list[list[str]]]:
    """Run the calls of conversations in a separate process. Return results by step and call.

    Each conversation has an `entry` (a row of BFCL) and `steps` (the calls, from `as_python`).
    """
    with suppress(subprocess.SubprocessError, ValueError):
        ended = subprocess.run(
            [sys.executable, "-P", __file__],
            input=json.dumps(list(talks)).encode(),
            capture_output=True,
            timeout=_START_S + _EACH_S * len(talks),
            check=True,
        )
        return json.loads(ended.stdout)
    if len(talks) > 1:  # one conversation ended the process of all: run each separately
        return [run_tools([talk])[0] for talk in talks]
    return [[[_DIED] * len(step) for step in talks[0]["steps"]]]


def play(entry: JsonObject, steps: Sequence[Sequence[str]]) -> list[list[str]]:
    """Run the calls of all steps in this process, from the row's initial state."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    answers: list[list[str]] = []
    with fresh_tools() as name:
        for step in steps:
            results, _ = multi_turn_utils.execute_multi_turn_func_call(
                list(step),
                entry["initial_config"],
                entry["involved_classes"],
                name,
                entry["id"],
                long_context="long_context" in entry["id"],
            )
            answers.append([str(result)[:_LONGEST] for result in results])
    return answers


@contextmanager
def fresh_tools() -> Generator[str]:
    """Yield a new model name for BFCL. Restore BFCL's state afterwards.

    BFCL's globals store tools by model name, and all travel agencies share their credit cards and
    bookings.
    """
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import travel_booking

    records = [getattr(travel_booking, name) for name in _SHARED]
    before = copy.deepcopy(records)
    name = f"gdpo{next(_numbers)}x"
    try:
        yield name
    finally:
        kept = multi_turn_utils.__dict__
        for key in [key for key in kept if key.startswith(f"{name}_")]:
            del kept[key]
        for record, was in zip(records, before, strict=True):
            record.clear()
            record.update(was)


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    talks = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr  # tools may print
    # Import once, before the forks.
    importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    json.dump([_apart(talk) for talk in talks], answers)


def _apart(talk: JsonObject) -> list[list[str]]:
    """Run `play` in a forked process, killed at the time limit.

    The fork discards state that some tools store outside their instances.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_play_and_send, args=(talk, there))
    child.start()
    there.close()
    try:
        answers = here.recv() if here.poll(_EACH_S) else None
    except EOFError:  # the process died
        answers = None
    child.kill()
    child.join()
    return answers or [[_DIED] * len(step) for step in talk["steps"]]


def _play_and_send(talk: JsonObject, parent: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    parent.send(play(talk["entry"], talk["steps"]))


if __name__ == "__main__":
    _main()


Messages: TypeAlias = Sequence[Mapping[str, str]]
Tools: TypeAlias = Sequence[JsonObject]
Ask: TypeAlias = Callable[[Tools, Messages], list[dict[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """Defines how BFCL's rows become prompts and how calls are read."""

    name: str
    """First part of the names of the handler's benchmarks, before `_` and the category."""
    ask: Ask
    """Returns the prompt of a single-turn row, from its tools and the dialogue."""
    ask_in_turns: Ask
    """Returns the next prompt of a multi-turn row, from its tools and the dialogue so far."""
    calls: Callable[[str], Calls]
    """Returns the calls to compare with the reference answer. Empty: no parseable call."""
    runs: Callable[[str], Calls]
    """Returns the calls to execute. Empty: the turn ends."""
    tool_messages: Callable[[Calls, Sequence[str]], list[str]]
    """Returns the messages that show the results of the calls to the model."""
    lists_new_tools: bool
    """Whether tools that are added in a later turn are listed from that turn on. If False, the
    user's message of that turn describes the new tools."""


def _ask_ours(tools: Tools, dialogue: Messages) -> list[dict[str, str]]:
    rest = [message for message in dialogue if message["role"] != "system"]
    system = [message["content"] for message in dialogue if message["role"] == "system"]
    if system:
        # ToolRL's prompt has its own system message, so the row's precedes the first turn.
        rest = [{"role": "user", "content": "\n\n".join(system)}, *rest]
    return tool_prompt(tools, rest)


def _calls_ours(text: str) -> Calls:
    return [(call.name, call.parameters) for call in parse(text).calls or ()]


def _tool_messages_ours(calls: Calls, results: Sequence[str]) -> list[str]:
    results_of = zip(calls, results, strict=True)
    return [json.dumps([{"name": name, "results": result} for (name, _), result in results_of])]


OURS = Handler(
    name="bfcl",
    ask=_ask_ours,
    ask_in_turns=_ask_ours,
    calls=_calls_ours,
    runs=_calls_ours,
    tool_messages=_tool_messages_ours,
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
_CONTINUE = (
    "If you think you have completed the current task, or the task cannot be finished, please "
    "respond directly without additional tool calls. If you encounter an error during tool "
    "execution or the task remains unfinished, retry with the one or more necessary tool calls "
    "according to your thought and plan until completion. Based on the tool execution feedback, "
    "reflect on if understanding or selectioin of tool is wrong, what tool calling step is "
    "missing, and how to achieve the task goal from now on."
)
"""User message after tool results, with the spelling of ToolRL's handler."""


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
        said += f"\n<user> {_CONTINUE} </user>"
    return [
        {**system, "content": system["content"] + "\n"},
        {**history, "content": (history["content"] + said).strip()},
    ]


def _lines_toolrl(text: str) -> list[JsonObject]:
    """Return the JSON objects in the last `<tool_call>`, even an unclosed one. Skip other lines."""
    _, opening, block = text.rpartition("<tool_call>")
    lines = block.partition("</tool_call>")[0].strip().split("\n") if opening else []
    found: list[JsonObject] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            found += [value] if isinstance(value, dict) and not deeper(value, DEEPEST) else []
    return found


def _calls_toolrl(text: str) -> Calls:
    whole = [line for line in _lines_toolrl(text) if {"name", "parameters"} <= set(line)]
    return _meant(line for line in whole if isinstance(line["name"], str))


def _runs_toolrl(text: str) -> Calls:
    """Return the calls to execute. The result of a call without a name is an error."""
    lines = [{"name": "", "parameters": {}, **line} for line in _lines_toolrl(text)]
    return _meant(lines) if all(isinstance(line["name"], str) for line in lines) else []


def _meant(lines: Iterable[JsonObject]) -> Calls:
    """Return the calls not named "None", or none if any call's parameters are not an object."""
    meant = [line for line in lines if line["name"].strip().lower() != "none"]
    if not all(isinstance(line["parameters"], dict) for line in meant):
        return []
    return [(line["name"], line["parameters"]) for line in meant]


def _tool_messages_toolrl(calls: Calls, results: Sequence[str]) -> list[str]:
    messages: list[str] = []
    for (name, parameters), result in zip(calls, results, strict=True):
        arguments = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
        call = f"{name}({arguments})".strip()
        messages.append(f"You have made the tool call {call}. Execution returns: {result.strip()}")
    return messages


TOOLRL = Handler(
    name="bfcl_toolrl",
    ask=partial(_ask_toolrl, closing=_AT_ONCE),
    ask_in_turns=partial(_ask_toolrl, closing=_IN_TURNS),
    calls=_calls_toolrl,
    runs=_runs_toolrl,
    tool_messages=_tool_messages_toolrl,
    lists_new_tools=False,
)

HANDLERS = (OURS, TOOLRL)
