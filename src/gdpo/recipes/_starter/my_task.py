"""The task of recipe.yaml: short questions that have a number as their answer."""

import re
from collections.abc import Mapping
from typing import Any

from gdpo.rewards import Example, Reference, Reward
from gdpo.tasks import Problem, Task


def read_row(row: Mapping[str, Any]) -> Problem:
    """Turn one line of problems.jsonl into a prompt and a reference."""
    return Problem(
        prompt=[{"role": "user", "content": row["question"]}],
        reference={"answer": row["answer"]},  # what the reward functions receive
    )


def score_correctness(completion: str, reference: Reference) -> float:
    """Return 1 if the first number in the response is the reference answer, else 0."""
    number = re.search(r"[0-9]+", completion)
    return 1.0 if number and number.group() == reference["answer"] else 0.0


correctness = Reward(
    "correctness",
    score_correctness,
    low=0.0,
    high=1.0,
    # Responses with known scores; gdpo.testing.check_reward(correctness) runs them.
    examples=(
        Example("It is 1.", {"answer": "1"}, 1.0),
        Example("0", {"answer": "1"}, 0.0),
        Example("no idea", {"answer": "1"}, 0.0),
    ),
)

TASK = Task(
    name="modulo",
    columns=(("question", "answer"),),  # the columns that a row must have
    read_row=read_row,
    rewards=(correctness,),
    # `gdpo check` scores both of these on every row.
    gold_completion=lambda reference: reference["answer"],  # must get the maximum
    bad_completion="I do not know.",  # must not get it
)
