"""Reads ToolRL's rows, in both shapes in which they are published."""

from gdpo.errors import DataError
from gdpo.rewards import Reference
from gdpo.tasks._columns import messages_at, text_at
from gdpo.tasks._task import Row, Sample
from gdpo.tasks.tool_calling._correctness import gold_calls

COLUMNS = (("instruction", "input", "output"), ("prompt", "reward_model"))
"""The supervised shape (`rlla_sft.json`) and the training shape (`rlla_4k/train.parquet`)."""


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
        prompt = messages_at(row, "prompt")
        place, output = "reward_model.ground_truth", text_at(row, "reward_model", "ground_truth")
    try:
        gold_calls(output)
    except DataError as error:
        raise DataError(f"column {place!r}: {error}") from error
    return Sample(prompt, {"output": output})


def gold_completion(reference: Reference) -> str:
    """The gold text itself: it is a completion."""
    return reference["output"]
