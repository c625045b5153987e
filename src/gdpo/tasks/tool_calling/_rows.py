"""Reads ToolRL's rows, in both shapes in which they are published."""

from typing import Any, cast

from gdpo.errors import DataError
from gdpo.rewards import Reference
from gdpo.tasks._columns import describe, mapping_of, text_at
from gdpo.tasks._task import Message, Row, Sample
from gdpo.tasks.tool_calling._correctness import gold_calls

COLUMNS = (("instruction", "input", "output"), ("prompt", "reward_model"))
"""The supervised shape (`rlla_sft.json`) and the training shape (`rlla_4k/train.parquet`)."""

_ROLES = ("system", "user", "assistant")


def read_row(row: Row) -> Sample:
    """A prompt and a gold text, from either shape of row; the supervised one where a row has both.

    Raises:
        DataError: A value is no text, a message is none, or the gold text's calls cannot be read.
    """
    if all(column in row for column in COLUMNS[0]):
        prompt = [
            {"role": "system", "content": text_at(row, "instruction")},
            {"role": "user", "content": text_at(row, "input")},
        ]
        place, output = "output", text_at(row, "output")
    else:
        prompt = _messages(row.get("prompt"))
        place, output = "reward_model.ground_truth", text_at(row, "reward_model", "ground_truth")
    try:
        gold_calls(output)
    except DataError as error:
        raise DataError(f"column {place!r}: {error}") from error
    return Sample(prompt, {"output": output})


def gold_completion(reference: Reference) -> str:
    """The gold text itself: it is a completion."""
    return reference["output"]


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise DataError(
            "column 'prompt' must hold a list of messages with role and content, "
            f"got {describe(value)}"
        )
    return [_message(item, i) for i, item in enumerate(cast("list[Any]", value))]


def _message(value: Any, index: int) -> Message:
    place = f"prompt[{index}]"
    fields = mapping_of(value, place)
    role, content = fields.get("role"), fields.get("content")
    if role not in _ROLES:
        raise DataError(
            f"column '{place}.role' must be one of {', '.join(_ROLES)}, got {describe(role)}"
        )
    if not isinstance(content, str):
        raise DataError(f"column '{place}.content' must hold text, got {describe(content)}")
    return {"role": role, "content": content}
