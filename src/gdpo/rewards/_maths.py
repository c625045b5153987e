"""Checks whether two expressions are equivalent answers.

Numbers (`_same_number`), percentages, the value that an equation states (`_stated`), and the
elements of lists, points, intervals and matrices are compared here, and everything else by
`math_verify.verify`, which would compare numbers of any size to 6 decimal places.
"""

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

import sympy as sp
from math_verify import verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.functions.elementary.trigonometric import TrigonometricFunction

from gdpo.rewards._wording import SPACE, TEXT, Unit, read_words, with_names

# math-verify warns that its timeout is disabled. The scorer enforces a deadline instead.
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)

PERCENT = sp.UnevaluatedExpr(sp.Rational(1, 100))
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


class Either(sp.Tuple):
    """Stores inequalities that are joined by "or"."""


def same(gold: Any, answer: Any) -> bool:
    ours, theirs = members(gold), members(answer)
    if ours and theirs:
        return _same_equation(gold, answer, ours, theirs)
    gold, answer = _stated(gold), _stated(answer)
    if gold is None or answer is None:
        return False
    lists = isinstance(gold, sp.FiniteSet) or isinstance(answer, sp.FiniteSet)
    if not lists and isinstance(gold, Either) is not isinstance(answer, Either):
        gold, answer = _as_set(gold), _as_set(answer)
        return gold is not None and answer is not None and _verify(gold, answer)
    by_parts = _same_parts(gold, answer)
    return _same_value(gold, answer) if by_parts is None else by_parts


def members(expression: Any) -> list[Any] | None:
    relations = _args(expression) if isinstance(expression, sp.And) else [expression]
    if not relations or not all(isinstance(relation, sp.Eq) for relation in relations):
        return None
    return [relations[0].lhs, *(relation.rhs for relation in relations)]


def _stated(expression: Any) -> Any:
    """Return the value that an equation states, or any other expression unchanged.

    Sides that are names are ignored, and all remaining sides must be equal. For example, x = 2 + 3
    = 5 states 5. The equations x = 6 = 5, 2x = 5 and 3 = 5 state nothing (None).
    """
    sides = members(expression)
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
    if not isinstance(expression, Either):
        return expression
    return _tried(lambda: sp.Union(*(part.as_set() for part in _args(expression))), None)


def _same_parts(gold: Any, answer: Any) -> bool | None:
    if isinstance(gold, sp.MatrixBase) and isinstance(answer, sp.MatrixBase):
        return gold.shape == answer.shape and all(map(same, gold.flat(), answer.flat()))
    if isinstance(gold, sp.Interval) and isinstance(answer, sp.Interval):
        ends = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
        return bool(ends) and same(gold.start, answer.start) and same(gold.end, answer.end)
    ours, theirs = _components(gold), _components(answer)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None if ours is None or theirs is None else False
    if isinstance(gold, sp.FiniteSet | Either):
        return _same_in_any_order(ours, theirs)
    return all(map(same, ours, theirs))


def _components(expression: Any) -> list[Any] | None:
    if isinstance(expression, sp.Interval):
        return [expression.start, expression.end] if expression.is_open else None
    return _args(expression) if isinstance(expression, sp.FiniteSet | sp.Tuple) else None


def _args(expression: Any) -> list[Any]:
    """Return the parts of an expression, in the order in which they were written if known."""
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
    if isinstance(expression, sp.Mul) and PERCENT in expression.args:
        return sp.Mul(*(x for x in expression.args if x != PERCENT), evaluate=False), True
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
    """Return an expression whose roots and logarithms of products are split into their factors.

    What is under a root or in a logarithm counts as positive, except below an even power: the root
    of x^2 is |x|, not x. A product of several sums is not split.
    """
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
    """Return whether two numbers are equal exactly or, if one is a decimal, after rounding.

    A decimal must agree to 6 decimal places, or to 6 digits if the decimal is below 0.001. A
    decimal that is compared with an integer must agree to 14 digits.
    """
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


