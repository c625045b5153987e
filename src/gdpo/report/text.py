"""Text of unknown origin made fit to be shown: nothing in it hides, and none of it is endless."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isnan, log10
from typing import Any

from gdpo._files import to_json

_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""In a script element: what could end it, or is no text."""

_KEPT = frozenset("\n\t\u200c\u200d")
"""Not printable, and part of ordinary text: lines, Persian, and emoji that are several in one."""

_MESSAGES = 10
"""First and last messages of a chat that are shown."""

Message = tuple[str, str, int, str]
"""Role, start of the text, count of characters left out after it, end of the text."""


def visible(text: str) -> str:
    r"""The text with control characters, marks of direction and lone surrogates as `⟨U+202E⟩`.

    >>> visible("safe\u202etxt.exe")
    'safe⟨U+202E⟩txt.exe'
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def one_line(text: str) -> str:
    r"""The text made visible, on a line of its own: it can neither command a terminal nor go on.

    >>> one_line("a\x1b[31m\nb")
    'a⟨U+001B⟩[31m b'
    """
    return " ".join(visible(text).split())


def cut(text: str, limit: int) -> tuple[str, int, str]:
    """Start and end of a text, made visible, with the count of characters left out between them.

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
    """A prompt or completion as messages to be shown; all of them have `limit` characters.

    Of a very long chat the first and the last ones are shown, with a message between them that
    says how many are not.
    """
    chat: Sequence[Mapping[str, Any]] = (
        [{"role": "", "content": text}] if isinstance(text, str) else text
    )
    left_out = len(chat) - 2 * _MESSAGES
    kept = chat if left_out <= 0 else [*chat[:_MESSAGES], *chat[-_MESSAGES:]]
    contents = [str(message.get("content") or "") for message in kept]
    most = max(limit // max(1, len(kept)), limit - sum(map(len, contents)))
    shown: list[Message] = [
        ("".join(_fitting(str(message.get("role") or ""), 40)), *cut(content, most))
        for message, content in zip(kept, contents, strict=True)
    ]
    if left_out > 0:
        shown.insert(_MESSAGES, ("", f"… {left_out:,} messages left out …", 0, ""))
    return shown


def embedded(data: Any) -> str:
    r"""JSON that stays inside its script element.

    >>> print(embedded({"text": "</script>"}))
    {"text": "\u003c/script\u003e"}
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", to_json(data))


def number(value: float, low: float = 0.0, high: float = 1.0, *, sign: bool = False) -> str:
    """A number of a quantity from `low` to `high`, to about a thousandth of that; – for NaN."""
    if isnan(value):
        return "–"
    digits = min(6, max(0, 3 - ceil(log10(high - low)))) if high > low else 3
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def short(value: float) -> str:
    """A number as briefly as it can be written."""
    return f"{value:g}".replace("-", "−")


def probability(p: float) -> str:
    """A p-value to two digits."""
    if isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _shown(character: str) -> str:
    if character.isprintable() or character in _KEPT:
        return character
    return f"⟨U+{ord(character):04X}⟩"


def _fitting(text: Iterable[str], room: int) -> list[str]:
    """The first characters of a text, each made visible, as many as there is room for."""
    fitting: list[str] = []
    for shown in map(_shown, text):
        room -= len(shown)
        if room < 0:
            break
        fitting.append(shown)
    return fitting
