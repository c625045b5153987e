r"""Whether two answers are equal as mathematics: math-verify, and what it needs around it.

It needs the extra `math`, and a second to import sympy. The reward's function stands here, so that
a worker process has imported all that before its first deadline begins.
"""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from math import inf, lgamma, log, log10
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Add, MatrixBase, Pow, Rational, factorial, gamma

from gdpo.rewards._reward import Reference

# They warn that they have no time-out; the scorer has one.
for _part in ("parser", "grader"):
    logging.getLogger(f"math_verify.{_part}").setLevel(logging.ERROR)

_READING = LatexExtractionConfig(
    try_extract_without_anchor=False,
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
    ),
)

_SEARCHED = 100_000
"""Characters at the end of a completion in which its answer is looked for."""

_LONGEST = 300
"""Characters of an answer; the longest of MATH has 159."""

_DEEPEST = 10
"""Brackets within brackets: reading takes time exponential in them; the deepest of MATH has 3."""

_DIGITS = 10_000
"""Of the numbers in an answer, worked out; the longest of MATH has 1,491."""

_UNWORKED = re.compile(
    r"\\(?:sum|prod|i*int|oint|lim|[dt]?binom|choose|gcd|lcm|det|[bp]?mod|operatorname|Gamma|nabla"
    r"|partial|max|min|xrightarrow|begin\s*\{vmatrix\}|variable)|\\frac\s*\{d\}"
)

_AROUND = re.compile(r"\\?\$|^\\[(\[]|\\[)\]]$")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\!|\\,)(?=[0-9]{3}(?![0-9]))")
_UNIT = re.compile(
    r"(?:\\[,;:! ]|~|\s)*\\(?:text(?:rm|normal|bf|it)?|mbox|mathrm)\s*\{[^{}]*\}"
    r"\s*(?:\^\s*(?:[0-9]|\{[0-9]\}))?$"
)


def correctness(
    completion: str, reference: Reference, *, extract: Callable[[str], str | None]
) -> float | None:
    """1 if the answer that is extracted from a completion equals the row's, else 0."""
    given = reference["answer"]
    gold = "" if given is None else str(given)
    if not _read_gold(gold):
        return None
    _, thought, rest = completion.partition("</think>")
    answer = extract((rest if thought else completion)[-_SEARCHED:])
    return 0.0 if answer is None else float(_equal(answer, gold))


@lru_cache(maxsize=1024)
def _read_gold(gold: str) -> tuple[Any, ...]:
    """A row's answer as math-verify reads it, empty where it is not even equal to itself."""
    read = _read(gold)
    return read if _verify(read, read) else ()


def _equal(answer: str, gold: str) -> bool:
    """Whether an answer, whatever a model wrote, is equal to a row's that can be read."""
    if len(answer) > _LONGEST or _depth(answer) > _DEEPEST:
        return False
    if not set(_UNWORKED.findall(answer)) <= set(_UNWORKED.findall(gold)):
        return False
    read = _read(answer)
    return max(map(_digits, read), default=0) <= _DIGITS and _verify(_read_gold(gold), read)


def _read(answer: str) -> tuple[Any, ...]:
    """One expression, or nothing."""
    read = parse(
        rf"\boxed{{{_clean(answer)}}}",
        extraction_config=[_READING],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        # A time-out is a signal there, which raises outside the main thread.
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]
    )
    return tuple(read)


def _verify(gold: tuple[Any, ...], answer: tuple[Any, ...]) -> bool:
    return verify(list(gold), list(answer), allow_set_relation_comp=True, timeout_seconds=None)


def _clean(answer: str) -> str:
    """Without what is not mathematics: delimiters, a full stop, a unit."""
    bare = _AROUND.sub("", answer.strip()).strip().rstrip(".,;").strip()
    bare = _THOUSANDS.sub("", bare).removeprefix(r"\approx").strip()
    unit = _UNIT.search(bare)
    number = bare[: unit.start()] if unit else ""
    return number if any("0" <= character <= "9" for character in number) else bare


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _digits(expression: Any) -> float:
    """About as many digits as the largest number in it has before the point, worked out."""
    if isinstance(expression, Rational):
        # A logarithm takes integers of any size, a float does not.
        return log10(max(abs(expression.p), 1))
    matrix = isinstance(expression, MatrixBase)
    parts = [_digits(p) for p in (expression.flat() if matrix else getattr(expression, "args", ()))]
    try:
        if isinstance(expression, Pow):
            return max(parts[0], 0.1) * 10 ** parts[1]
        if isinstance(expression, factorial | gamma):
            return lgamma(10 ** parts[0] + 1) / log(10)
    except OverflowError:
        return inf
    if isinstance(expression, Add):
        return max(parts) + log10(len(parts))
    return max(parts, default=0.0) if matrix else sum(parts)
