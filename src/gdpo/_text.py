"""Makes untrusted text, such as the name of a reward, safe to show in a terminal or a log."""

from collections.abc import Iterable
from typing import Any

_KEPT = frozenset("\n\t\u200c\u200d")
"""Non-printable characters that occur in ordinary text: newline, tab, and the joiners in Persian
text and emoji."""


def visible(text: str) -> str:
    r"""Return the text with hidden characters and surrogates replaced by codes such as `⟨U+202E⟩`.

    >>> visible("safe\u202etxt.exe")
    'safe⟨U+202E⟩txt.exe'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else f"⟨U+{ord(c):04X}⟩" for c in text)


def one_line(text: str) -> str:
    r"""Return the text on one line without control characters, safe for a terminal.

    >>> one_line("a\x1b[31m\nb")
    'a⟨U+001B⟩[31m b'
    """
    return " ".join(visible(text).split())


def capitalized(text: str) -> str:
    """Return the text with a capital first letter."""
    return f"{text[:1].upper()}{text[1:]}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun, as in `1,200 steps`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


_LONGEST = 60


def describe(value: Any) -> str:
    """Describe a value for an error message: "nothing", or the type and the first characters."""
    if value is None:
        return "nothing"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}"


def quoted(names: Iterable[str]) -> str:
    """Return names in backticks, as in a sentence.

    >>> quoted(["correctness", "format"])
    '`correctness` and `format`'
    """
    return " and ".join(f"`{name}`" for name in names)
