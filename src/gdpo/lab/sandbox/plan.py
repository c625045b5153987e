"""Compiles tests into a plan for the grader. `_box/_grader.py` describes the rewritten tests."""

import ast
import builtins
import marshal
import os
import symtable
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from gdpo.errors import ConfigError, DataError
from gdpo.lab.sandbox._box._grader import RECORD
from gdpo.lab.sandbox._terms import Asserts, Calls, Check, Limits, Stdio, Tests

_KEPT = 4096
_Node = TypeVar("_Node", bound=ast.AST)


Planned: TypeAlias = tuple[bytes, bytes | None, int]
"""The grader's plan, the setup that also runs in the program, and the number of tests."""


def plan(tests: Tests) -> Planned:
    """Return the grader's plan, the setup that also runs in the program, and the number of tests.

    Plan and setup are marshalled. The tests of a `Check` are the asserts in its code, at least 1;
    loops and branches may run more or fewer.

    Raises:
        DataError: If the tests do not compile, or contain a value that cannot be sent to the
            sandbox.
        ConfigError: If the entry point is not a Python expression.
    """
    with _parsing:
        match tests:
            case Asserts():
                return _plan_asserts(tuple(tests.statements), tests.setup)
            case Check():
                return _plan_check(tests.code, tests.entry_point, tests.setup)
            case Calls():
                _check_expression(tests.function, "Calls.function")
                content = {"kind": "calls", "entry": tests.function, "cases": tests.cases}
                return _marshalled(content, "Calls.cases"), None, len(tests.cases)
            case Stdio():
                content = {"kind": "stdio", "cases": tests.cases}
                return _marshalled(content, "Stdio.cases"), None, len(tests.cases)


def fits(tests: Tests, limits: Limits) -> Limits:
    """Return the limits with `output_kb` large enough for the expected values in the tests.

    Expected values that the tests compute are not known in advance.
    """
    match tests:
        case Asserts():
            length = sum(map(len, tests.statements))
        case Check():
            length = len(tests.code)
        case Calls() | Stdio():
            length = len(repr(tests.cases))
    least = ceil(_PER_CHARACTER * length / 1024)
    return limits if least <= limits.output_kb else replace(limits, output_kb=least)


_PER_CHARACTER = 6
"""Maximum number of bytes in a message per character of an expected value. Non-ASCII characters are
escaped, and every tuple or list adds a record and a reference."""

_parsing = Lock()
"""Lock that lets only one thread parse at a time. CPython before 3.12.2 shares the parser's depth
counter between threads (CPython issue 106905), so parsing in two threads sometimes fails."""


def parse_program(source: str) -> ast.Module:
    """Parse a text that may be Python, without warnings. Only one thread parses at a time.

    Raises:
        SyntaxError: If the text is not valid Python.
        ValueError: If the text contains a null character.
        RecursionError: If the text is nested too deeply. Python may also raise a MemoryError.
    """
    with _parsing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _parse_afresh() -> None:  # a thread in the parent may have held the lock during the fork
    global _parsing
    _parsing = Lock()


os.register_at_fork(after_in_child=_parse_afresh)


@lru_cache(maxsize=_KEPT)
def _plan_asserts(statements: tuple[str, ...], setup: str) -> Planned:
    trees = [_parse(text, f"Asserts.statements[{i}]") for i, text in enumerate(statements)]
    for tree in trees:
        tree.body = [s for statement in tree.body for s in (ast.Expr(_call("settle")), statement)]
    content = {
        "kind": "asserts",
        "statements": [_compile(tree) for tree in trees],
        **_names(statements, trees, setup, "Asserts.setup"),
    }
    return _marshalled(content, "Asserts"), _shared(setup, "Asserts.setup"), len(statements)


@lru_cache(maxsize=_KEPT)
def _plan_check(code: str, entry_point: str, setup: str) -> Planned:
    _check_expression(entry_point, "Check.entry_point")
    tree = _parse(code, "Check.code")
    checks = [s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "check"]
    if not checks:
        raise DataError("Check.code must define a function `check(candidate)` at its top level")
    asserts = _count_asserts(checks[-1].body)
    names = _names([code], [tree], setup, "Check.setup")
    checks[-1].body = _guarded(checks[-1].body)
    content = {
        "kind": "check",
        "code": _compile(tree),
        "entry": entry_point,
        "asserts": asserts,
        **names,
        # Some tests call the function by name, and the setup may define an empty stub for it.
        "subjects": sorted(names_in(entry_point)[1] & names_in(code)[1]),
    }
    return _marshalled(content, "Check"), _shared(setup, "Check.setup"), max(1, asserts)


