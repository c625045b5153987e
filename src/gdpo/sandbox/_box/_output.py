"""Whether a program printed what it should."""

import re
from math import isfinite
from typing import Any

_TOLERANCE = 1e-6
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=e))(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def same_output(actual: str, expected: str) -> bool:
    """Whether two texts agree.

    Blanks at the end of a line and empty lines do not count. Where two lines differ, their tokens
    are compared: two numbers with a point or an exponent agree within 1e-6, relative above 1.
    """
    lines, wanted = _lines(actual), _lines(expected)
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted))


def same_value(actual: Any, expected: Any) -> bool:
    """Whether two values agree, where lists and tuples of the same items do."""
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(map(same_value, actual, expected))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            same_value(actual[key], value) for key, value in expected.items()
        )
    return bool(actual == expected)


def _lines(text: str) -> list[str]:
    stripped = (line.rstrip() for line in text.splitlines())
    return [line for line in stripped if line]


def _same_line(line: str, wanted: str) -> bool:
    if line == wanted:
        return True
    tokens, others = line.split(), wanted.split()
    return len(tokens) == len(others) and all(map(_same_token, tokens, others))


def _same_token(token: str, wanted: str) -> bool:
    if token == wanted:
        return True
    if not (_FLOAT.fullmatch(token) and _FLOAT.fullmatch(wanted)):
        return False
    number, other = float(token), float(wanted)
    near = abs(number - other) <= _TOLERANCE * max(1.0, abs(other))
    return near and isfinite(number) and isfinite(other)
