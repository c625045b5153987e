"""Defines the coding task with three rewards: passed tests, length and no bug.

A completion contains a Python program (see `gdpo.lab.rewards.code.extract_code`), which runs in the
sandbox against its row's tests. The rewards, in order:

- **pass_rate** in [0, 1]: share of the tests that passed.
- **length** in {0, 1}: the completion has at most 4,000 tokens.
- **no_bug** in {0, 1}: the program compiled, ran and stayed within its limits.

In the paper, length counts only if every test passes. To reproduce this, add a gate:

```yaml
rewards:
  - {name: pass_rate}
  - {name: length, gate: {on: pass_rate, at_least: 1}}
  - {name: no_bug}
```

The task reads rows of MBPP (both editions), HumanEval, EvalPlus (MBPP+ and HumanEval+),
LeetCodeDataset, APPS, TACO, CodeContests and the coding part of Eurus-2-RL. Each row's columns show
its dataset, so a file may mix several. `gdpo check` runs the Python solutions in the rows, and
reports an error if a test fails.

The prompts are our own, because the paper's are not published. Rows of Eurus-2-RL contain theirs.

Helper functions of the tests come from the row if available. A program that could define its own
`poly` would control how its results are checked.

Time limits in rows are ignored: they are for a single test and for compiled languages.

The task needs the `code` extra.

References:
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.3.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gdpo.errors import DataError
from gdpo.lab.rewards.code import no_bug, pass_rate
from gdpo.lab.tasks.evalplus import PLUS_LIMITS, is_plus, mbpp_plus_tests, parsed, plus_check
from gdpo.lab.tasks.rows import describe, json_in, messages_at, text_at, texts_in, value_at
from gdpo.rewards import Reference
from gdpo.rewards.length import token_limit
from gdpo.rewards.task import Problem, Row, Task, without_arrays

__all__ = ["TASK"]

TestsOfRow: TypeAlias = dict[str, Any]
"""The tests in a row: `kind`, and the keys that tests of this kind require."""

_PARTS = ("public_tests", "private_tests", "generated_tests")
_PYTHON3 = 3
"""Language code of Python 3 in CodeContests."""

_STREAMS = "The program reads from standard input and writes to standard output."
_REQUEST = (
    "Think it through first. Then give the whole program in one block that begins with ```python "
    "and ends with ```."
)


# Each of these functions returns the `tests` of `gdpo.lab.rewards.code`, or raises a DataError with
# the column's name.


def mbpp_tests(row: Row) -> TestsOfRow:
    """Return an MBPP row's tests: the asserts in `test_list`.

    `test_imports` (sanitized edition) and `test_setup_code` become the setup. In rows 367 and 927,
    it needs a `Node` class that only the reference solution defines, so other programs fail.
    """
    statements = texts_in(row.get("test_list"), "test_list")
    if not statements:
        raise DataError("column 'test_list' is empty. It must contain at least one test")
    for i, statement in enumerate(statements):
        parsed(statement, f"test_list[{i}]")
    imports = texts_in(row.get("test_imports") or [], "test_imports")
    setup = "\n".join([*imports, str(row.get("test_setup_code") or "")]).strip()
    parsed(setup, "test_setup_code")
    return {"kind": "asserts", "statements": statements, "setup": setup}


def humaneval_tests(row: Row) -> TestsOfRow:
    """Return a HumanEval row's tests: the asserts that `check(candidate)` reaches.

    The setup is the prompt without the function to be written: imports, and helper functions that
    some tests use (`poly`, `encode_cyclic`, `encode_shift`).
    """
    entry_point, prompt = text_at(row, "entry_point"), text_at(row, "prompt")
    tree = parsed(prompt, "prompt")
    beside = [node for node in tree.body if getattr(node, "name", None) != entry_point]
    if len(beside) == len(tree.body):
        raise DataError(f"column 'prompt' must contain the start of the function {entry_point!r}")
    code, setup = _code_at(row, "test", "check"), ast.unparse(ast.Module(beside, []))
    code = plus_check(code) if is_plus(row) else code
    return {"kind": "check", "code": code, "entry_point": entry_point, "setup": setup}


def leetcode_tests(row: Row) -> TestsOfRow:
    """Return a LeetCodeDataset row's tests: the asserts of `check`, with `prompt` as setup."""
    code, setup = _code_at(row, "test", "check"), text_at(row, "prompt")
    parsed(setup, "prompt")
    entry_point = text_at(row, "entry_point")
    return {"kind": "check", "code": code, "entry_point": entry_point, "setup": setup}


