r"""Whether two expressions are equal, as far as an answer can be.

Decided here: numbers (`_same_number`), percent, what an equation states (`_stated`), and lists,
points, intervals and matrices by their parts. Everything else is `math_verify.verify`, which would
compare numbers to 6 places whatever their size, and take the right side of any equation.
"""

import logging
from collections.abc import Iterable
from typing import Any

from math_verify import verify
from sympy import (
    Abs,
    Add,
    And,
    Basic,
    Derivative,
    E,
    Eq,
    Expr,
    FiniteSet,
    Float,
    I,
    Interval,
    MatrixBase,
    Mul,
    Pow,
    Rational,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    Union,
    simplify,
    solve,
)
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.functions.elementary.trigonometric import TrigonometricFunction

# It warns that it has no time-out; the scorer has one.
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)

PERCENT = UnevaluatedExpr(Rational(1, 100))
"""The factor as which math-verify reads a percent sign."""

_FAULTS = (
    ArithmeticError,
    ValueError,
    TypeError,
    NotImplementedError,
    AttributeError,
    RecursionError,
)
"""What sympy raises where it cannot work something out."""

_WORKING = 50
"""Digits to which numbers are worked out."""


class Either(Tuple):
    """Inequalities joined by "or"."""


def same(gold: Any, answer: Any) -> bool:
    """Return whether an answer is equal to a row's."""
    ours, theirs = members(gold), members(answer)
    if ours and theirs:
        return _same_equation(gold, answer, ours, theirs)
    gold, answer = _stated(gold), _stated(answer)
    if gold is None or answer is None:
        return False
    lists = isinstance(gold, FiniteSet) or isinstance(answer, FiniteSet)
    if not lists and isinstance(gold, Either) is not isinstance(answer, Either):
        gold, answer = _as_set(gold), _as_set(answer)
        return gold is not None and answer is not None and _verify(gold, answer)
    by_parts = _same_parts(gold, answer)
    return _same_value(gold, answer) if by_parts is None else by_parts


def members(expression: Any) -> list[Any] | None:
    """Return the sides of an equation or of a chain of them, None if it is neither."""
    relations = _args(expression) if isinstance(expression, And) else [expression]
    if not relations or not all(isinstance(relation, Eq) for relation in relations):
        return None
    return [relations[0].lhs, *(relation.rhs for relation in relations)]


def _stated(expression: Any) -> Any:
    """What an equation says that something is; what is no equation, as it stands.

    The sides that remain without names must be equal to each other: x = 2 + 3 = 5 states 5;
    x = 6 = 5, 2x = 5 and 3 = 5 state nothing (None).
    """
    sides = members(expression)
    if sides is None:
        return expression
    while len(sides) > 1 and _is_name(sides[0]):
        sides = sides[1:]
    *others, last = sides
    if others and isinstance(last, Symbol) and not any(x.has(last) for x in others):
        *others, last = others
    return last if all(same(last, other) for other in others) else None


def _is_name(side: Any) -> bool:
    """Whether a side is letters only: x, AB, x - y, a/b, or a function of something, as f(2)."""
    if isinstance(side, Symbol) or side == E:
        return True
    if isinstance(side, AppliedUndef | TrigonometricFunction):
        return True
    if isinstance(side, Derivative):
        return isinstance(side.args[0], Symbol)
    if isinstance(side, Tuple | Abs):
        return all(map(_is_name, side.args))
    if isinstance(side, Add | Mul):
        names = [_is_name(x) for x in side.args]
        less = Pow if isinstance(side, Mul) else Mul
        taken = [isinstance(x, less) and _is_taken(x) for x in side.args]
        return any(names) and all(a or b for a, b in zip(names, taken, strict=True))
    return False


def _is_taken(part: Any) -> bool:
    """Whether it is -y of x - y, or 1/b of a/b."""
    other = [x for x in part.args if x != -1]
    return len(other) < len(part.args) and all(map(_is_name, other))


def _same_equation(gold: Any, answer: Any, ours: list[Any], theirs: list[Any]) -> bool:
    """Whether two equations are the same one; of a chain, the one from end to end counts."""
    if len(ours) == len(theirs) and all(map(same, ours, theirs)):
        return True
    left, right = _closed(gold, ours), _closed(answer, theirs)
    if left is None or right is None:
        return False
    if _is_name(left.lhs) and _is_name(right.lhs) and _verify(left.lhs, right.lhs):
        return same(left.rhs, right.rhs)
    if not _names(gold):
        return same(_stated(gold), _stated(answer))
    return _verify(left, right) and _has_solutions(left)


def _has_solutions(equation: Any) -> bool:
    """Whether an equation can hold: math-verify calls all equal that cannot."""
    try:
        return bool(solve(equation, _symbols(equation)))
    except _FAULTS:
        return True


def _closed(equation: Any, sides: list[Any]) -> Any:
    """A chain as one equation, None where its parts contradict each other."""
    if len(sides) == 2:
        return equation
    stated = _stated(equation)
    return None if stated is None else Eq(sides[0], stated, evaluate=False)


def _as_set(expression: Any) -> Any:
    """Inequalities joined by "or" as a set, None where that is not known; others as they stand."""
    if not isinstance(expression, Either):
        return expression
    try:
        return Union(*(part.as_set() for part in _args(expression)))
    except _FAULTS:
        return None


