r"""Whether an answer equals a row's: the text is read by math-verify, with what it needs around it.

It needs the extra `math`, and a second to import sympy. The reward's function stands here, so that
a worker process has imported all that before its first deadline begins.
"""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from math import inf, lgamma, log, log10
from typing import Any

import sympy as sp
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse

from gdpo.rewards._maths import PERCENT, Either, clean, same, without_label
from gdpo.rewards.reward import Reference

# It warns that it has no time-out; the scorer has one.
logging.getLogger("math_verify.parser").setLevel(logging.ERROR)

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
    r"|partial|max|min|xrightarrow|begin\s*\{vmatrix\}|variable)|\)\s*(?:'|\^\s*\{?\\prime)"
)
_OR = re.compile(
    r"\\(?:text|mbox)\s*\{\s*,?\s*or\s*\}|\\(?:lor|vee)(?![a-zA-Z])|(?<![a-zA-Z])or(?![a-zA-Z])"
)
_INEQUALITY = re.compile(r"[<>≤≥]|\\(?:[lg]eq?|[lg]t|[lg]eqslant)(?![a-zA-Z])")
_EQUALS = re.compile(r"(?<![<>!\\])=")


def correctness(
    completion: str, reference: Reference, *, extract: Callable[[str], str | None]
) -> float | None:
    """1 if the answer that is extracted from a completion equals the row's, else 0."""
    given = reference["answer"]
    gold = "" if given is None else str(given)
    if _read_gold(gold) is None:
        return None
    _, thought, rest = completion.partition("</think>")
    answer = extract((rest if thought else completion)[-_SEARCHED:])
    return 0.0 if answer is None else float(_equal(answer, gold))


@lru_cache(maxsize=1024)
def _read_gold(gold: str) -> Any:
    """A row's answer as an expression, or None where it is not even equal to itself."""
    letter, rest = without_label(gold)
    read = _read(rest if letter and rest else gold)
    return None if read is None or not same(read, read) else read


def _equal(answer: str, gold: str) -> bool:
    """Whether an answer, whatever a model wrote, is equal to a row's that can be read."""
    if len(answer) > _LONGEST or _depth(answer) > _DEEPEST:
        return False
    if not set(_UNWORKED.findall(answer)) <= set(_UNWORKED.findall(gold)):
        return False
    choice, rest = without_label(answer)
    gold_choice, gold_rest = without_label(gold)
    if choice and gold_choice and choice != gold_choice:
        return False
    if choice and gold_choice and not (rest and gold_rest):
        return True
    return _equal_value(rest if choice and rest else answer, gold, gold_rest)


def _equal_value(answer: str, gold: str, gold_text: str) -> bool:
    text = clean(answer)
    if not text:
        return False
    if text == clean(gold_text):
        return True
    read = _read_clean(text)
    if read is None or _digits(read) > _DIGITS:
        return False
    row = _read_gold(gold)
    return same(row, read) and (not _differentiates(read) or _differentiates(row))


def _differentiates(expression: Any) -> bool:
    """Whether something is still to be differentiated; the left side of dy/dx = 2x is a name."""
    if isinstance(expression, sp.Eq) and isinstance(expression.lhs, sp.Derivative):
        return _differentiates(expression.rhs) or not isinstance(expression.lhs.args[0], sp.Symbol)
    return expression.has(sp.Derivative)


def _read(answer: str) -> Any:
    return _read_clean(clean(answer))


def _read_clean(text: str) -> Any:
    """One expression, or None."""
    parts = _OR.split(text)
    if len(parts) > 1 and all(_INEQUALITY.search(part) for part in parts):
        read = [_parse(part) for part in parts]
        return None if None in read else Either(*read)
    read = _parse(text)
    if text.count("%") > 1 and not re.search(r"%.*[,=].*%", text):
        return None
    if read is None and text.endswith("%"):
        number = _parse(text.removesuffix("%").removesuffix("\\"))
        return sp.Mul(number, PERCENT, evaluate=False) if isinstance(number, sp.Expr) else None
    # Of a chain of equations that it cannot read, math-verify takes the last part.
    last_only = len(_EQUALS.findall(text)) > 1 and read is not None and not read.has(sp.Eq)
    return None if last_only else read


def _parse(text: str) -> Any:
    read = parse(
        rf"\boxed{{{text}}}",
        extraction_config=[_READING],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        # A time-out is a signal there, which raises outside the main thread.
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]
    )
    # Of \subset it is True or False.
    return read[0] if read and isinstance(read[0], sp.Basic | sp.MatrixBase) else None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _digits(expression: Any) -> float:
    """About as many digits as the largest number in it has before the point, worked out."""
    if isinstance(expression, sp.Rational):
        # A logarithm takes integers of any size, a float does not.
        return log10(max(abs(expression.p), 1))
    matrix = isinstance(expression, sp.MatrixBase)
    parts = [_digits(p) for p in (expression.flat() if matrix else getattr(expression, "args", ()))]
    try:
        if isinstance(expression, sp.Pow):
            return max(parts[0], 0.1) * 10 ** parts[1]
        if isinstance(expression, sp.factorial | sp.gamma):
            return lgamma(10 ** parts[0] + 1) / log(10)
    except OverflowError:
        return inf
    if isinstance(expression, sp.Add):
        return max(parts) + log10(len(parts))
    return max(parts, default=0.0) if matrix else sum(parts)