_CHARACTERS = str.maketrans(
    dict.fromkeys("\u00a0\u2009\u202f\u3000", " ")
    | dict.fromkeys("€£¥₹")
    | {"−": "-", "°": r"^\circ ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot "}
    | {"÷": "/", "∞": r"\infty ", "∅": r"\emptyset ", "∪": r"\cup ", "∩": r"\cap "}
    | {"²": "^2", "³": "^3", "√": r"\sqrt "}
)

_DASH = re.compile(r"(?<![0-9])(?<![0-9] )[–—]|[–—](?! ?[0-9])")
"""Matches a long dash that is used as a minus sign. Between two digits, a long dash marks a range,
as in 2–3."""

_AROUND = re.compile(r"\\?\$|^\\[(\[]|\\[)\]]$")

_DOLLARS = re.compile(r"\s*-?(?:\\\$|\$(?=[^$]*$))")

_EDGE = re.compile(rf"^{SPACE}+|(?:{SPACE}|[.,;])+$")

_SWITCH = re.compile(
    r"\\(?:displaystyle|textstyle|(?:foot|script|normal)size|tiny|small|[lL]arge|LARGE|huge|Huge"
    r"|bfseries|boldmath)(?![a-zA-Z])\s*|\\(?:text)?color\s*\{[^{}]*\}"
)

_OLD_FONT = re.compile(r"(?:\{\s*\\(bf|rm|it|sf)(?![a-zA-Z])\s*|\\(bf|rm|it|sf)\s*\{)")

_FONT = re.compile(r"\\(?:boldsymbol|bm|math(?:bf|it|sf|normal)|textbf|underline)\s*\{")

_WORD = re.compile(r"[\sA-Za-z.]*[A-Za-z]{2}[\sA-Za-z.]*")

_NUMERAL_IN_TEXT = re.compile(rf"{TEXT}\{{\s*([-+]?[0-9][0-9.,/]*)\s*\}}")

_LABEL = re.compile(
    rf"(?:{TEXT}\{{\s*(?:\(([A-J])\)|([A-J])[).:])\s*\}}|\(([A-J])\)(?=\s+(?:[0-9]|\\(?:[dt]?frac|sqrt|\$))))"
    rf"{SPACE}*(.*)",
    re.DOTALL,
)

_CHOICE = re.compile(rf"(?:{TEXT}\{{)?\s*\(?([A-J])\)?\s*\}}?")

_DIGITS_IN_BRACES = re.compile(r"(?<![0-9A-Za-z}_^\]])(?:\{[0-9]+\})+(?!\{)")

_DIGITS_APART = re.compile(rf"(?<![_^0-9.])[0-9]+(?:\.[0-9]+)?{SPACE}+[0-9]")

_THOUSANDS = re.compile(
    rf"(?<![_^0-9.])[0-9]{{1,3}}(?:(?:,\\!|{SPACE}{{1,3}})[0-9]{{3}})+(?![0-9])"
)

_RECURRING = re.compile(
    r"(?<![0-9.])([0-9]{0,50})\.([0-9]{0,50})"
    r"(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,50})\}|([0-9]))|\(([0-9]{1,50})\))(?![0-9])"
)

_NOTATION = (
    (re.compile(r"\\[hv]?phantom\s*\{[^{}]*\}"), ""),
    (re.compile(r"(?<=\{)\{d\}"), "d"),
    (re.compile(r"\\imath(?![a-zA-Z])"), "i "),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\^?\\degrees?(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*(?:e|\\mathrm\s*\{e\})\s*\})"), r"\\ln "),
    # 5^{\text{th}}
    (re.compile(rf"\^\s*\{{?\s*{TEXT}\{{(?:st|nd|rd|th)\}}\s*\}}?$"), ""),
    (re.compile(r"\\[dtc]?frac\s+([0-9])\s+([0-9])"), r"\\frac{\1}{\2}"),
    # 5 1/2
    (
        re.compile(rf"(?<![_^0-9./])([0-9]+){SPACE}+([0-9]+)\s*/\s*([0-9]+)(?![0-9./])"),
        r"\1\\frac{\2}{\3}",
    ),
    # 1./3: a point without digits after an integer inside a formula
    (re.compile(r"(?<![0-9.,])([0-9]+)\.(?=\s*(?:[-+*/)}]|\\(?:times|cdot)(?![a-zA-Z])))"), r"\1"),
    # 2.5e-3 and 1e3 are powers of ten, but 2e-3 is twice Euler's number minus 3
    (
        re.compile(
            r"(?<![\w.\\])((?:[0-9]+\.[0-9]*|\.[0-9]+)(?=[eE])|[0-9]+(?=E|e[0-9]))"
            r"[eE]([-+]?[0-9]+)(?![\w.])"
        ),
        r"(\1\\times10^{\2})",
    ),
)