def _same_parts(gold: Any, answer: Any) -> bool | None:
    """Whether lists are equal part by part; None where one of the two is no list."""
    if isinstance(gold, MatrixBase) and isinstance(answer, MatrixBase):
        return gold.shape == answer.shape and all(map(same, gold.flat(), answer.flat()))
    if isinstance(gold, Interval) and isinstance(answer, Interval):
        ends = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
        return bool(ends) and same(gold.start, answer.start) and same(gold.end, answer.end)
    ours, theirs = _parts(gold), _parts(answer)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None if ours is None or theirs is None else False
    if isinstance(gold, FiniteSet | Either):
        return _same_in_any_order(ours, theirs)
    return all(map(same, ours, theirs))


def _parts(expression: Any) -> list[Any] | None:
    if isinstance(expression, Interval):
        return [expression.start, expression.end] if expression.is_open else None
    return _args(expression) if isinstance(expression, FiniteSet | Tuple) else None


def _args(expression: Any) -> list[Any]:
    """The parts in the order in which they were written, where that is known."""
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
    """Whether two expressions are equal, of which each may be so many percent."""
    ours, gold_percent = _without_percent(gold)
    theirs, percent = _without_percent(answer)
    if gold_percent and not percent:
        return _same_expression(ours, theirs) or _same_expression(_hundredth(ours), theirs)
    if percent and not gold_percent and _is_proportion(ours):
        theirs = _hundredth(theirs)
    return _same_expression(ours, theirs)


def _without_percent(expression: Any) -> tuple[Any, bool]:
    if isinstance(expression, Mul) and PERCENT in expression.args:
        return Mul(*(x for x in expression.args if x != PERCENT), evaluate=False), True
    return expression, False


def _hundredth(expression: Any) -> Any:
    return Mul(expression, Rational(1, 100), evaluate=False)


def _is_proportion(expression: Any) -> bool:
    value = _value(expression)
    return value is not None and bool(abs(value) <= 1)


def _same_expression(gold: Any, answer: Any) -> bool:
    gold = _renamed(gold, {s: I for s in _symbols(gold) if s.name == "i"})
    named = {s.name: s for s in _symbols(gold)} | {"i": I}
    answer = _renamed(answer, {s: named.get(s.name, s) for s in _symbols(answer)})
    ours, theirs = _value(gold), _value(answer)
    if isinstance(ours, Rational) and isinstance(theirs, Rational):
        return bool(ours == theirs)
    if ours is not None and theirs is not None:
        return _same_number(gold, answer, ours, theirs)
    if isinstance(gold, Relational) and type(gold) is type(answer) and gold.lhs == answer.lhs:
        return same(gold.rhs, answer.rhs)
    return _verify(gold, answer) and not _far_apart(gold, answer)


def _symbols(expression: Any) -> list[Any]:
    parts = expression.free_symbols if isinstance(expression, Basic) else ()
    return [s for s in parts if isinstance(s, Symbol)]


def _names(expression: Any) -> set[str]:
    return {s.name for s in _symbols(expression)}


def _renamed(expression: Any, names: dict[Any, Any]) -> Any:
    """With i as the imaginary unit, and the row's letters, which may be real ones or not."""
    names = {old: new for old, new in names.items() if old != new}
    try:
        return expression.xreplace(names) if names else expression
    except _FAULTS:  # i < 3, or an interval from i
        return expression


def _value(expression: Any) -> Any:
    """The finite number that an expression is, worked out; None if it is none."""
    if not isinstance(expression, Expr) or expression.free_symbols:
        return None
    if isinstance(expression, Rational):
        return expression
    try:
        value = expression.evalf(_WORKING)
        real, imaginary = value.as_real_imag()
        known = real.is_Number and imaginary.is_Number and value.is_finite
    except _FAULTS:
        return None
    return value if known else None


def _same_number(gold: Any, answer: Any, ours: Any, theirs: Any) -> bool:
    """Whether two numbers are equal: exactly, or as a decimal equals what it rounds.

    A decimal agrees to 6 places, below 0.001 to 6 digits, with a whole number to 14.
    """
    exact = [x for x in (gold, answer) if not x.has(Float)]
    size, apart = max(abs(ours), abs(theirs)), abs(ours - theirs)
    if len(exact) == 2:
        settled = Float("1e-30") < size < Float("1e40")
        near = bool(apart <= size * Float("1e-40"))
        return near if settled or (size > 1 and not near) else _is_zero(gold - answer)
    if any(x.is_integer for x in exact):
        return bool(apart <= size * Float("1e-14"))
    if size < Float("1e-3"):
        return bool(apart <= size * Float("5e-6"))
    return bool(apart <= max(Float("5.000001e-7"), size * Float("1e-14")))


def _is_zero(difference: Any) -> bool:
    try:
        return simplify(difference) == 0
    except _FAULTS:
        return False


def _far_apart(gold: Any, answer: Any) -> bool:
    """Whether what math-verify calls equal differs at a point: it drops what is below 1e-15."""
    if not isinstance(gold, Expr) or not isinstance(answer, Expr):
        return False
    if isinstance(gold, Symbol) or isinstance(answer, Symbol):
        return False
    names = sorted(_names(gold) | _names(answer))
    point = {name: Rational(7 + 3 * i, 5 + 2 * i) for i, name in enumerate(names)}
    values = [_at(x, point) for x in (gold, answer)]
    if None in values:
        return False
    near = Float("1e-9" if any(x.has(Float) for x in (gold, answer)) else "1e-25")
    return bool(abs(values[0] - values[1]) > near * max(map(abs, values)))


def _at(expression: Any, point: dict[str, Any]) -> Any:
    try:
        return _value(expression.xreplace({s: point[s.name] for s in _symbols(expression)}))
    except _FAULTS:
        return None


def _verify(gold: Any, answer: Any) -> bool:
    return verify([gold], [answer], allow_set_relation_comp=True, timeout_seconds=None)
