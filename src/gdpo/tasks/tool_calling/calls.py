"""Tool calls as JSON: how they are read, and when two values are the same.

Nothing here raises on what a model writes.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gdpo.errors import DataError

DEEPEST = 100
"""Brackets within brackets: far below where Python's stack decides, which differs by caller."""

_DEEPEST = 32
"""The same in a literal."""

_LONGEST = 100_000
"""Characters of a literal."""

_MOST_BITS = 1024
"""Of an integer: Python refuses to write those of thousands of digits."""

_JSON_NAMES = {"true": True, "false": False, "null": None}
_SPACE = re.compile(r"\s*")
_MARK = re.compile(r"\\.|[\"'()\[\]{},=]", re.DOTALL)


def read_literal(text: str) -> Any:
    """The value of a Python literal, as JSON has values.

    Args:
        text: At most 100,000 characters, with at most 32 brackets in each other.

    Raises:
        DataError: It is none, or too long or too deep.
    """
    if len(text) > _LONGEST:
        raise DataError(f"it has {len(text):,} characters; at most {_LONGEST:,} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text of the row
            node = ast.parse(text.strip(), mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(f"{_shown(text)} is no literal: {error}") from error
    return _plain(node, _DEEPEST)


def _plain(node: ast.expr, depth: int) -> Any:
    if depth < 0:
        raise DataError(f"more than {_DEEPEST} brackets stand in each other")
    match node:
        case ast.Constant(value=str() | bool() | None as value):
            return value
        case ast.Constant(value=int() | float()):
            return _number(node, 1)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as number):
            return _number(number, -1)
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_plain(item, depth - 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_key(key): _plain(value, depth - 1) for key, value in pairs}
        case _:
            kind = type(node).__name__
            raise DataError(f"it holds a {kind}, which is no text, number, list or object")


def _number(node: ast.Constant, sign: int) -> int | float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError("'-' must stand before a number")
    small = value.bit_length() <= _MOST_BITS if isinstance(value, int) else math.isfinite(value)
    if not small:
        raise DataError("a number is larger than can be written")
    return sign * value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise DataError("the keys of an object must be text")
    return node.value


def starts_calls(text: str, names: Sequence[str]) -> bool:
    """Whether a text begins as a list of calls: a bracket, a name, a parenthesis.

    Args:
        text: A turn of an assistant.
        names: Of the tools that there are.
    """
    if not text.startswith("["):
        return False
    rest = text[1:].lstrip()
    return any(rest.startswith(f"{n}(") for n in names) or bool(re.match(r"[^\[\]()]+\(", rest))


def read_calls(text: str, names: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """The calls that a text begins with, in time linear in its length.

    Names may hold what Python's may not, as in `Search (v2)(class="a")`: the name is that of the
    longest tool that stands there, or else what stands before the parenthesis.

    Args:
        text: `[name(parameter=literal, ...), ...]`, and whatever follows.
        names: Of the tools that there are.

    Returns:
        Each call's `name` and `parameters`, and the text after the list.

    Raises:
        DataError: The list does not end, an argument has no name, or a value is no literal.
    """
    if len(text) > _LONGEST:
        raise DataError(f"it has {len(text):,} characters; at most {_LONGEST:,} are read")
    named = set(names)
    lengths = sorted({len(name) for name in names}, reverse=True)
    calls: list[dict[str, Any]] = []
    place = 1
    while True:
        place = _skip_space(text, place)
        heads = (text[place : place + length] for length in lengths)
        name = next((n for n in heads if n in named and text.startswith("(", place + len(n))), None)
        opening = text.find("(", place) if name is None else place + len(name)
        if opening < 0:
            raise DataError(f"{_shown(text[place:])} is no call: name(parameter=value, ...)")
        parameters, end = _read_arguments(text, opening)
        calls.append({"name": name or text[place:opening].strip(), "parameters": parameters})
        place = _skip_space(text, end)
        follows, place = text[place : place + 1], place + 1
        if follows == "]":
            return calls, text[place:].strip()
        if follows != ",":
            raise DataError(f"after a call must stand a comma or ']', not {_shown(text[end:])}")


def _read_arguments(text: str, opening: int) -> tuple[dict[str, Any], int]:
    """What stands between a parenthesis and the one that closes it, and the place after that."""
    arguments: dict[str, Any] = {}
    depth, begin, equals = 0, opening + 1, -1
    for place, mark in _marks(text, opening):
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        if (mark == "," and depth == 1) or depth == 0:
            _add(arguments, text[begin:place], equals - begin)
            begin, equals = place + 1, -1
        elif mark == "=" and depth == 1 and equals < 0:
            equals = place
        if depth == 0:
            return arguments, place + 1
    raise DataError(f"the call does not end: {_shown(text[opening:])}")


def _add(arguments: dict[str, Any], text: str, equals: int) -> None:
    if not text.strip():
        return
    name = text[:equals].strip() if equals >= 0 else ""
    if not name or name in arguments:
        raise DataError(f"an argument must have a name of its own, got {_shown(text)}")
    arguments[name] = read_literal(text[equals + 1 :])


def _marks(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Brackets, commas and equals signs outside of quotation marks, with their places."""
    quote = ""
    for found in _MARK.finditer(text, start):
        mark = found[0]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in ("'", '"'):
            quote = mark
        elif len(mark) == 1:
            yield found.start(), mark


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")


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
    calls: list[Call] = []
    for item in value if isinstance(value, list) else [value]:
        match item:
            case {"name": str(name), "parameters": dict(parameters)}:
                calls.append(Call(name, parameters))
            case _:
                return None
    return calls


def same_value(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same: 1 is 1.0, but neither `true` nor "1".

    Works through a stack, because JSON may be nested deeper than Python may recurse.
    """
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs += [(a[key], b[key]) for key in a]
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True
