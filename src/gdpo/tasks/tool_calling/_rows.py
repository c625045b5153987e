"""Reads rows of tool-calling datasets into ToolRL's prompt and gold text.

| shape | columns |
|---|---|
| ToolRL, supervised (`rlla_sft.json`) | `instruction`, `input`, `output` |
| ToolRL, training (`rlla_4k`) | `prompt` (messages), `reward_model.ground_truth` |
| API-Bank in ToolRL's prompt | `system`, `user`, `answer` (a list, or as a Python literal) |
| xLAM and Hammer | `query`, `tools`, `answers` (JSON) |
"""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from gdpo.errors import DataError
from gdpo.rewards import Reference
from gdpo.tasks._columns import describe, messages_at, text_at
from gdpo.tasks._task import Message, Row, Sample
from gdpo.tasks.tool_calling._correctness import gold_calls
from gdpo.tasks.tool_calling._prompt import tool_prompt, write_completion

_THINKING = "The tools and what they need are at hand."
"""What stands in the thinking of a gold text where the row has none: no reward reads it."""

_LONGEST = 100_000
"""Characters of an answer that is a Python literal."""


def read_row(row: Row) -> Sample:
    """A prompt and a gold text; by the first shape whose columns the row has.

    Raises:
        DataError: A value is no text, a message is none, or the gold text's calls cannot be read.
    """
    whole = (read for columns, read in _SHAPES.items() if all(c in row for c in columns))
    prompt, output, place = next(whole, _training)(row)
    try:
        gold_calls(output)
    except DataError as error:
        raise DataError(f"column {place!r}: {error}") from error
    return Sample(prompt, {"output": output})


def gold_completion(reference: Reference) -> str:
    """The gold text itself: it is a completion."""
    return reference["output"]


def _supervised(row: Row) -> tuple[list[Message], str, str]:
    return (
        _asked(text_at(row, "instruction"), text_at(row, "input")),
        text_at(row, "output"),
        "output",
    )


def _training(row: Row) -> tuple[list[Message], str, str]:
    prompt = messages_at(row, "prompt")
    return prompt, text_at(row, "reward_model", "ground_truth"), "reward_model.ground_truth"


def _api_bank(row: Row) -> tuple[list[Message], str, str]:
    calls = row["answer"]
    if isinstance(calls, str):
        try:
            calls = ast.literal_eval(calls if len(calls) <= _LONGEST else "")
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise DataError(f"column 'answer' holds no list of calls: {error}") from error
    prompt = _asked(text_at(row, "system"), text_at(row, "user"))
    return prompt, _written(_calls(calls, "answer", "parameters")), "answer"


def _xlam(row: Row) -> tuple[list[Message], str, str]:
    tools, answers = _json_at(row, "tools"), _json_at(row, "answers")
    asked = [{"role": "user", "content": text_at(row, "query")}]
    calls = _calls(answers, "answers", "arguments")
    return tool_prompt(_objects(tools, "tools"), asked), _written(calls), "answers"


_SHAPES: Mapping[tuple[str, ...], Callable[[Row], tuple[list[Message], str, str]]] = {
    ("instruction", "input", "output"): _supervised,
    ("prompt", "reward_model"): _training,
    ("system", "user", "answer"): _api_bank,
    ("query", "tools", "answers"): _xlam,
}

COLUMNS = tuple(_SHAPES)


def _asked(system: str, user: str) -> list[Message]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _written(calls: list[dict[str, Any]]) -> str:
    """A gold text: calls, or, where no tool fits, a response."""
    if calls:
        return write_completion(_THINKING, calls)
    return write_completion(_THINKING, response="None of the tools can do that.")


def _calls(value: Any, column: str, parameters: str) -> list[dict[str, Any]]:
    calls = _objects(value, column)
    for i, call in enumerate(calls):
        if not isinstance(call.get("name"), str) or not isinstance(call.get(parameters), Mapping):
            raise DataError(
                f"column '{column}[{i}]' must have a 'name' that is text, and {parameters!r} that "
                f"is an object, got {describe(call)}"
            )
    return [{"name": call["name"], "parameters": dict(call[parameters])} for call in calls]


def _objects(value: Any, column: str) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", value)
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in items):
        raise DataError(f"column {column!r} must hold a list of objects, got {describe(value)}")
    return items


def _json_at(row: Row, column: str) -> Any:
    value = row.get(column)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"column {column!r} is no JSON: {error}") from error
