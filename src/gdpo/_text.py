"""Makes sentences and commands from facts, and untrusted text safe for a terminal or a log."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from shlex import quote
from typing import Any, TypeAlias

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


class Setting(StrEnum):
    """Names what a user can set. The values are arguments in Python."""

    COLUMNS = "columns"
    FORMAT = "format"
    GROUP_SIZE = "group_size"
    RANGE = "low, high"
    RESCORE = "rescore"
    REWARDS = "rewards"
    WEIGHTS = "weights"

    @property
    def option(self) -> str:
        """The option of `gdpo analyze`."""
        return _OPTIONS.get(self, f"--{self}")


_OPTIONS = {
    Setting.FORMAT: "--columns format=NAME",
    Setting.GROUP_SIZE: "--columns group_size=NUMBER",
    Setting.RANGE: "--range",
}

Remedy: TypeAlias = Mapping[str, Setting | None]
"""What to do, in the order of the sentence, and what to set for each part."""

NO_REMEDY: Remedy = {}


def advice(remedy: Remedy, *, options: bool = False) -> str:
    """Return a remedy as a sentence that names arguments, or with `options`, options.

    >>> remedy = {"declare its range": Setting.RANGE, "or fix it": None}
    >>> advice(remedy), advice(remedy, options=True)
    ('declare its range (low, high), or fix it', 'declare its range (--range), or fix it')
    """
    return ", ".join(
        what if each is None else f"{what} ({each.option if options else each})"
        for what, each in remedy.items()
    )


def remedied(what: str, remedy: Remedy, *, options: bool = False) -> str:
    """Return what is wrong with its remedy, if any, which names arguments or options.

    >>> remedied("two groups differ", {"give their size": Setting.GROUP_SIZE})
    'two groups differ: give their size (group_size)'
    """
    return f"{what}: {advice(remedy, options=options)}" if remedy else what


def typed(options: Mapping[str, str]) -> str:
    """Return options as they are typed in a shell. An option without a value is a flag."""
    return " ".join(f"{name} {quote(value)}" if value else name for name, value in options.items())


def pairs(values: Mapping[str, object]) -> str:
    """Return values by name as the value of an option."""
    return ",".join(f"{name}={value}" for name, value in values.items())


def options_of(
    rewards: Iterable[str], columns: Mapping[str, object], weights: Mapping[str, str]
) -> dict[str, str]:
    """Return options of a command, as text, without those that would be empty."""
    options = {
        "--rewards": ",".join(rewards),
        "--columns": pairs(columns),
        "--weights": pairs(weights),
    }
    return {name: value for name, value in options.items() if value}


def command(verb: str, paths: Iterable[object], options: Mapping[str, str]) -> str:
    """Return a command of gdpo as it is typed in a shell.

    >>> command("analyze", ["my run"], {"--rewards": "a,b", "--example": ""})
    "gdpo analyze 'my run' --rewards a,b --example"
    """
    words = "gdpo", verb, *(quote(str(path)) for path in paths), typed(options)
    return " ".join(filter(None, words))
