"""Runs tests that call functions against a program."""

import builtins
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from ._process import BadTests, Ended, Failure, Process, Stub
from ._record import Record, TooManyTests

RECORD = "__record__"
"""Name of the variable for the outcome record in the rewritten test code."""

_TRUSTED = frozenset(
    {"bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools"}
    | {"heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string"}
    | {"sys", "typing"}
)
"""Modules that tests may use as `module.name` without an import. The grader imports these modules
itself, so that the program cannot replace them."""

_Plan = Mapping[str, Any]
_Namespace = dict[str, Any]


def judge_asserts(plan: _Plan, process: Process, record: Record) -> None:
    """Run each statement as one test."""
    namespace = _prepare(plan, process, record)
    for statement in plan["statements"]:
        with record.one():
            exec(statement, namespace)


def judge_check(plan: _Plan, process: Process, record: Record) -> None:
    """Run `check(candidate)`. Each assert that is reached is one test."""
    namespace = _prepare(plan, process, record)
    candidate = _entry(plan["entry"], process)
    try:
        exec(plan["code"], namespace)
        check = namespace["check"]
    except Exception as error:
        raise BadTests(f"the tests' code raises {type(error).__name__}: {error}") from error
    with suppress(TooManyTests), record.block(plan["asserts"]):
        check(candidate)
    if not record.outcomes:
        # A check without asserts passes if it returns. A check that never ran its asserts fails.
        record.add(AssertionError() if plan["asserts"] else None)


def judge_calls(plan: _Plan, process: Process, record: Record) -> None:
    """Run each call as one test."""
    process.load()
    function = _entry(plan["entry"], process)
    for arguments, expected in plan["cases"]:
        with record.one():
            assert _same_value(function(*arguments), expected)


def _same_value(actual: Any, expected: Any) -> bool:
    """Return True if two values are equal. A list equals a tuple with equal items."""
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(map(_same_value, actual, expected))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            _same_value(actual[key], value) for key, value in expected.items()
        )
    return bool(actual == expected)


def _prepare(plan: _Plan, process: Process, record: Record) -> _Namespace:
    """Return a namespace with the setup's names and the program's names that tests use."""
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    namespace = module.__dict__
    namespace[RECORD] = record
    finished = _run_setup(plan["setup"], namespace)
    for name in _TRUSTED & set(plan["modules"]) - set(namespace):
        namespace[name] = import_module(name)
    process.classes = _classes(namespace)
    process.load()
    wanted = [n for n in plan["names"] if n not in namespace and not hasattr(builtins, n)]
    wanted += plan["subjects"]
    found = _take(wanted, process)
    record.missing = frozenset(wanted) - found.keys()
    namespace.update(found)
    if not finished:
        _run_late_setup(plan["setup"], namespace, process)
    return namespace


def _run_setup(setup: types.CodeType | None, namespace: _Namespace) -> bool:
    """Run the setup. Return False if the setup stopped because a name was not defined."""
    if setup is None:
        return True
    try:
        exec(setup, namespace)
    except NameError:
        return False
    except Exception as error:
        raise BadTests(f"the tests' setup raises {type(error).__name__}: {error}") from error
    return True


def _run_late_setup(setup: types.CodeType, namespace: _Namespace, process: Process) -> None:
    """Run a setup that needs names from the program. The program may cause the setup to fail."""
    try:
        exec(setup, namespace)
    except Exception as error:  # noqa: BLE001  the setup runs the program, which may raise anything
        if process.not_loaded is None:
            process.not_loaded = error
            words = f"the tests' setup fails on this program: {type(error).__name__}"
            process.raised = error, Failure("error", "runtime", words)
    except Ended:
        pass
    process.classes = _classes(namespace)


def _classes(namespace: _Namespace) -> dict[str, type]:
    return {
        x.__name__: x
        for x in namespace.values()
        if isinstance(x, type) and x.__module__ == namespace["__name__"]
    }


def _take(names: list[str], process: Process) -> _Namespace:
    """Return the values that these names have in the program."""
    try:
        found = process.ask("names", names) if names else {}
    except (Exception, Ended):  # noqa: BLE001  each test that uses these names sees the error again
        found = {name: Stub(process, 0) for name in names}
    return {name: found[name] for name in names if name in found} if type(found) is dict else {}


def _entry(expression: str, process: Process) -> Any:
    try:
        return process.ask("evaluate", expression)
    except Exception as error:  # noqa: BLE001  every test that calls the entry raises it again
        process.not_loaded = error
    except Ended:
        pass
    return Stub(process, 0)
