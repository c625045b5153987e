r"""Compares an extracted answer with the reference answer.

This module requires the `math` extra. Importing sympy takes about a second. The reward's function
is defined here so that a worker process finishes this import before its first deadline starts.
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
from gdpo.rewards._wording import SETS, contradict, phrase, plain, same_letters
from gdpo.rewards.reward import Reference

# math-verify warns that its timeout is disabled. The scorer enforces a deadline instead.
logging.getLogger("math_verify.parser").setLevel(logging.ERROR)

_READING = LatexExtractionConfig(
    try_extract_without_anchor=False,
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
    ),
)

_SEARCHED = 100_000
"""Number of characters at the end of a completion that are searched for the answer."""

_LONGEST = 300
"""Maximum length of an answer, in characters. The longest answer in MATH has 159 characters."""

_DEEPEST = 10
"""Maximum depth of nested brackets. Parsing time grows exponentially with the depth. MATH needs
3."""

_DIGITS = 10_000
"""Maximum number of digits of an evaluated answer. The longest answer in MATH has 1,491 digits."""

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
    """Return 1 if the answer extracted from a completion equals the reference answer, else 0.

    None: the reference answer is missing or cannot be parsed.
    """
    given = reference["answer"]
    gold = "" if given is None else plain(str(given))
    if _read_gold(gold) is None:
        return None
    _, thought, rest = completion.partition("</think>")
    answer = extract((rest if thought else completion)[-_SEARCHED:])
    return 0.0 if answer is None else float(_equal(answer, gold))


@lru_cache(maxsize=1024)
def _read_gold(gold: str) -> Any:
    letter, rest = without_label(gold)
    read = _read(rest if letter and rest else gold)
    return None if read is None or not same(read, read) else read


def _equal(answer: str, gold: str) -> bool:
    if len(answer) > _LONGEST or _depth(answer) > _DEEPEST:
        return False
    answer = plain(answer)
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
    (text, unit), (gold_clean, gold_unit) = clean(answer), clean(gold_text)
    if not text or contradict(unit, gold_unit):
        return False
    if text == gold_clean or same_letters(answer, gold_text):
        return True
    read = _read(answer)
    if read is None or _digits(read) > _DIGITS:
        return False
    row = _read_gold(gold)
    return same(row, read) and (not _differentiates(read) or _differentiates(row))


def _differentiates(expression: Any) -> bool:
    # In dy/dx = 2x, the left side counts as a name, not as an unevaluated derivative.
    if isinstance(expression, sp.Eq) and isinstance(expression.lhs, sp.Derivative):
        return _differentiates(expression.rhs) or not isinstance(expression.lhs.args[0], sp.Symbol)
    return expression.has(sp.Derivative)


def _read(answer: str) -> Any:
    words = phrase(answer)
    if words is not None:
        return _parse(SETS[words]) if words in SETS else sp.Symbol(words, real=True)
    text, _ = clean(answer)
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
    # If math-verify cannot read a chain of equations, it returns only the last part.
    last_only = len(_EQUALS.findall(text)) > 1 and read is not None and not read.has(sp.Eq)
    return None if last_only else read


def _parse(text: str) -> Any:
    read = parse(
        rf"\boxed{{{text}}}",
        extraction_config=[_READING],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        # math-verify's timeout uses a signal, which fails outside the main thread.
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]
    )
    # For \subset, math-verify returns True or False.
    return read[0] if read and isinstance(read[0], sp.Basic | sp.MatrixBase) else None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _digits(expression: Any) -> float:
    """Estimate how many digits the largest number in an expression has once it is evaluated."""
    if isinstance(expression, sp.Rational):
        # log10 takes integers of any size. A float would overflow.
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
