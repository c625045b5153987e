"""Converts rows of tool-calling datasets to ToolRL's prompt and reference answer.

| dataset | columns |
|---|---|
| ToolRL, supervised (`rlla_sft.json`) | `instruction`, `input`, `output` |
| ToolRL, training (`rlla_4k`) | `prompt` (messages), `reward_model.ground_truth` |
| API-Bank in ToolRL's prompt | `system`, `user`, `answer` (a list, or as a Python literal) |
| xLAM, Hammer's original rows | `query` (text or messages), `tools`, `answers` (JSON or lists) |
| Hammer's own prompt | `instruction` (everything), `input` (empty), `output` (calls as JSON) |
| ToolACE | `system`, `conversations` (`from`: user, assistant, tool; `value`) |
| Seal-Tools (fine-tuning files) | `conversations` (`from`: human, gpt; `value`) |

In ToolACE rows, the last assistant turn is the reference answer, with calls or a response. Earlier
turns form the dialogue, as in ToolRL. The functions are read from the system text, whose other
instructions are dropped, because ToolRL's prompt has its own.

In rows with Hammer's own prompt (versions 2.0 and 2.1), the instructions are dropped. Version 2.1
has separate turns. The single text of version 2.0 becomes one user turn.

In Seal-Tools rows, a value such as `API_call_3` is the name of the result of an earlier call. The
prompt explains these names, and each tool's description lists its results.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gdpo._text import describe
from gdpo.errors import DataError
from gdpo.lab.tasks.rows import json_in, mapping_of, messages_at, text_at
from gdpo.lab.tasks.tool_calling._rewards import gold_calls
from gdpo.lab.tasks.tool_calling.calls import JsonObject, read_calls, read_literal, starts_calls
from gdpo.lab.tasks.tool_calling.prompt import tool_prompt, write_completion
from gdpo.rewards import Reference
from gdpo.rewards.task import Message, Problem, Row, without_arrays

_Read: TypeAlias = tuple[list[Message], str, str]
"""The prompt of a row, the completion that answers it, and the column of the answer."""

_THINKING = "The tools and what they need are at hand."
_THINKING_OF_ANSWER = "What is needed for an answer is at hand."
"""Thinking text for turns that have no thinking in the row. No reward depends on this text."""

_RESPONSES = (
    "What the calls give back is numbered over all calls, in their order: API_call_0, API_call_1 "
    "and so on. A parameter may have such a name as its value."
)
"""Explanation of the Seal-Tools convention, which the original rows also explain to the model."""

_HAMMER_TOOLS = re.compile(
    r"\[BEGIN OF AVAILABLE TOOLS\](.*?)\[END OF AVAILABLE TOOLS\]", re.DOTALL
)
_HAMMER_QUERY = re.compile(r"\[BEGIN OF QUERY\](.*)\[END OF QUERY\]", re.DOTALL)
_HAMMER_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_HAMMER_REQUEST = "Generate API Request:"
"""Text at the end of API-Bank rows."""

_FUNCTIONS = re.compile(r"\[\s*[{\]]")
_MOST_LISTS = 8
"""Maximum number of positions in a system text that are tried as the start of a list of
functions."""


def read_row(row: Row) -> Problem:
    """Return the prompt and reference answer of a row. The format is detected from the columns."""
    row = without_arrays(row)
    whole = (read for columns, read in _SHAPES.items() if all(c in row for c in columns))
    prompt, output, place = next(whole, _training)(row)
    try:
        gold_calls(output)
    except DataError as error:
        raise DataError(f"column {place!r}: {error}") from error
    return Problem(prompt, {"output": output})


def gold_completion(reference: Reference) -> str:
    return reference["output"]


def _supervised(row: Row) -> _Read:
    instruction, given = text_at(row, "instruction"), row.get("input")
    if given is None or given == "":
        return _hammer(instruction, text_at(row, "output"))
    return _asked(instruction, text_at(row, "input")), text_at(row, "output"), "output"


def _training(row: Row) -> _Read:
    prompt = messages_at(row, "prompt")
    return prompt, text_at(row, "reward_model", "ground_truth"), "reward_model.ground_truth"


def _api_bank(row: Row) -> _Read:
    calls = row["answer"]
    if isinstance(calls, str):
        calls = _literal(calls, "answer")
    prompt = _asked(text_at(row, "system"), text_at(row, "user"))
    return prompt, _written(_calls(calls, "answer", "parameters")), "answer"


def _xlam(row: Row) -> _Read:
    tools, answers = _json_at(row, "tools"), _objects(_json_at(row, "answers"), "answers")
    if isinstance(row["query"], list):
        said = _objects(row["query"], "query")
        turns = [(str(turn.get("role")), str(turn.get("content"))) for turn in said]
    else:
        turns = [("user", text_at(row, "query"))]
    # Hammer's rows from Seal-Tools use different names for both keys.
    named = ("parameters", "tool") if answers and "tool" in answers[0] else ("arguments", "name")
    calls = _calls(answers, "answers", *named)
    return _hammer_prompt(_objects(tools, "tools"), turns, "query"), _written(calls), "answers"


def _hammer(instruction: str, output: str) -> _Read:
    """Read a row with Hammer's own prompt and with calls as JSON in a code fence."""
    listed = _HAMMER_TOOLS.search(instruction)
    if listed is None:
        raise DataError(
            "column 'input' is empty, and column 'instruction' is not Hammer's prompt, which must "
            "contain [BEGIN OF AVAILABLE TOOLS] … [END OF AVAILABLE TOOLS]"
        )
    tools = _objects(json_in(listed[1], "instruction"), "instruction")
    if whole := _HAMMER_QUERY.search(instruction):  # version 2.0
        turns = [("user", whole[1])] if whole[1].strip() else []
    else:  # version 2.1, in which the first turn is that of the system
        turns = [(turn[1], turn[2]) for turn in _HAMMER_TURN.finditer(instruction)][1:]
    if not turns:
        raise DataError(
            "column 'instruction' contains no question: add text after [BEGIN OF QUERY], or a user "
            "turn"
        )
    prompt = _hammer_prompt(tools, turns, "instruction")
    calls = _calls(json_in(output.strip().strip("`"), "output"), "output", "arguments")
    return prompt, _written(calls), "output"


