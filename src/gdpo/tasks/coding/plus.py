"""Reads the tests of EvalPlus's rows, HumanEval+ and MBPP+, as its data sets on the Hub have them.

Their column `test` is a program that compares the function with expected values, hundreds of them,
and imports numpy to compare floats with a tolerance. There is no numpy in the sandbox, and none is
needed: what these programs use of it is a few lines of plain Python, which take its place. Nothing
else of a row changes, so that what is wrong with a row stays wrong; only, each comparison counts as
a test of its own.

Where the stand-in for numpy is stricter: sequences of unequal length, and a number and a sequence,
are never close.
"""

import ast
import re
import warnings
from typing import Any

from gdpo.errors import DataError
from gdpo.tasks.rows import text_at
from gdpo.tasks.task import Row

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
"""Limits of EvalPlus's rows: the right answers of HumanEval+'s 15, 100 and 130 have up to 11 MiB,
and those of 130 and 139 take 4 to 6 seconds of processor time on a busy machine."""

_RELEASE = ("base_input", "plus_input")

_ALL_INPUTS = "zip(inputs, results)"
"""In a program of EvalPlus that needs no numpy, as that of HumanEval/32."""


def is_plus(row: Row) -> bool:
    """Whether the column `test` of a row is one of EvalPlus's programs, which import numpy.

    Raises:
        DataError: The row is one of EvalPlus's release files, whose `test` is not.
    """
    given = [column for column in _RELEASE if row.get(column) is not None]
    if given:
        raise DataError(
            f"column {given[0]!r} is of a release file of EvalPlus, whose inputs are not read: "
            f"its column 'test', if there is one, holds the few asserts of HumanEval alone. Take "
            f"the rows whose 'test' runs all inputs: evalplus/humanevalplus or evalplus/mbppplus "
            f"on the Hub, or …-OriginFmt.jsonl.gz of the same release"
        )
    return isinstance(row.get("test"), str) and _NUMPY.search(row["test"]) is not None


def runs_all_inputs(row: Row) -> bool:
    """Whether a row's tests are EvalPlus's: True, or an error.

    Raises:
        DataError: They are those of HumanEval or MBPP, with which a score would mean another thing.
    """
    if is_plus(row) or _ALL_INPUTS in str(row.get("test")):
        return True
    raise DataError(
        "a row's column 'test' is not EvalPlus's, which runs all inputs: these rows are "
        "HumanEval's or MBPP's, whose benchmarks are humaneval and mbpp. Take "
        "evalplus/humanevalplus or evalplus/mbppplus on the Hub, or …-OriginFmt.jsonl.gz of "
        "EvalPlus's releases"
    )


def plus_check(code: str) -> str:
    """HumanEval+'s `check(candidate)` without numpy, and with every comparison as a test.

    Args:
        code: A column `test` that is Python.
    """
    lines = code.split("\n")
    for call in _comparisons(ast.parse(code)):
        _assert_line(lines, call)
    return _without_numpy(lines)


def mbpp_plus_tests(row: Row) -> dict[str, Any]:
    """MBPP+: every comparison of `test` is a test.

    Raises:
        DataError: The column is missing, is no Python or compares nothing.
    """
    code = text_at(row, "test")
    tree = parsed(code, "test")
    lines, name = code.split("\n"), _called(tree)
    for call in _comparisons(tree):
        _assert_line(lines, call)
        # A program's function may be called `check`, or `sum`.
        line = lines[call.lineno - 1]
        lines[call.lineno - 1] = line.replace(f"assertion({name}(", "assertion(candidate(", 1)
    return {
        "kind": "check",
        "code": _without_numpy(_as_check(tree, lines)),
        "entry_point": name,
        "setup": "\n".join(row.get("test_imports") or []),
    }


def parsed(code: str, column: str) -> ast.Module:
    """What a column holds as Python, or a DataError that names the column."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a row's texts, which nobody here mends
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"column {column!r} is no Python: {error}") from error


def _called(tree: ast.Module) -> str:
    """The function that MBPP+'s program compares, which it calls by its name."""
    for call in _comparisons(tree):
        if isinstance(compared := call.args[0], ast.Call):
            return ast.unparse(compared.func)
    raise DataError(
        "column 'test' must compare what a function returns: assertion(f(*inp), exp, …)"
    )


def _without_numpy(lines: list[str]) -> str:
    return _NUMPY.sub(lambda _: _STAND_IN, "\n".join(lines))


def _comparisons(tree: ast.Module) -> list[ast.Call]:
    """The calls of `assertion` that stand alone."""
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
    """Make a call that raises into an assert, which is what counts as a test."""
    first, last = call.lineno - 1, (call.end_lineno or call.lineno) - 1
    lines[last] = f"{lines[last].rstrip()} is None"
    start = len(lines[first]) - len(lines[first].lstrip())
    lines[first] = f"{lines[first][:start]}assert {lines[first][start:]}"


def _as_check(tree: ast.Module, lines: list[str]) -> list[str]:
    """Definitions and imports as they are, and everything else in `check`."""
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
            # Of a statement with a body, every line; of a long literal, whose texts may go over
            # several lines, the first.
            whole = isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.Try)
            inside += [f"    {line}" if whole or i == 0 else line for i, line in enumerate(block)]
    return [*above, "", "def check(candidate):", *inside]
