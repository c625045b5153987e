"""Defines the task for recipe.yaml: short questions, each with a number as the answer."""

import re
from collections.abc import Mapping
from typing import Any

from gdpo.lab.tasks import Problem, Task
from gdpo.rewards import Example, Reference, Reward


def read_row(row: Mapping[str, Any]) -> Problem:
    """Return the prompt and the reference for one line of problems.jsonl."""
    return Problem(
        prompt=[{"role": "user", "content": row["question"]}],
        reference={"answer": row["answer"]},  # passed to the reward functions
    )


def score_correctness(completion: str, reference: Reference) -> float:
    """Return 3 if the reference answer is the only number in the response, else -3."""
    return 3.0 if re.findall(r"[0-9]+", completion) == [reference["answer"]] else -3.0


correctness = Reward(
    "correctness",
    score_correctness,
    low=-3.0,  # a range as in tool calling with GDPO: six times that of brevity
    high=3.0,
    # Responses with known scores. gdpo.testing.check_reward(correctness) tests them.
    examples=(
        Example("It is 1.", {"answer": "1"}, 3.0),
        Example("0", {"answer": "1"}, -3.0),
        Example("0 or 1", {"answer": "1"}, -3.0),
        Example("no idea", {"answer": "1"}, -3.0),
    ),
)

TASK = Task(
    name="modulo",
    columns=(("question", "answer"),),  # required columns of a row
    read_row=read_row,
    rewards=(correctness,),
    # `gdpo check` scores both responses on every row.
    gold_completion=lambda reference: reference["answer"],  # must get the maximum of every reward
    bad_completion="I do not know.",  # must score below the maximum
)