def _hammer_prompt(
    tools: Sequence[JsonObject], turns: Sequence[tuple[str, str]], place: str
) -> list[Message]:
    """Return ToolRL's prompt for the tools and turns of a Hammer row.

    In Hammer, `assistant` turns call tools, and `agent` turns respond to the user. A tool's
    separate list of required parameters is moved into its `parameters`.
    """
    dialogue: list[Message] = []
    for who, said in turns:
        text = said.strip().removesuffix(_HAMMER_REQUEST).strip()
        if who == "agent":
            text = write_completion(_THINKING_OF_ANSWER, response=text)
        elif who == "assistant":
            calls = _calls(json_in(text.strip("`"), place), place, "arguments")
            text = write_completion(_THINKING, calls)
        dialogue.append({"role": "assistant" if who == "agent" else who, "content": text})
    documented = [
        {**tool, "parameters": {"properties": tool.get("parameters"), "required": required}}
        if (required := tool.get("required")) is not None
        else tool
        for tool in tools
    ]
    return tool_prompt(documented, dialogue)


def _toolace(row: Row) -> _Read:
    tools = _functions(text_at(row, "system"))
    names = [str(tool.get("name")) for tool in tools]
    turns = _turns(row, ("user", "assistant", "tool"))
    last = max((i for i, (who, _) in enumerate(turns) if who == "assistant"), default=0)
    if not any(who == "user" for who, _ in turns[:last]):
        raise DataError("column 'conversations' must have an assistant turn after a user turn")
    dialogue = [
        {"role": who, "content": value if who != "assistant" else _toolace_turn(value, names, i)}
        for i, (who, value) in enumerate(turns[: last + 1])
    ]
    output = dialogue.pop()["content"]
    return tool_prompt(tools, dialogue), output, f"conversations[{last}].value"


def _toolace_turn(value: str, names: list[str], number: int) -> str:
    text = value.strip()
    if not starts_calls(text, names):
        return write_completion(_THINKING_OF_ANSWER, response=text)
    try:
        calls, rest = read_calls(text, names)
    except DataError as error:
        raise DataError(f"column 'conversations[{number}].value': {error}") from error
    return write_completion(_THINKING, calls, rest or None)