def input_output_tests(row: Row) -> TestsOfRow:
    """Return the tests in an APPS or TACO row.

    `input_output` contains `inputs` and `outputs`, as an object or as JSON text. With `fn_name`,
    each input is a list of arguments, and each output the expected return value. The function may
    be a method of a `Solution` class, as in the starter code, or a plain one. These are converted:

    - If every output of a row is a list with one item, this item is expected. (The published
      evaluator accepts both.)
    - Keys of an object become integers if all are integers as text, because JSON has only text
      keys.
    - Lists of lines of standard input or output are joined.
    """
    return _inputs_outputs(row, "input_output")


def ground_truth_tests(row: Row) -> TestsOfRow:
    """Return an Eurus-2-RL row's tests, in the format of `input_output` in APPS."""
    return _inputs_outputs(row, "reward_model", "ground_truth")


def code_contests_tests(row: Row) -> TestsOfRow:
    """Return the public, private and generated tests in a CodeContests row, in this order."""
    cases: list[list[str]] = []
    for part in _PARTS:
        if row.get(part) is not None:
            held = _object_at(row, part)
            cases += _stdio_cases(held.get("input"), held.get("output"), part)
    if not cases:
        raise DataError(
            f"the row has no tests. Add tests to at least one of the columns {', '.join(_PARTS)}"
        )
    return {"kind": "stdio", "cases": cases}


def _inputs_outputs(row: Row, *path: str) -> TestsOfRow:
    held, place = _object_at(row, *path), ".".join(path)
    stdio = held.get("fn_name") is None
    read = _stdio_cases if stdio else _call_cases
    cases = read(held.get("inputs"), held.get("outputs"), place)
    if not cases:
        raise DataError(f"column {place!r} has no tests, because 'inputs' is empty. Add a test")
    if stdio:
        return {"kind": "stdio", "cases": cases}
    name = text_at(held, "fn_name")
    if not name.isidentifier():
        raise DataError(f"column '{place}.fn_name' must be a function's name, got {name!r}")
    function = f"Solution().{name} if 'Solution' in globals() else {name}"
    return {"kind": "calls", "function": function, "cases": cases}


def _stdio_cases(inputs: Any, outputs: Any, place: str) -> list[list[str]]:
    pairs = _paired(inputs, outputs, place)
    return [[_stream(stdin, place, i), _stream(stdout, place, i)] for i, (stdin, stdout) in pairs]


def _stream(value: Any, place: str, index: int) -> str:
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise DataError(
            f"column {place!r}: inputs and outputs must be strings, or lists of lines, got "
            f"{describe(value)} in test {index}"
        )
    return "\n".join(lines)


def _call_cases(inputs: Any, outputs: Any, place: str) -> list[list[Any]]:
    pairs = _paired(inputs, outputs, place)
    wrapped = all(isinstance(value, list) and len(value) == 1 for _, (_, value) in pairs)
    cases: list[list[Any]] = []
    for i, (arguments, value) in pairs:
        if not isinstance(arguments, list):
            raise DataError(
                f"column {place!r}: with 'fn_name', each input must be a list of arguments, got "
                f"{describe(arguments)} in test {i}"
            )
        given = [_keyed(each) for each in arguments]
        cases.append([given, _keyed(value[0] if wrapped else value)])
    return cases


def _keyed(value: Any) -> Any:
    """Convert the keys of an object to integers if all are integers as text."""
    if not isinstance(value, dict):
        return value
    whole = bool(value) and all(key.removeprefix("-").isdecimal() for key in value)
    return {int(key): held for key, held in value.items()} if whole else value


def _paired(inputs: Any, outputs: Any, place: str) -> list[tuple[int, tuple[Any, Any]]]:
    for name, value in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(value, list):
            raise DataError(f"column {place!r}: the {name} must be a list, got {describe(value)}")
    if len(inputs) != len(outputs):
        raise DataError(
            f"column {place!r} has {len(inputs)} inputs but {len(outputs)} outputs. Use one "
            f"input and one output per test"
        )
    return list(enumerate(zip(inputs, outputs, strict=True)))


