r"""Compares an extracted answer with the reference answer.

Numbers (`_same_number`), percentages, the value that an equation states (`_stated`), and the
elements of lists, points, intervals and matrices are compared here, and everything else by
`math_verify.verify`.

This module requires the `math` extra. Importing sympy takes about a second. The reward's function
is defined here so that a worker process finishes this import before its first deadline starts.
"""

import logging
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import inf, lgamma, log, log10
from typing import Any

import sympy as sp
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.functions.elementary.trigonometric import TrigonometricFunction

from gdpo.rewards._wording import (
    SETS,
    clean,
    contradict,
    phrase,
    plain,
    same_letters,
    without_label,
)
from gdpo.rewards.reward import Reference
from gdpo.rewards.text import answer_part

# math-verify warns that its timeout is disabled. The scorer enforces a deadline instead.
for _name in ("grader", "parser"):
    logging.getLogger(f"math_verify.{_name}").setLevel(logging.ERROR)

_READING = LatexExtractionConfig(
    try_extract_without_anchor=False,
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last"
    ),
)

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
    answer = extract(answer_part(completion))
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
        return None if None in read else _Either(*read)
    read = _parse(text)
    if text.count("%") > 1 and not re.search(r"%.*[,=].*%", text):
        return None
    if read is None and text.endswith("%"):
        number = _parse(text.removesuffix("%").removesuffix("\\"))
        return sp.Mul(number, _PERCENT, evaluate=False) if isinstance(number, sp.Expr) else None
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
        parsing_timeout=0,
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
    """Estimate how many digits the largest number in an evaluated expression has."""
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


# Whether two expressions are equal.

_PERCENT = sp.UnevaluatedExpr(sp.Rational(1, 100))
"""Factor that math-verify uses for a percent sign."""

_FAULTS = (
    ArithmeticError,
    ValueError,
    TypeError,
    NotImplementedError,
    AttributeError,
    RecursionError,
)
"""Exceptions that sympy raises when it cannot evaluate an expression."""


