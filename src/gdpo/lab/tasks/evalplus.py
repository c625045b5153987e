"""Reads the tests of EvalPlus rows (HumanEval+ and MBPP+) as published on the Hub.

The `test` column contains a program that compares the function's results with hundreds of expected
values, with numpy for the tolerance of floats. The sandbox has no numpy, so a few lines of plain
Python replace it. They are stricter: sequences of different lengths are never close, nor are a
number and a sequence. Each comparison counts as a test. Otherwise the tests are unchanged,
including their errors.
"""

import ast
import re
import warnings
from typing import Any

from gdpo.errors import DataError
from gdpo.lab.tasks.rows import text_at
from gdpo.rewards.task import Row

_NUMPY = re.compile(r"^import numpy as np[ \t]*$", re.MULTILINE)

_STAND_IN = """\
class np:
    ndarray = type("ndarray", (), {})
    float32 = float64 = float

    def allclose(out, exp, rtol=1e-05, atol=1e-08, equal_nan=False):
        if isinstance(out, (list, tuple)) and isinstance(exp, (list, tuple)):
            return len(out) == len(exp) and all(
                np.allclose(a, b, rtol, atol, equal_nan) for a, b in zip(out, exp)
            )
        if not isinstance(out, (int, float, complex)) or not isinstance(exp, (int, float, complex)):
            return False
        if out != out or exp != exp:
            return equal_nan and out != out and exp != exp
        return out == exp or abs(exp) != float("inf") and abs(out - exp) <= atol + rtol * abs(exp)

    class testing:
        def assert_allclose(out, exp, rtol=1e-07, atol=0):
            assert np.allclose(out, exp, rtol, atol, True)
"""

PLUS_LIMITS = {"output_kb": 16 * 1024, "cpu_seconds": 10}
"""Limits for EvalPlus rows. Correct programs for rows 15, 100 and 130 of HumanEval+ return up to 11
MiB, and rows 130 and 139 take 4 to 6 seconds of CPU time on a busy machine."""

_RELEASE = ("base_input", "plus_input")

_ALL_INPUTS = "zip(inputs, results)"
"""Text that identifies EvalPlus programs that do not use numpy, such as HumanEval/32."""


def is_plus(row: Row) -> bool:
    """Return whether the `test` column of a row is an EvalPlus program that imports numpy.

    Raises:
        DataError: If the row is from an EvalPlus release file without such a program.
    """
    given = [column for column in _RELEASE if row.get(column) is not None]
    if given:
        raise DataError(
            f"column {given[0]!r} shows that this row is from an EvalPlus release file in a format "
            f"that is not supported: column 'test' has at most HumanEval's few asserts. Use "
            f"rows whose 'test' runs all inputs: evalplus/humanevalplus or evalplus/mbppplus on "
            f"the Hub, or …-OriginFmt.jsonl.gz from the same release"
        )
    return isinstance(row.get("test"), str) and _NUMPY.search(row["test"]) is not None


def runs_all_inputs(row: Row) -> bool:
    """Return True if a row's tests are EvalPlus's.

    Raises:
        DataError: If the tests are HumanEval's or MBPP's, whose scores are not comparable.
    """
    if is_plus(row) or _ALL_INPUTS in str(row.get("test")):
        return True
    raise DataError(
        "column 'test' does not run EvalPlus's inputs. These rows are from HumanEval or MBPP: use "
        "the benchmark humaneval or mbpp for them, or use rows from evalplus/humanevalplus or "
        "evalplus/mbppplus on the Hub, or …-OriginFmt.jsonl.gz from an EvalPlus release"
    )


def plus_check(code: str) -> str:
    """Return HumanEval+'s `check(candidate)` without numpy and with each comparison as a test.

    Args:
        code: Content of the `test` column, which must be valid Python.
    """
    lines = code.split("\n")
    for call in _comparisons(ast.parse(code)):
        _assert_line(lines, call)
    return _without_numpy(lines)


def mbpp_plus_tests(row: Row) -> dict[str, Any]:
    """Return an MBPP+ row's tests: the comparisons in `test`."""
    code = text_at(row, "test")
    tree = parsed(code, "test")
    lines, name = code.split("\n"), _called(tree)
    for call in _comparisons(tree):
        _assert_line(lines, call)
        # The function's name may collide with `check`, or with a builtin such as `sum`.
        line = lines[call.lineno - 1]
        lines[call.lineno - 1] = line.replace(f"assertion({name}(", "assertion(candidate(", 1)
    return {
        "kind": "check",
        "code": _without_numpy(_as_check(tree, lines)),
        "entry_point": name,
        "setup": "\n".join(row.get("test_imports") or []),
    }


def parsed(code: str, column: str) -> ast.Module:
    """Parse a column as Python, or raise a DataError with the column's name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the row's text
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"column {column!r} is not valid Python: {error}") from error


def _called(tree: ast.Module) -> str:
    for call in _comparisons(tree):
        if isinstance(compared := call.args[0], ast.Call):
            return ast.unparse(compared.func)
    raise DataError(
        "column 'test' must compare a function's return value: assertion(f(*inp), exp, …)"
    )


def _without_numpy(lines: list[str]) -> str:
    return _NUMPY.sub(lambda _: _STAND_IN, "\n".join(lines))


def _comparisons(tree: ast.Module) -> list[ast.Call]:
    """Return all calls to `assertion` that are statements on their own."""
    calls = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)]
    return [
        call
        for call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "assertion"
        and call.args
    ]


def _assert_line(lines: list[str], call: ast.Call) -> None:
    """Convert a call to `assertion` to an assert statement: only asserts count as tests."""
    first, last = call.lineno - 1, (call.end_lineno or call.lineno) - 1
    lines[last] = f"{lines[last].rstrip()} is None"
    start = len(lines[first]) - len(lines[first].lstrip())
    lines[first] = f"{lines[first][:start]}assert {lines[first][start:]}"


def _as_check(tree: ast.Module, lines: list[str]) -> list[str]:
    """Keep definitions and imports at the top level, and move everything else into `check`."""
    above: list[str] = []
    inside: list[str] = []
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        block = lines[first - 1 : node.end_lineno]
        defines = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
        if defines:
            above += block
        else:
            # Indent every line of a statement with a body. Otherwise indent only the first line,
            # because a string literal may span several lines.
            whole = isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.Try)
            inside += [f"    {line}" if whole or i == 0 else line for i, line in enumerate(block)]
    return [*above, "", "def check(candidate):", *inside]