def _functions(system: str) -> list[JsonObject]:
    for _, start in zip(range(_MOST_LISTS), _FUNCTIONS.finditer(system), strict=False):
        try:
            found, _ = json.JSONDecoder().raw_decode(system, start.start())
        except (ValueError, RecursionError):
            continue
        return [{"description": "", "parameters": {}, **tool} for tool in _objects(found, "system")]
    raise DataError("column 'system' must contain a JSON list of functions")


def _seal(row: Row) -> _Read:
    turns = _turns(row, ("human", "gpt"))
    if [who for who, _ in turns] != ["human", "gpt"]:
        raise DataError("column 'conversations' must contain one turn from human and one from gpt")
    place = "conversations[0].value"
    _, listed, rest = turns[0][1].partition("api_list = ")
    tools, asks, rest = rest.partition('\ntask_instruction = "')
    query, ends, _ = rest.rpartition('"\nOutput:')
    if not (listed and asks and ends):
        raise DataError(
            f"column {place!r} must contain the Seal-Tools lines: 'api_list = […]', "
            "'task_instruction = \"…\"' and 'Output:'"
        )
    documented = [_seal_tool(tool) for tool in _objects(_literal(tools, place), place)]
    dialogue = [{"role": "user", "content": text} for text in (_RESPONSES, query)]
    calls = _literal(turns[1][1], "conversations[1].value")
    output = _written(_calls(calls, "conversations[1].value", "parameters", "api"))
    return tool_prompt(documented, dialogue), output, "conversations[1].value"


def _seal_tool(tool: JsonObject) -> JsonObject:
    try:
        name, described = text_at(tool, "api_name"), text_at(tool, "api_description")
        properties = mapping_of(tool.get("parameters"), "parameters")
        responses = mapping_of(tool.get("responses"), "responses")
    except DataError as error:
        raise DataError(f"column 'conversations[0].value', in api_list: {error}") from error
    return {
        "name": name,
        "description": f"{described}. Gives back: {', '.join(responses)}.",
        "parameters": {"properties": properties, "required": tool.get("required", [])},
    }


_SHAPES: Mapping[tuple[str, ...], Callable[[Row], _Read]] = {
    ("instruction", "input", "output"): _supervised,
    ("prompt", "reward_model"): _training,
    ("system", "user", "answer"): _api_bank,
    ("query", "tools", "answers"): _xlam,
    ("system", "conversations"): _toolace,
    ("conversations",): _seal,
}

COLUMNS = tuple(_SHAPES)


def _asked(system: str, user: str) -> list[Message]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _written(calls: list[JsonObject]) -> str:
    if calls:
        return write_completion(_THINKING, calls)
    return write_completion(_THINKING_OF_ANSWER, response="None of the tools can do that.")


def _calls(value: Any, column: str, parameters: str, name: str = "name") -> list[JsonObject]:
    calls = _objects(value, column)
    for i, call in enumerate(calls):
        if not isinstance(call.get(name), str) or not isinstance(call.get(parameters), Mapping):
            raise DataError(
                f"column '{column}[{i}]' must have {name!r} (text) and {parameters!r} (an object), "
                f"got {describe(call)}"
            )
    return [{"name": call[name], "parameters": dict(call[parameters])} for call in calls]


def _turns(row: Row, speakers: tuple[str, ...]) -> list[tuple[str, str]]:
    turns: list[tuple[str, str]] = []
    for i, turn in enumerate(_objects(row["conversations"], "conversations")):
        who, value = turn.get("from"), turn.get("value")
        if who not in speakers or not isinstance(value, str):
            raise DataError(
                f"column 'conversations[{i}]' must have 'from' (one of {', '.join(speakers)}) and "
                f"'value' (text), got {describe(turn)}"
            )
        turns.append((str(who), value))
    return turns


def _literal(text: str, column: str) -> Any:
    try:
        return read_literal(text)
    except DataError as error:
        raise DataError(f"column {column!r} cannot be parsed as a list: {error}") from error


def _objects(value: Any, column: str) -> list[JsonObject]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(f"column {column!r} must contain a list of objects, got {describe(value)}")
    return value


def _json_at(row: Row, column: str) -> Any:
    value = row.get(column)
    return json_in(value, column) if isinstance(value, str) else value
