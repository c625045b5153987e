"""Parses the tests and limits in a reference, and reports errors in them.

`gdpo.lab.rewards.code` documents the format of the tests and limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.lab.sandbox import Asserts, Calls, Check, Limits, Stdio, Tests
from gdpo.rewards.reward import Reference

LONGEST = 60.0
"""The largest `wall_seconds` that a reference may set, in seconds."""

_SHOWN = 60
"""Maximum number of characters of an invalid value that a message shows."""


def tests_from_reference(reference: Reference) -> Tests | None:
    """Return the tests in a reference, or None if it has no tests.

    Raises:
        DataError: If the data under `tests` is invalid. The message contains the key.
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
    read, required, optional = _KINDS[kind]
    _check_names(given, required, optional)
    return read(given)


def limits_from_reference(reference: Reference) -> Limits:
    """Return the limits in a reference. Missing limits get the defaults from `Limits`.

    Raises:
        DataError: If the name of a limit is unknown or its value is not allowed, such as a
            `wall_seconds` above `LONGEST`.
    """
    if reference.get("limits") is None:
        return Limits()
    given = _object(reference["limits"], "limits")
    names = [field.name for field in fields(Limits)]
    for name in given:
        if name not in names:
            raise DataError(
                f"reference 'limits' has an unknown limit {name!r}: {did_you_mean(name, names)}"
            )
    try:
        limits = Limits(**given)
    except (ConfigError, TypeError) as error:
        raise DataError(f"reference 'limits': {error}") from error
    if limits.wall_seconds > LONGEST:
        raise DataError(
            f"reference 'limits.wall_seconds' must be at most {LONGEST:g} seconds, got "
            f"{limits.wall_seconds:g}. Use a smaller limit"
        )
    return limits


def _asserts(given: dict[str, Any]) -> Asserts:
    statements = enumerate(_list(given["statements"], "statements"))
    texts = tuple(_text(each, f"statements[{i}]") for i, each in statements)
    return Asserts(texts, setup=_text(given.get("setup", ""), "setup"))


def _check(given: dict[str, Any]) -> Check:
    code, entry_point = (_text(given[name], name) for name in ("code", "entry_point"))
    return Check(code, entry_point, setup=_text(given.get("setup", ""), "setup"))


def _calls(given: dict[str, Any]) -> Calls:
    cases = tuple(
        (tuple(_list(arguments, f"cases[{i}][0]", least=0)), expected)
        for i, (arguments, expected) in enumerate(_pairs(given["cases"]))
    )
    return Calls(_text(given["function"], "function"), cases)


def _stdio(given: dict[str, Any]) -> Stdio:
    cases = enumerate(_pairs(given["cases"]))
    texts = [[_text(each, f"cases[{i}][{k}]") for k, each in enumerate(case)] for i, case in cases]
    return Stdio(tuple((stdin, stdout) for stdin, stdout in texts))


_KINDS: dict[str, tuple[Callable[[dict[str, Any]], Tests], set[str], set[str]]] = {
    "asserts": (_asserts, {"statements"}, {"setup"}),
    "check": (_check, {"code", "entry_point"}, {"setup"}),
    "calls": (_calls, {"function", "cases"}, set()),
    "stdio": (_stdio, {"cases"}, set()),
}
"""Maps each kind of tests to its parsing function, its required keys and its optional keys."""


def _object(value: Any, place: str) -> dict[str, Any]:
    """Return a copy without the keys whose value is None.

    Arrow adds such keys, because it fills in every key that occurs in any row.
    """
    if not isinstance(value, Mapping):
        raise DataError(f"reference {place!r} must be an object, got {_shown(value)}")
    return {str(key): held for key, held in value.items() if held is not None}


def _check_names(given: Mapping[str, Any], required: set[str], optional: set[str]) -> None:
    for name in sorted(required - given.keys()):
        raise DataError(
            f"reference 'tests' lacks the key {name!r}, which tests of this kind need. Add the key"
        )
    for name in given:
        if name not in required | optional:
            meant = did_you_mean(name, sorted(required | optional))
            raise DataError(f"reference 'tests' has an unknown key {name!r}: {meant}")


def _list(value: Any, place: str, *, least: int = 1) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise DataError(f"reference 'tests.{place}' must be a list, got {_shown(value)}")
    if len(value) < least:
        raise DataError(f"reference 'tests.{place}' is empty. Add at least one test")
    return value


def _pairs(value: Any) -> list[Sequence[Any]]:
    cases = _list(value, "cases")
    pairs = [_list(pair, f"cases[{i}]", least=0) for i, pair in enumerate(cases)]
    for i, pair in enumerate(pairs):
        if len(pair) != 2:
            raise DataError(
                f"reference 'tests.cases[{i}]' must be a pair of input and expected output, got "
                f"{len(pair)} items"
            )
    return pairs


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"reference 'tests.{place}' must be a string, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}"
