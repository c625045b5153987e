"""Reads a reference's tests and limits, and says what is wrong with them.

What they look like stands in `gdpo.rewards.code`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.rewards.reward import Reference
from gdpo.sandbox import Asserts, Calls, Check, Limits, Stdio, Tests

LONGEST = 60.0
"""The largest `wall_seconds` that a reference may ask for, in seconds."""

_SHOWN = 60
"""Characters of a wrong value that a message shows."""


def tests_from_reference(reference: Reference) -> Tests | None:
    """The tests of a reference, None where it has none.

    Args:
        reference: With the data described above under `tests`.

    Raises:
        DataError: The data are no tests; the message names the place.
    """
    data = reference.get("tests")
    if data is None:
        return None
    given = _object(data, "tests")
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(
            f"reference 'tests.kind' must be one of {', '.join(_KINDS)}, got {_shown(kind)}"
        )
    return _KINDS[kind](given)


def limits_from_reference(reference: Reference) -> Limits:
    """The limits of a reference: those it names, and the defaults of `Limits`.

    Raises:
        DataError: An unknown name, or a value that is no limit; `wall_seconds` goes up to
            `LONGEST`.
    """
    if reference.get("limits") is None:
        return Limits()
    given = _object(reference["limits"], "limits")
    names = [field.name for field in fields(Limits)]
    for name in given:
        if name not in names:
            raise DataError(
                f"reference 'limits' has {name!r}, which is no limit: {did_you_mean(name, names)}"
            )
    try:
        limits = Limits(**given)
    except (ConfigError, TypeError) as error:
        raise DataError(f"reference 'limits': {error}") from error
    if limits.wall_seconds > LONGEST:
        raise DataError(
            f"reference 'limits.wall_seconds' may be at most {LONGEST:g} s, got "
            f"{limits.wall_seconds:g}: a reward must end"
        )
    return limits


def _asserts(given: dict[str, Any]) -> Asserts:
    _check_names(given, {"statements"}, {"setup"})
    statements = _list(given["statements"], "statements")
    texts = tuple(_text(each, f"statements[{i}]") for i, each in enumerate(statements))
    return Asserts(texts, setup=_setup(given))


def _check(given: dict[str, Any]) -> Check:
    _check_names(given, {"code", "entry_point"}, {"setup"})
    code, entry_point = (_text(given[name], name) for name in ("code", "entry_point"))
    return Check(code, entry_point, setup=_setup(given))


def _calls(given: dict[str, Any]) -> Calls:
    _check_names(given, {"function", "cases"}, set())
    cases = [
        (tuple(_list(arguments, f"cases[{i}][0]", least=0)), expected)
        for i, (arguments, expected) in enumerate(_pairs(given["cases"]))
    ]
    return Calls(_text(given["function"], "function"), tuple(cases))


def _stdio(given: dict[str, Any]) -> Stdio:
    _check_names(given, {"cases"}, set())
    cases = [
        (_text(stdin, f"cases[{i}][0]"), _text(stdout, f"cases[{i}][1]"))
        for i, (stdin, stdout) in enumerate(_pairs(given["cases"]))
    ]
    return Stdio(tuple(cases))


_KINDS: dict[str, Callable[[dict[str, Any]], Tests]] = {
    "asserts": _asserts,
    "check": _check,
    "calls": _calls,
    "stdio": _stdio,
}


def _object(value: Any, place: str) -> dict[str, Any]:
    """A copy without what is None: Arrow gives every row the keys of all others."""
    if not isinstance(value, Mapping):
        raise DataError(f"reference {place!r} must hold an object, got {_shown(value)}")
    items = cast("Mapping[Any, Any]", value).items()
    return {str(key): held for key, held in items if held is not None}


def _check_names(given: Mapping[str, Any], required: set[str], optional: set[str]) -> None:
    for name in sorted(required - given.keys()):
        raise DataError(f"reference 'tests' of this kind needs {name!r}, which is not there")
    for name in given:
        if name not in required | optional:
            meant = did_you_mean(name, sorted(required | optional))
            raise DataError(f"reference 'tests' of this kind has no {name!r}: {meant}")


def _list(value: Any, place: str, *, least: int = 1) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise DataError(f"reference 'tests.{place}' must hold a list, got {_shown(value)}")
    held = cast("Sequence[Any]", value)
    if len(held) < least:
        raise DataError(f"reference 'tests.{place}' is empty: a program needs at least one test")
    return held


def _pairs(value: Any) -> list[Sequence[Any]]:
    cases = _list(value, "cases")
    pairs = [_list(pair, f"cases[{i}]", least=0) for i, pair in enumerate(cases)]
    for i, pair in enumerate(pairs):
        if len(pair) != 2:
            raise DataError(
                f"reference 'tests.cases[{i}]' must hold two things, what goes in and what must "
                f"come out, got {len(pair)}"
            )
    return pairs


def _setup(given: Mapping[str, Any]) -> str:
    return _text(given.get("setup", ""), "setup")


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"reference 'tests.{place}' must hold text, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"