_POWER_OF_I = re.compile(r"([0-9A-Za-z)}]\s*)?(?<!\\)I(?=\s*\^)")

_TEX_LETTER = re.compile(rf"(?:{TEXT}|\\mathit\s*)\{{\s*([A-Za-z])\s*\}}")


def clean(answer: str) -> tuple[str, Unit]:
    """Return an answer in a form that math-verify can parse, and its unit.

    The text is "" if `answer` is not a single answer.
    """
    dollars = frozenset(["dollar"] if _DOLLARS.match(answer) else [])
    bare = _AROUND.sub("", _DASH.sub("-", answer.strip()).translate(_CHARACTERS).strip())
    bare = _EDGE.sub("", _without_style(_EDGE.sub("", bare)))
    while bare.startswith("{") and end_of_group(bare, 1) == len(bare) - 1:
        bare = bare[1:-1].strip()
    bare = _EDGE.sub("", bare.removeprefix(r"\approx"))
    for pattern, replacement in _NOTATION:
        bare = pattern.sub(replacement, bare)
    bare = _DIGITS_IN_BRACES.sub(lambda match: re.sub(r"[{}]", "", match.group()), bare)
    bare = _RECURRING.sub(_as_fraction, bare)
    bare = _THOUSANDS.sub(lambda match: re.sub(r"[^0-9]", "", match.group()), bare)
    if _DIGITS_APART.search(bare):
        return "", dollars
    text, unit = read_words(bare)
    text = _TEX_LETTER.sub(r" \1", text).strip()
    # math-verify misreads I^2.
    text = _POWER_OF_I.sub(lambda match: rf"{match[1]}\cdot (I)" if match[1] else "(I)", text)
    return with_names(text), unit | dollars


def without_label(answer: str) -> tuple[str | None, str]:
    r"""Return the choice letter and the text after it. Example: B and 12 for \textbf{(B)}\ 12."""
    bare = _EDGE.sub("", _AROUND.sub("", answer.strip()))
    if match := _CHOICE.fullmatch(bare):
        return match[1], ""
    match = _LABEL.fullmatch(bare)
    return (match[1] or match[2] or match[3], match[4]) if match else (None, answer)


def end_of_group(text: str, start: int) -> int:
    """Return the index of the brace that closes the group opened at `start`, or -1 if none."""
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return start + match.start()
    return -1


def _without_style(text: str) -> str:
    r"""Return the text without size, colour and font commands. \mathbf{cm} remains a word."""
    text = _SWITCH.sub("", text)
    text = _OLD_FONT.sub(lambda match: rf"\math{match[1] or match[2]}{{", text)
    place = 0
    while match := _FONT.search(text, place):
        end = end_of_group(text, match.end())
        inner = text[match.end() : end]
        place = match.start()
        if end < 0 or _WORD.fullmatch(inner):
            place = match.end()
        else:
            text = text[:place] + inner + text[end + 1 :]
    return _NUMERAL_IN_TEXT.sub(r"\1", text)


def _as_fraction(match: re.Match[str]) -> str:
    r"""Return a recurring decimal as a fraction. Example: \frac{15}{90} for 0.1\overline{6}."""
    whole, fixed = match[1], match[2]
    recurring = match[3] or match[4] or match[5]
    over = int(whole + fixed + recurring) - int(whole + fixed or "0")
    return rf"\frac{{{over}}}{{{10 ** len(fixed) * (10 ** len(recurring) - 1)}}}"
