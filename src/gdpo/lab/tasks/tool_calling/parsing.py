"""Splits a completion into its thinking and its fields: `<tool_call>` and `<response>`."""

import re
from dataclasses import dataclass
from functools import lru_cache

from gdpo.lab.tasks._thinking import holds_something, split_thinking
from gdpo.lab.tasks.tool_calling.calls import Call, scan_calls

_OPENING = re.compile(r"<(tool_call|response)>")
_ANY_TAG = re.compile(r"</?(?:think|tool_call|response)>")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Stores the parts of a parsed completion."""

    thinking: str | None
    """Text of the thinking. None: the completion does not start with a closed `<think>`."""
    fields: tuple[str, ...]
    """Tags of the closed fields after the thinking, in order."""
    calls: tuple[Call, ...] | None
    """The calls of all `<tool_call>` fields. None: a field cannot be parsed or is never closed."""
    clean: bool
    """True if every field has content, no field contains a tag outside JSON, and there is only
    whitespace between the fields."""


@dataclass(frozen=True, slots=True)
class _Field:
    calls: tuple[Call, ...] | None
    """Calls in this field (empty if the field is a response). None: the calls cannot be parsed."""
    end: int
    """Index after the closing tag, or -1 if this tag is missing."""
    clean: bool


def parse(text: str) -> Parsed:
    """Split any text into thinking, calls and response, in time linear in the text length."""
    thinking, rest = split_thinking(text)
    fields: list[str] = []
    calls: list[Call] = []
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
    """Parse a reference answer. The result is cached for the other completions in the group."""
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
