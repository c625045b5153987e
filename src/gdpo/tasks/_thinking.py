"""Takes the thinking off a completion. What is named inside it is prose, and never a field."""

import unicodedata

_OPEN, _CLOSE = "<think>", "</think>"

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that print nothing."""


def holds_something(text: str) -> bool:
    """Return whether a text has a letter, a digit, a sign or a symbol that can be seen.

    Spaces, control characters and characters of no width are nothing.
    """
    return any(unicodedata.category(c)[0] in "LNPS" and c not in _BLANK for c in text)


def split_thinking(text: str) -> tuple[str | None, str]:
    """Part a completion into its thinking and what follows.

    The thinking ends at the first `</think>`: whatever tags stand before that are only named, not
    written.

    Args:
        text: A completion, or a gold text.

    Returns:
        The text between `<think>` and the first `</think>`, and the rest. The first is `None` where
        the text does not begin with `<think>` (after whitespace) or never closes it. The rest is
        all of the text where no `</think>` stands in it.
    """
    before, closed, rest = text.partition(_CLOSE)
    if not closed:
        return None, text
    begun = before.lstrip()
    return (begun.removeprefix(_OPEN) if begun.startswith(_OPEN) else None), rest