def _check_expression(text: str, place: str) -> None:
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{place} must be a Python expression that uses the program's names, such as 'add' or "
            f"'Solution().add', got {text!r:.80}: {error}"
        ) from error


def _parse(text: str, place: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{place} is not valid Python: {error}; got {text!r:.200}") from error


def _compile(tree: ast.Module) -> Any:
    return compile(ast.fix_missing_locations(tree), "<tests>", "exec", dont_inherit=True)


def _shared(setup: str, place: str) -> bytes | None:
    return marshal.dumps(_compile(_parse(setup, place))) if setup.strip() else None


def _marshalled(content: dict[str, Any], place: str) -> bytes:
    try:
        return marshal.dumps(content)
    except ValueError as error:
        raise DataError(
            f"{place} contains a value that cannot be sent to the sandbox. Allowed: None, bool, "
            f"numbers, str, bytes, and tuples, lists, sets and dicts of these"
        ) from error


def _names(
    texts: Sequence[str], trees: Sequence[ast.Module], setup: str, place: str
) -> dict[str, Any]:
    """Return the names that the tests use but do not define, and the names that may be modules."""
    everything = [*trees, _parse(setup, place)]
    bases = {n.value.id for n in _all(everything, ast.Attribute) if isinstance(n.value, ast.Name)}
    called = {n.func.id for n in _all(everything, ast.Call) if isinstance(n.func, ast.Name)}
    free = sorted(set().union(*(names_in(text)[1] for text in [*texts, setup])))
    return {
        "setup": _compile(everything[-1]) if setup.strip() else None,
        "names": free,
        "modules": sorted(bases - called),
        "subjects": _subjects(texts, trees),
    }


def _subjects(texts: Sequence[str], trees: Sequence[ast.Module]) -> list[str]:
    """Return the names of the builtins that the tests expect the program to define.

    If the tests use only builtin names, those that every test calls are under test.
    """
    if any(not hasattr(builtins, name) for text in texts for name in names_in(text)[1]):
        return []
    called = [
        {n.func.id for n in _all([tree], ast.Call) if isinstance(n.func, ast.Name)}
        for tree in trees
    ]
    return sorted(set.intersection(*called))


def _all(trees: Iterable[ast.AST], kind: type[_Node]) -> list[_Node]:
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, kind)]


def names_in(code: str) -> tuple[set[str], set[str]]:
    """Return the names that code binds at its top level, and those that it uses but does not bind.

    Raises:
        SyntaxError: If the code is not valid Python.
    """
    top = symtable.symtable(code, "<tests>", "exec")
    own = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    looked_up: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        looked_up |= {
            s.get_name()
            for s in table.get_symbols()
            if s.is_referenced() and (table is top or s.is_global())
        }
    return own, looked_up - own


def _call(name: str, *args: int) -> ast.Call:
    method = ast.Attribute(ast.Name(RECORD, ast.Load()), name, ast.Load())
    return ast.Call(method, [ast.Constant(arg) for arg in args], [])


def _inside(guard: ast.Call, body: list[ast.stmt]) -> ast.stmt:
    return ast.With(items=[ast.withitem(context_expr=guard)], body=body)


def _guarded(body: list[ast.stmt]) -> list[ast.stmt]:
    return [new for each in body for new in (ast.Expr(_call("settle")), _guard(each))]


def _guard(statement: ast.stmt) -> ast.stmt:
    match statement:
        case ast.Assert():
            # `assert True` tests nothing. HumanEval uses it as a comment.
            return statement if _is_constant(statement) else _inside(_call("one"), [statement])
        case ast.For() if tests := _count_asserts(statement.body):
            statement.body = [_inside(_call("block", tests), _guarded(statement.body))]
            statement.orelse = _guarded(statement.orelse)
        case ast.For() | ast.While() | ast.If() | ast.With() | ast.Try():
            for part in (statement, *getattr(statement, "handlers", ())):
                for name in {"body", "orelse", "finalbody"}.intersection(part._fields):
                    setattr(part, name, _guarded(getattr(part, name)))
        case _:
            pass
    return statement


def _is_constant(statement: ast.Assert) -> bool:
    return isinstance(statement.test, ast.Constant) and bool(statement.test.value)


def _count_asserts(body: Iterable[ast.stmt]) -> int:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    outside = (statement for statement in body if not isinstance(statement, definitions))
    return sum(not _is_constant(each) for each in _all(outside, ast.Assert))