def _tried(compute: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return compute()
    except _FAULTS:
        return otherwise


_WORKING = 50
"""Precision with which numbers are evaluated, in digits."""


class _Either(sp.Tuple):
    """Stores inequalities that are joined by "or"."""


def same(gold: Any, answer: Any) -> bool:
    ours, theirs = _members(gold), _members(answer)
    if ours and theirs:
        return _same_equation(gold, answer, ours, theirs)
    gold, answer = _stated(gold), _stated(answer)
    if gold is None or answer is None:
        return False
    lists = isinstance(gold, sp.FiniteSet) or isinstance(answer, sp.FiniteSet)
    if not lists and isinstance(gold, _Either) is not isinstance(answer, _Either):
        gold, answer = _as_set(gold), _as_set(answer)
        return gold is not None and answer is not None and _verify(gold, answer)
    by_parts = _same_parts(gold, answer)
    return _same_value(gold, answer) if by_parts is None else by_parts


def _members(expression: Any) -> list[Any] | None:
    relations = _args(expression) if isinstance(expression, sp.And) else [expression]
    if not relations or not all(isinstance(relation, sp.Eq) for relation in relations):
        return None
    return [relations[0].lhs, *(relation.rhs for relation in relations)]


def _stated(expression: Any) -> Any:
    """Return the value that an equation states, or None. Return other expressions unchanged."""
    sides = _members(expression)
    if sides is None:
        return expression
    while len(sides) > 1 and _is_name(sides[0]):
        sides = sides[1:]
    *others, last = sides
    if others and isinstance(last, sp.Symbol) and not any(x.has(last) for x in others):
        *others, last = others
    return last if all(same(last, other) for other in others) else None


def _is_name(side: Any) -> bool:
    """Return whether a side is a name: letters (x, AB, x - y, a/b) or a function such as f(2)."""
    if isinstance(side, sp.Symbol) or side in (sp.E, sp.I):
        return True
    if isinstance(side, AppliedUndef | TrigonometricFunction):
        return True
    if isinstance(side, sp.Derivative):
        return isinstance(side.args[0], sp.Symbol)
    if isinstance(side, sp.Tuple | sp.Abs):
        return all(map(_is_name, side.args))
    if isinstance(side, sp.Add | sp.Mul):
        names = [_is_name(x) for x in side.args]
        less = sp.Pow if isinstance(side, sp.Mul) else sp.Mul
        taken = [isinstance(x, less) and _is_taken(x) for x in side.args]
        return any(names) and all(a or b for a, b in zip(names, taken, strict=True))
    return False


def _is_taken(part: Any) -> bool:
    """Return whether a part is a term such as -y in x - y, or a factor such as 1/b in a/b."""
    other = [x for x in part.args if x != -1]
    return len(other) < len(part.args) and all(map(_is_name, other))


def _same_equation(gold: Any, answer: Any, ours: list[Any], theirs: list[Any]) -> bool:
    if len(ours) == len(theirs) and all(map(same, ours, theirs)):
        return True
    left, right = _closed(gold, ours), _closed(answer, theirs)
    if left is None or right is None:
        return False
    if _is_name(left.lhs) and _is_name(right.lhs) and _verify(left.lhs, right.lhs):
        return same(left.rhs, right.rhs)
    if not _names(gold):
        return same(_stated(gold), _stated(answer))
    if not _verify(left, right):
        return False
    # math-verify treats all equations without a solution as equal.
    return bool(_tried(lambda: sp.solve(left, _symbols(left)), otherwise=True))


def _closed(equation: Any, sides: list[Any]) -> Any:
    """Return a chain as one equation, or None if its parts contradict each other."""
    if len(sides) == 2:
        return equation
    stated = _stated(equation)
    return None if stated is None else sp.Eq(sides[0], stated, evaluate=False)


def _as_set(expression: Any) -> Any:
    if not isinstance(expression, _Either):
        return expression
    return _tried(lambda: sp.Union(*(part.as_set() for part in _args(expression))), None)


def _same_parts(gold: Any, answer: Any) -> bool | None:
    if isinstance(gold, sp.MatrixBase) and isinstance(answer, sp.MatrixBase):
        return gold.shape == answer.shape and all(map(same, gold.flat(), answer.flat()))
    if isinstance(gold, sp.Interval) and isinstance(answer, sp.Interval):
        ends = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
        return bool(ends) and same(gold.start, answer.start) and same(gold.end, answer.end)
    ours, theirs = _components(gold), _components(answer)
    if ours is None or theirs is None:
        return None
    if len(ours) != len(theirs):
        return False
    if isinstance(gold, sp.FiniteSet | _Either):
        return _same_in_any_order(ours, theirs)
    return all(map(same, ours, theirs))


def _components(expression: Any) -> list[Any] | None:
    if isinstance(expression, sp.Interval):
        return [expression.start, expression.end] if expression.is_open else None
    return _args(expression) if isinstance(expression, sp.FiniteSet | sp.Tuple) else None


def _args(expression: Any) -> list[Any]:
    """Return the parts of an expression, if possible in the order in which they were written."""
    return list(dict.fromkeys(getattr(expression, "_unsorted_args", ()))) or list(expression.args)


def _same_in_any_order(ours: Iterable[Any], theirs: list[Any]) -> bool:
    left = list(theirs)
    for one in ours:
        place = next((i for i, other in enumerate(left) if same(one, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _same_value(gold: Any, answer: Any) -> bool:
    ours, gold_percent = _without_percent(gold)
    theirs, percent = _without_percent(answer)
    if gold_percent and not percent:
        return _same_expression(ours, theirs) or _same_expression(_hundredth(ours), theirs)
    if percent and not gold_percent:
        value = _value(ours)
        is_proportion = value is not None and bool(abs(value) <= 1)
        theirs = _hundredth(theirs) if is_proportion else theirs
    return _same_expression(ours, theirs)


def _without_percent(expression: Any) -> tuple[Any, bool]:
    if isinstance(expression, sp.Mul) and _PERCENT in expression.args:
        return sp.Mul(*(x for x in expression.args if x != _PERCENT), evaluate=False), True
    return expression, False


def _hundredth(expression: Any) -> Any:
    return sp.Mul(expression, sp.Rational(1, 100), evaluate=False)


def _same_expression(gold: Any, answer: Any) -> bool:
    gold = _renamed(gold, {s: sp.I for s in _symbols(gold) if s.name == "i"})
    named = {s.name: s for s in _symbols(gold)} | {"i": sp.I}
    answer = _renamed(answer, {s: named.get(s.name, s) for s in _symbols(answer)})
    ours, theirs = _value(gold), _value(answer)
    if isinstance(ours, sp.Rational) and isinstance(theirs, sp.Rational):
        return bool(ours == theirs)
    if ours is not None and theirs is not None:
        return _same_number(gold, answer, ours, theirs)
    if isinstance(gold, Relational) and type(gold) is type(answer) and gold.lhs == answer.lhs:
        return same(gold.rhs, answer.rhs)
    gold, answer = _split_roots(gold), _split_roots(answer)
    return _verify(gold, answer) and not _far_apart(gold, answer)


def _split_roots(expression: Any) -> Any:
    """Return an expression whose roots and logarithms of products are split into their factors."""
    if not isinstance(expression, sp.Expr):
        return expression
    return _tried(lambda: expression.replace(_is_root_of_factors, _split), expression)


def _is_root_of_factors(part: Any) -> bool:
    inner = part.args[0] if part.args else None
    root = isinstance(part, sp.Pow) and part.exp.is_Rational and not part.exp.is_Integer
    return (root or isinstance(part, sp.log)) and isinstance(inner, sp.Mul | sp.Pow)


def _split(part: Any) -> Any:
    product = part.args[0].func(*part.args[0].args)
    factors = [x.as_base_exp() for x in sp.Mul.make_args(product)]
    if any(base.is_negative or not power.is_Integer for base, power in factors):
        return part
    if sum(not (base.is_Symbol or base.is_number) for base, _ in factors) > 1:
        return part  # such as (x - 1)(x - 2), which may be positive if both factors are negative
    if isinstance(part, sp.log):
        terms = [
            power * sp.log(base if power % 2 else sp.Abs(base), *part.args[1:])
            for base, power in factors
        ]
        return sp.Add(*terms)
    odd = [(base, power) for base, power in factors if power % 2 or part.exp.q % 2]
    rest = sp.Mul(*(base**power for base, power in factors if (base, power) not in odd))
    return sp.Mul(rest**part.exp, *(base ** (power * part.exp) for base, power in odd))


def _symbols(expression: Any) -> list[Any]:
    parts = expression.free_symbols if isinstance(expression, sp.Basic) else ()
    return [s for s in parts if isinstance(s, sp.Symbol)]


def _names(expression: Any) -> set[str]:
    return {s.name for s in _symbols(expression)}


def _renamed(expression: Any, names: dict[Any, Any]) -> Any:
    names = {old: new for old, new in names.items() if old != new}
    # It fails for example for i < 3, or an interval that starts at i.
    return _tried(lambda: expression.xreplace(names), expression) if names else expression


def _value(expression: Any) -> Any:
    if not isinstance(expression, sp.Expr) or expression.free_symbols:
        return None
    if isinstance(expression, sp.Rational):
        return expression
    try:
        value = expression.evalf(_WORKING)
        real, imaginary = value.as_real_imag()
        known = real.is_Number and imaginary.is_Number and value.is_finite
    except _FAULTS:
        return None
    return value if known else None


def _same_number(gold: Any, answer: Any, ours: Any, theirs: Any) -> bool:
    """Return whether two numbers are equal exactly or, if one is a decimal, after rounding."""
    exact = [x for x in (gold, answer) if not x.has(sp.Float)]
    size, apart = max(abs(ours), abs(theirs)), abs(ours - theirs)
    if len(exact) == 2:
        settled = sp.Float("1e-30") < size < sp.Float("1e40")
        near = bool(apart <= size * sp.Float("1e-40"))
        if settled or (size > 1 and not near):
            return near
        return _tried(lambda: sp.simplify(gold - answer) == 0, otherwise=False)
    if any(x.is_integer for x in exact):
        return bool(apart <= size * sp.Float("1e-14"))
    if size < sp.Float("1e-3"):
        return bool(apart <= size * sp.Float("5e-6"))
    return bool(apart <= max(sp.Float("5.000001e-7"), size * sp.Float("1e-14")))


def _far_apart(gold: Any, answer: Any) -> bool:
    # math-verify drops terms below 1e-15. Expressions that differ only in them differ at a point.
    if not isinstance(gold, sp.Expr) or not isinstance(answer, sp.Expr):
        return False
    if isinstance(gold, sp.Symbol) or isinstance(answer, sp.Symbol):
        return False
    names = sorted(_names(gold) | _names(answer))
    point = {name: sp.Rational(7 + 3 * i, 5 + 2 * i) for i, name in enumerate(names)}

    def at(x: Any) -> Any:
        return _tried(lambda: _value(x.xreplace({s: point[s.name] for s in _symbols(x)})), None)

    values = [at(x) for x in (gold, answer)]
    if None in values:
        return False
    near = sp.Float("1e-9" if any(x.has(sp.Float) for x in (gold, answer)) else "1e-25")
    return bool(abs(values[0] - values[1]) > near * max(map(abs, values)))


def _verify(gold: Any, answer: Any) -> bool:
    return verify([gold], [answer], allow_set_relation_comp=True, timeout_seconds=None)
