"""Rows of coding datasets as prompts, tests and, where there is one, a solution."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gdpo.errors import DataError
from gdpo.rewards import Reference
from gdpo.tasks.coding._rows import (
    TestsOfRow,
    code_contests_tests,
    ground_truth_tests,
    humaneval_tests,
    input_output_tests,
    leetcode_tests,
    mbpp_tests,
)
from gdpo.tasks.coding.plus import PLUS_LIMITS, is_plus, mbpp_plus_tests
from gdpo.tasks.rows import describe, messages_at, text_at, without_arrays
from gdpo.tasks.task import Message, Problem, Row

_REQUEST = (
    "Think it through first. Then give the whole program in one block that begins with ```python "
    "and ends with ```."
)
_STREAMS = "The program reads from standard input and writes to standard output."
_PYTHON3 = 3
"""What CodeContests calls the language."""


def _mbpp(row: Row) -> str:
    tests = "\n".join(row["test_list"])
    task = text_at(row, "text" if row.get("text") is not None else "prompt")
    return f"{task.strip()}\n\nIt must pass these tests:\n```python\n{tests}\n```"


def _humaneval(row: Row) -> str:
    return f"Complete this Python function:\n```python\n{text_at(row, 'prompt').rstrip()}\n```"


def _leetcode(row: Row) -> str:
    return text_at(row, "query").strip()


def _question(row: Row) -> str:
    starter = row.get("starter_code")
    begun = isinstance(starter, str) and starter.strip()
    form = f"Begin with this:\n```python\n{starter}\n```" if begun else _STREAMS
    return f"{text_at(row, 'question').strip()}\n\n{form}"


def _description(row: Row) -> str:
    return f"{text_at(row, 'description').strip()}\n\n{_STREAMS}"


def _first_of_list(row: Row) -> str | None:
    """APPS and TACO: a list of programs, often as JSON text."""
    held = row.get("solutions")
    if isinstance(held, str):
        try:
            held = json.loads(held) if held.strip() else []
        except (ValueError, RecursionError) as error:
            raise DataError(f"column 'solutions' is no JSON: {error}") from error
    programs = cast("list[Any]", held) if isinstance(held, list) else []
    return next((program for program in programs if isinstance(program, str)), None)


def _first_in_python(row: Row) -> str | None:
    """CodeContests: languages and programs side by side."""
    held = row.get("solutions")
    if not isinstance(held, Mapping):
        return None
    columns = cast("Mapping[str, Any]", held)
    pairs = zip(columns.get("language") or (), columns.get("solution") or (), strict=False)
    return next((program for language, program in pairs if language == _PYTHON3), None)


@dataclass(frozen=True)
class _Shape:
    """How the rows of a dataset are told, and what is read from them."""

    columns: tuple[str, ...]
    tests: Callable[[Row], TestsOfRow]
    problem: Callable[[Row], str] | None
    """None: the row brings its messages under `prompt`."""
    solution: Callable[[Row], str | None]


_SHAPES = (
    _Shape(("prompt", "reward_model"), ground_truth_tests, None, lambda _: None),
    _Shape(("prompt", "test_list", "test"), mbpp_plus_tests, _mbpp, lambda row: row.get("code")),
    _Shape(("text", "test_list"), mbpp_tests, _mbpp, lambda row: row.get("code")),
    _Shape(("prompt", "test_list"), mbpp_tests, _mbpp, lambda row: row.get("code")),
    _Shape(
        ("query", "prompt", "entry_point", "test"),
        leetcode_tests,
        _leetcode,
        lambda row: row.get("completion"),
    ),
    _Shape(
        ("prompt", "entry_point", "test"),
        humaneval_tests,
        _humaneval,
        lambda row: (
            f"{row['prompt']}{row['canonical_solution']}"
            if row.get("canonical_solution") is not None
            else None
        ),
    ),
    _Shape(("question", "input_output"), input_output_tests, _question, _first_of_list),
    _Shape(("description", "public_tests"), code_contests_tests, _description, _first_in_python),
)

COLUMNS = tuple(shape.columns for shape in _SHAPES)


def read_row(row: Row) -> Problem:
    """A prompt, the tests, and a program that should pass them, if the row has one.

    Raises:
        DataError: A value cannot be used; the message names the column.
    """
    row = without_arrays(row)
    shape = next(s for s in _SHAPES if all(column in row for column in s.columns))
    solution = shape.solution(row)
    if solution is not None and not isinstance(solution, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"the row's solution must be text, got {describe(solution)}")
    limits = PLUS_LIMITS if is_plus(row) else None
    reference = {"tests": shape.tests(row), "limits": limits, "solution": solution}
    return Problem(_prompt(row, shape), reference)


def gold_completion(reference: Reference) -> str | None:
    """The row's solution as an answer."""
    solution = reference["solution"]
    return None if solution is None else f"<think>worked out</think>\n```python\n{solution}\n```"


def _prompt(row: Row, shape: _Shape) -> list[Message]:
    if shape.problem is None:
        return messages_at(row, "prompt")
    return [{"role": "user", "content": f"{shape.problem(row)}\n\n{_REQUEST}"}]
