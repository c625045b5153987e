"""Tool calls as JSON: how they are read, and when two values are the same.

Nothing here raises on what a model writes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

DEEPEST = 100
"""Brackets within brackets: far below where Python's stack decides, which differs by caller."""

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    parameters: Mapping[str, Any]
    """By parameter name; values as JSON has them."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _as_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that it has twice could be read either way."""
    value = dict(members)
    if len(value) < len(members):
        raise ValueError("a key stands there twice")
    return value


_decoder = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_as_object)


def scan_calls(text: str, start: int) -> tuple[tuple[Call, ...] | None, int]:
    """Read the calls that stand in `text` from `start` on, as far as they go.

    Calls are JSON objects with whitespace between them, over as many lines as they like, or lists
    of such objects.

    Args:
        text: A completion.
        start: Where the calls begin.

    Returns:
        The calls and the place after them. The calls are `None` where a value is no call: no
        object, with a key twice, without a `name` that is text, or without `parameters` that are an
        object. The scan ends at the first character that begins no JSON value.
    """
    calls: list[Call] = []
    valid = True
    place = _skip_space(text, start)
    while text[place : place + 1] in ("{", "["):
        try:
            value, place = _decoder.raw_decode(text, place)
        # ValueError: no JSON, a key that stands there twice, or an integer of 4,301 digits
        except (ValueError, RecursionError):
            return None, place
        if deeper(value, DEEPEST):
            return None, place
        found = _as_calls(value)
        valid = valid and found is not None
        calls.extend(found or ())
        place = _skip_space(text, place)
    return (tuple(calls) if valid else None), place


def deeper(value: Any, most: int) -> bool:
    """Whether more than so many lists and objects stand in each other; without recursion."""
    level = [value]
    for _ in range(most + 1):
        level = [
            x
            for v in level
            if isinstance(v, dict | list)
            for x in (v.values() if isinstance(v, dict) else v)
        ]
    return bool(level)


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _as_calls(value: Any) -> list[Call] | None:
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    calls = [_as_call(item) for item in items]
    return None if None in calls else [call for call in calls if call is not None]


def _as_call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    name, parameters = fields.get("name"), fields.get("parameters")
    if not (isinstance(name, str) and isinstance(parameters, dict)):
        return None
    return Call(name, cast("dict[str, Any]", parameters))


def same_value(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same: 1 is 1.0, but neither `true` nor "1".

    Works through a stack, because JSON may be nested deeper than Python may recurse.
    """
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            left, right = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
            if left.keys() != right.keys():
                return False
            pairs.extend((left[key], right[key]) for key in left)
        elif isinstance(a, list) and isinstance(b, list):
            ones, others = cast("list[Any]", a), cast("list[Any]", b)
            if len(ones) != len(others):
                return False
            pairs.extend(zip(ones, others, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True
