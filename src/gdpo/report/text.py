"""Makes untrusted text safe to display: shows hidden characters and limits the length."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isnan, log10
from typing import Any

from gdpo._files import to_json
from gdpo._text import shown

_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""Matches characters that could end a script element or that are not valid text."""

_MESSAGES = 10
"""Number of messages shown at the start of a long chat, and again at its end."""

NAME = 20
"""Number of characters of a reward's name that a terminal shows on one line."""

Message = tuple[str, str, int, str]
"""Role, start of the text, number of omitted characters, and end of the text."""


def cut(text: str, limit: int) -> tuple[str, int, str]:
    """Return the start of a text, the number of omitted characters, and the end of the text.

    >>> cut("0123456789" * 3, 15)
    ('0123456789', 15, '56789')
    """
    start = _fitting(text[: limit + 1], limit)
    if len(start) == len(text):
        return "".join(start), 0, ""
    start = _fitting(text[:limit], limit * 2 // 3)
    end = _fitting(text[: -limit - 1 : -1], limit // 3)[::-1]
    return "".join(start), len(text) - len(start) - len(end), "".join(end)


def messages(text: Any, limit: int) -> list[Message]:
    """Return a prompt or completion as messages to show, with `limit` characters in total.

    In a very long chat, one message states how many are omitted in the middle.
    """
    chat: Sequence[Mapping[str, Any]] = (
        [{"role": "", "content": text}] if isinstance(text, str) else text
    )
    places = shown_places(len(chat))
    kept = [chat[place] for place in places if place is not None]
    contents = [str(message.get("content") or "") for message in kept]
    most = max(limit // max(1, len(kept)), limit - sum(map(len, contents)))
    shown: list[Message] = [
        ("".join(_fitting(str(message.get("role") or ""), 40)), *cut(content, most))
        for message, content in zip(kept, contents, strict=True)
    ]
    if None in places:
        what = f"… {len(chat) - len(kept):,} messages left out …"
        shown.insert(places.index(None), ("", what, 0, ""))
    return shown


def shown_places(count: int) -> list[int | None]:
    """Return the positions of the shown messages of a chat, with None for a gap.

    >>> shown_places(3)
    [0, 1, 2]
    """
    if count <= 2 * _MESSAGES:
        return list(range(count))
    return [*range(_MESSAGES), None, *range(count - _MESSAGES, count)]


def embedded(data: Any) -> str:
    r"""Return JSON that is safe inside an HTML script element.

    >>> print(embedded({"text": "</script>"}))
    {"text": "\u003c/script\u003e"}
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", to_json(data))


def number(value: float, low: float = 0.0, high: float = 1.0, *, sign: bool = False) -> str:
    """Return a number rounded to about a thousandth of `high - low`. NaN becomes –."""
    if isnan(value):
        return "–"
    digits = min(6, max(0, 3 - ceil(log10(high - low)))) if high > low else 3
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def short(value: float) -> str:
    """Return a number as text with up to six significant digits and no trailing zeros."""
    return f"{value:g}".replace("-", "−")


def probability(p: float) -> str:
    """Return a p-value as text with two digits."""
    if isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _fitting(text: Iterable[str], room: int) -> list[str]:
    """Return the first characters of a text that fit into `room`. Hidden characters are escaped."""
    fitting: list[str] = []
    for piece in map(shown, text):
        room -= len(piece)
        if room < 0:
            break
        fitting.append(piece)
    return fitting
