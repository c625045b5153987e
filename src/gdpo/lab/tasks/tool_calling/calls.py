"""Splits a completion into thinking, tool calls and response, and compares JSON values.

Functions that parse a model's text never raise an error because of that text.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from gdpo.errors import DataError
from gdpo.rewards.text import holds_something, split_thinking

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object: a call, its arguments, a tool, or a row of a benchmark."""

DEEPEST = 100
"""Maximum nesting of brackets. This limit is far below Python's recursion limit, so that the result
does not depend on the caller's stack depth."""

_DEEPEST = 32
"""Maximum nesting of brackets in a literal."""

_LONGEST = 100_000
"""Maximum length of a literal, in characters."""

_MOST_BITS = 1024
"""Maximum size of an integer, in bits. Python refuses to print integers with thousands of
digits."""

_JSON_NAMES = {"true": True, "false": False, "null": None}
_SPACE = re.compile(r"\s*")
_MARK = re.compile(r"\\.|[\"'()\[\]{},=]", re.DOTALL)


def read_literal(text: str) -> Any:
    """Return the value of a Python literal, converted to JSON types.

    Raises:
        DataError: If the text is not a literal, has more than 100,000 characters, or nests brackets
            more than 32 deep.
    """
    if len(text) > _LONGEST:
        raise DataError(f"the text has {len(text):,} characters; at most {_LONGEST:,} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes such as "\d" in the row's text
            node = ast.parse(text.strip(), mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise DataError(f"{_shown(text)} is not a Python literal: {error}") from error
    return _plain(node, _DEEPEST)


def _plain(node: ast.expr, depth: int) -> Any:
    if depth < 0:
        raise DataError(f"brackets are nested more than {_DEEPEST} deep")
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
            raise DataError(f"a value is a {kind}; allowed: text, number, list, object")


def _number(node: ast.Constant, sign: int) -> int | float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError("'-' must be followed by a number")
    small = value.bit_length() <= _MOST_BITS if isinstance(value, int) else math.isfinite(value)
    if not small:
        raise DataError(f"a number is not finite or has more than {_MOST_BITS} bits")
    return sign * value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise DataError("the keys of an object must be strings")
    return node.value


def starts_calls(text: str, names: Sequence[str]) -> bool:
    """Return whether a text starts like a list of calls: bracket, name, parenthesis."""
    if not text.startswith("["):
        return False
    rest = text[1:].lstrip()
    return any(rest.startswith(f"{n}(") for n in names) or bool(re.match(r"[^\[\]()]+\(", rest))


def read_calls(text: str, names: Sequence[str]) -> tuple[list[JsonObject], str]:
    """Read the list `[name(parameter=literal, ...), ...]` at the start of a text, in linear time.

    Names may be invalid in Python, as in `Search (v2)(class="a")`: the longest matching tool name
    is used, or else the text before the parenthesis. Return `name` and `parameters` of each call,
    and the text after the list.

    Raises:
        DataError: If the list is not closed, an argument has no name, or a value is not a literal.
    """
    if len(text) > _LONGEST:
        raise DataError(f"the text has {len(text):,} characters; at most {_LONGEST:,} are allowed")
    named = set(names)
    lengths = sorted({len(name) for name in names}, reverse=True)
    calls: list[JsonObject] = []
    place = 1
    while True:
        place = _skip_space(text, place)
        heads = (text[place : place + length] for length in lengths)
        name = next((n for n in heads if n in named and text.startswith("(", place + len(n))), None)
        opening = text.find("(", place) if name is None else place + len(name)
        if opening < 0:
            raise DataError(
                f"{_shown(text[place:])} is not a call. Write it as name(parameter=value, ...)"
            )
        parameters, end = _read_arguments(text, opening)
        calls.append({"name": name or text[place:opening].strip(), "parameters": parameters})
        place = _skip_space(text, end)
        follows, place = text[place : place + 1], place + 1
        if follows == "]":
            return calls, text[place:].strip()
        if follows != ",":
            raise DataError(f"a call must be followed by a comma or ']', not {_shown(text[end:])}")


def _read_arguments(text: str, opening: int) -> tuple[JsonObject, int]:
    """Return the arguments in parentheses, and the index after the closing parenthesis."""
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
    raise DataError(f"a call has no closing parenthesis: {_shown(text[opening:])}")


def _add(arguments: dict[str, Any], text: str, equals: int) -> None:
    if not text.strip():
        return
    name = text[:equals].strip() if equals >= 0 else ""
    if not name or name in arguments:
        raise DataError(f"an argument must have a unique name, got {_shown(text)}")
    arguments[name] = read_literal(text[equals + 1 :])


def _marks(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield brackets, commas and equals signs outside quotation marks, with their indices."""
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
class ToolCall:
    """Stores one tool call."""

    name: str
    parameters: JsonObject
    """JSON values, keyed by parameter name."""


def _as_object(members: list[tuple[str, Any]]) -> JsonObject:
    """Return a JSON object. Duplicate keys are an error, because they are ambiguous."""
    value = dict(members)
    if len(value) < len(members):
        raise ValueError("an object has a duplicate key")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_as_object)


def scan_calls(text: str, start: int) -> tuple[tuple[ToolCall, ...] | None, int]:
    """Read consecutive calls from `start`, and the index after the last.

    Calls are JSON objects, or lists of them, separated by any whitespace. The calls are None if a
    value is not an object, has a duplicate key, or lacks `name` (text) or `parameters` (an object).
    """
    calls: list[ToolCall] = []
    valid = True
    place = _skip_space(text, start)
    while text[place : place + 1] in ("{", "["):
        try:
            value, place = _decoder.raw_decode(text, place)
        # ValueError: invalid JSON, a duplicate key, or an integer of more than 4,300 digits
        except (ValueError, RecursionError):
            return None, place
        if deeper(value, DEEPEST):
            return None, place
        for item in value if isinstance(value, list) else [value]:
            match item:
                case {"name": str(name), "parameters": dict(parameters)}:
                    calls.append(ToolCall(name, parameters))
                case _:
                    valid = False
        place = _skip_space(text, place)
    return (tuple(calls) if valid else None), place


def deeper(value: Any, most: int) -> bool:
    """Return whether lists and objects are nested more than `most` deep, without recursion."""
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


_OPENING = re.compile(r"<(tool_call|response)>")
_ANY_TAG = re.compile(r"</?(?:think|tool_call|response)>")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Stores the parts of a parsed completion."""

    thinking: str | None
    """Text of the thinking. None: the completion does not start with a closed `<think>`."""
    fields: tuple[str, ...]
    """Tags of the closed fields after the thinking, in order."""
    calls: tuple[ToolCall, ...] | None
    """The calls of all `<tool_call>` fields. None: a field cannot be parsed or is never closed."""
    clean: bool
    """True if every field has content, no field contains a tag outside JSON, and there is only
    whitespace between the fields."""


@dataclass(frozen=True, slots=True)
class _Field:
    calls: tuple[ToolCall, ...] | None
    """Calls in this field (empty if the field is a response). None: the calls cannot be parsed."""
    end: int
    """Index after the closing tag, or -1 if this tag is missing."""
    clean: bool


def parse(text: str) -> Parsed:
    """Split any text into thinking, calls and response, in linear time."""
    thinking, rest = split_thinking(text)
    fields: list[str] = []
    calls: list[ToolCall] = []
    readable, clean, place = True, True, 0
    while opening := _OPENING.search(rest, place):
        clean = clean and not rest[place : opening.start()].strip()
        tag = opening[1]
        field = _read_field(rest, opening.end(), tag, may_hold_calls=readable)
        readable = readable and field.calls is not None
        calls.extend(field.calls or ())
        if field.end < 0:
            clean, place = False, len(rest)
            break
        clean = clean and field.clean
        fields.append(tag)
        place = field.end
    clean = clean and not rest[place:].strip()
    return Parsed(thinking, tuple(fields), tuple(calls) if readable else None, clean)


@lru_cache(maxsize=4096)
def parse_gold(text: str) -> Parsed:
    """Parse a reference answer, and cache the result for the other completions in the group."""
    return parse(text)


def _read_field(text: str, start: int, tag: str, *, may_hold_calls: bool) -> _Field:
    closing = f"</{tag}>"
    # After an unreadable field, the calls are None anyway. Skipping later fields keeps time linear.
    if tag == "tool_call" and may_hold_calls:
        calls, end = scan_calls(text, start)
        if text.startswith(closing, end):  # a closing tag inside a JSON string does not count
            return _Field(calls, end + len(closing), clean=bool(text[start:end].strip()))
    unreadable = None if tag == "tool_call" else ()
    end = text.find(closing, start)
    if end < 0:
        return _Field(unreadable, -1, clean=False)
    body = text[start:end]
    return _Field(
        unreadable, end + len(closing), clean=holds_something(body) and not _ANY_TAG.search(body)
    )


def same_value(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal. The number 1 equals 1.0, but not `true` or "1".

    It uses a stack, because JSON may be nested deeper than Python's recursion limit.
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
