"""Separates the thinking from the rest of a completion. Tags in the thinking are plain text."""

import unicodedata

_OPEN, _CLOSE = "<think>", "</think>"

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Invisible characters that Unicode classifies as letters or symbols."""


def holds_something(text: str) -> bool:
    """Return whether a text contains a visible letter, digit, punctuation mark or symbol.

    Spaces, control characters and zero-width characters do not count.
    """
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _BLANK for c in text)


def split_thinking(text: str) -> tuple[str | None, str]:
    """Split a completion at the first `</think>` into its thinking and the rest.

    The thinking is None if the text does not start with `<think>` (after whitespace) or has no
    `</think>`. Without a `</think>`, the rest is the whole text.
    """
    before, closed, rest = text.partition(_CLOSE)
    if not closed:
        return None, text
    begun = before.lstrip()
    return (begun.removeprefix(_OPEN) if begun.startswith(_OPEN) else None), rest