def _object_at(row: Row, *path: str) -> Mapping[str, Any]:
    """Return the object in a column, which may be JSON text."""
    place, value = ".".join(path), value_at(row, *path)
    if isinstance(value, str):
        value = json_in(value, place)
    if not isinstance(value, Mapping):
        raise DataError(
            f"column {place!r} must contain an object, or an object as JSON text, got "
            f"{describe(value)}"
        )
    return value


def _code_at(row: Row, column: str, function: str) -> str:
    code = text_at(row, column)
    if not any(getattr(node, "name", None) == function for node in parsed(code, column).body):
        raise DataError(f"column {column!r} must define the function {function!r}")
    return code


def _mbpp(row: Row) -> str:
    tests = "\n".join(row["test_list"])
    task = text_at(row, "text" if row.get("text") is not None else "prompt")
    return f"{task.strip()}\n\nIt must pass these tests:\n```python\n{tests}\n```"


def _humaneval(row: Row) -> str:
    return f"Complete this Python function:\n```python\n{text_at(row, 'prompt').rstrip()}\n```"


def _question(row: Row) -> str:
    starter = row.get("starter_code")
    begun = isinstance(starter, str) and starter.strip()
    form = f"Begin with this:\n```python\n{starter}\n```" if begun else _STREAMS
    return f"{text_at(row, 'question').strip()}\n\n{form}"


def _first_of_list(row: Row) -> str | None:
    """Return the first solution in an APPS or TACO row, or None."""
    held = row.get("solutions")
    if isinstance(held, str):
        held = json_in(held, "solutions") if held.strip() else []
    programs = held if isinstance(held, list) else []
    return next((program for program in programs if isinstance(program, str)), None)


def _first_in_python(row: Row) -> str | None:
    """Return the first Python solution in a CodeContests row, or None."""
    held = row.get("solutions")
    if not isinstance(held, Mapping):
        return None
    pairs = zip(held.get("language") or (), held.get("solution") or (), strict=False)
    return next((program for language, program in pairs if language == _PYTHON3), None)


@dataclass(frozen=True)
class _Shape:
    """Describes how to detect and read the rows of a dataset."""

    columns: tuple[str, ...]
    tests: Callable[[Row], TestsOfRow]
    problem: Callable[[Row], str] | None
    """Function that returns the problem text. None: the `prompt` column contains chat messages."""
    solution: Callable[[Row], Any]


_SHAPES = (
    _Shape(("prompt", "reward_model"), ground_truth_tests, None, lambda _: None),
    _Shape(("prompt", "test_list", "test"), mbpp_plus_tests, _mbpp, lambda row: row.get("code")),
    _Shape(("text", "test_list"), mbpp_tests, _mbpp, lambda row: row.get("code")),
    _Shape(("prompt", "test_list"), mbpp_tests, _mbpp, lambda row: row.get("code")),
    _Shape(
        ("query", "prompt", "entry_point", "test"),
        leetcode_tests,
        lambda row: text_at(row, "query").strip(),
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
    _Shape(
        ("description", "public_tests"),
        code_contests_tests,
        lambda row: f"{text_at(row, 'description').strip()}\n\n{_STREAMS}",
        _first_in_python,
    ),
)


def _read_row(row: Row) -> Problem:
    row = without_arrays(row)
    shape = next(s for s in _SHAPES if all(column in row for column in s.columns))
    solution = shape.solution(row)
    if solution is not None and not isinstance(solution, str):
        raise DataError(f"the row's solution must be a string, got {describe(solution)}")
    limits = PLUS_LIMITS if is_plus(row) else None
    reference = {"tests": shape.tests(row), "limits": limits, "solution": solution}
    if shape.problem is None:
        return Problem(messages_at(row, "prompt"), reference)
    prompt = [{"role": "user", "content": f"{shape.problem(row)}\n\n{_REQUEST}"}]
    return Problem(prompt, reference)


def _gold_completion(reference: Reference) -> str | None:
    solution = reference["solution"]
    return None if solution is None else f"<think>worked out</think>\n```python\n{solution}\n```"


TASK = Task(
    name="coding",
    columns=tuple(shape.columns for shape in _SHAPES),
    read_row=_read_row,
    rewards=(pass_rate, token_limit(4000), no_bug),
    gold_completion=_gold_completion,
    bad_completion="I would rather not say.",
)
"""Coding task that scores each program with the tests in its row."""
