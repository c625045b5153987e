"""Defines the task of the experiment on a pretrained model: sums and products with three rewards.

A problem is `54 + 19 =` or `13 * 7 =`. The rewards, in order:

- **correctness** (-3 or 3, the range of the paper's tool calling): the last number is the result.
- **equation** (0 or 1): the response repeats the problem and continues with a number.
- **tags** (0 or 1): the response ends with `<answer>NUMBER</answer>`.
"""

import re
from typing import Any

import numpy as np

from gdpo.errors import DataError
from gdpo.lab.tasks import Problem, Task
from gdpo.rewards import Example, Reward

_NUMBER = re.compile(r"-?[0-9]+")
_TAGS = re.compile(r"<answer>\s*-?[0-9]+\s*</answer>\s*\Z")


def draw(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return different problems: sums and differences of two, sums of three, and products."""
    rng, found = np.random.default_rng(seed), dict[str, int]()
    while len(found) < count:
        problem, result = _drawn(int(rng.integers(3)), rng)
        found[problem] = result
    return [{"problem": problem, "result": result} for problem, result in found.items()]


def _drawn(kind: int, rng: np.random.Generator) -> tuple[str, int]:
    if kind == 0:
        a, b = (int(each) for each in rng.integers(1, 99, 2, endpoint=True))
        return (f"{a} + {b}", a + b) if rng.random() < 0.5 else (f"{a} - {b}", a - b)
    if kind == 1:
        a, b, c = (int(each) for each in rng.integers(1, 19, 3, endpoint=True))
        return f"{a} + {b} + {c}", a + b + c
    a, b = int(rng.integers(2, 49, endpoint=True)), int(rng.integers(2, 9, endpoint=True))
    return f"{a} * {b}", a * b


def prompt(problem: str) -> list[dict[str, str]]:
    """Return the messages. Without a system message, the chat template adds one of 24 tokens."""
    return [{"role": "system", "content": ""}, {"role": "user", "content": f"{problem} ="}]


def _read_row(row: Any) -> Problem:
    problem, result = row["problem"], row["result"]
    if not isinstance(problem, str) or not isinstance(result, int):
        raise DataError(
            f"problem must be a text and result an integer, got {problem!r} and {result!r}"
        )
    return Problem(prompt(problem), {"problem": problem, "result": result})


def _correctness(completion: str, reference: Any) -> float:
    numbers = _NUMBER.findall(completion)
    return 3.0 if numbers and int(numbers[-1][:20]) == reference["result"] else -3.0


def _equation(completion: str, reference: Any) -> float:
    return float(re.search(re.escape(reference["problem"]) + r" = -?[0-9]", completion) is not None)


def _tags(completion: str, _reference: Any) -> float:
    return float(_TAGS.search(completion) is not None)


def _gold(reference: Any) -> str:
    result = reference["result"]
    return f"{reference['problem']} = {result}\n<answer>{result}</answer>"


_ROW = {"problem": "6 * 7", "result": 42}

ARITHMETIC = Task(
    name="arithmetic",
    columns=(("problem", "result"),),
    read_row=_read_row,
    rewards=(
        Reward(
            "correctness",
            _correctness,
            -3.0,
            3.0,
            (Example("The answer is 42.", _ROW, 3.0), Example("42 or 43", _ROW, -3.0)),
        ),
        Reward(
            "equation",
            _equation,
            0.0,
            1.0,
            (Example("6 * 7 = 41", _ROW, 1.0), Example("The answer is 42.", _ROW, 0.0)),
        ),
        Reward(
            "tags",
            _tags,
            0.0,
            1.0,
            (Example("It is <answer>41</answer>", _ROW, 1.0), Example("42", _ROW, 0.0)),
        ),
    ),
    gold_completion=_gold,
    bad_completion="I do not know.",
)
"""The task of the experiment."""
