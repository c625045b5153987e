r"""Defines a reward that is 1 if an answer equals the reference answer in any notation.

The answer is extracted (by `boxed`, `answer_tag` or `last_number`), parsed as LaTeX and compared by
math-verify, so 1/2, 0.5 and $\sqrt{1/4}$ are equal.

Differences from math-verify:

- Only the last answer counts. math-verify joins adjacent boxes into a set.
- An answer with an unevaluated sum, product, integral, derivative, limit, determinant, binomial,
  greatest common divisor or similar operation is wrong, unless the reference has it too: a model
  could copy the problem into the box. Arithmetic, powers, roots and factorials are accepted.
- An answer with more than 300 characters, brackets nested more than 10 deep, or a number of more
  than 10,000 digits (`9^{9^9}`) is wrong.
- Exact numbers must be exactly equal. A decimal equals a fraction, a root or another decimal if
  both agree to 6 decimal places (below 0.001: to about 6 digits), and an integer if both agree to
  14 digits. So 0.333333 equals 1/3, but 0.0 does not equal e^{-20}. math-verify compares 6 decimal
  places of every number.
- An equation is read as its right side if its left side is a name: a letter, a product, sum,
  difference or quotient of letters (x, AB, |AB|, x - y, a/b), a function f, or a trigonometric
  function of any argument (f(2), \cos 2x). In a chain, all other sides must be equal. So x = 2 + 3
  = 5, 2 + 3 = 5 and 5 = x are read as 5, but 2x = 5, 3 = 5 and x = 6 = 5 have no value. math-verify
  uses the right side of them all. Equations are not solved: 2x = 3 does not equal x = 3/2.
- Words after a number are a unit and dropped, bare (73 people, 60 km/h) or in `\text{...}` (or
  `\mathrm`, `\mbox`). If both answers have a unit, only one of them may name measures that the
  other does not name: 5 cm equals 5 and "5 cm a day", but not 5 m. Units are not converted. A
  single letter is a unit only after digits, in `\text{...}` or after a space, and only if it is one
  of m, g, s, h, l, L, N, J, W and V. Number words are evaluated: hundred, thousand, million,
  billion, trillion and dozen (3 \text{ million} equals 3000000), percent, and, after digits,
  squared, cubed and factorial. Other words (mod, or, half, pi, two) and letters (3\mathrm{i}, 3ab)
  remain as factors. For math-verify, the t in 2t is a unit, so 2 equals 2t.
- Markdown marks (`**73**`, backticks) and a lead such as "The answer is" are dropped.
- I, E, i and e are names directly before an equals sign: I = (0, 2) is read as (0, 2).
- Answers of several words are compared as words, without regard to case, the plural and openings
  such as "there is". "No solution" equals `\emptyset`, and "all real numbers" equals `\mathbb{R}`.
- Roots and logarithms of products are split, and a letter that is not squared counts as positive:
  \sqrt{1/n} equals 1/\sqrt{n}, and \sqrt{ab} equals \sqrt{a}\sqrt{b}, but \sqrt{x^2} is |x|, and a
  product of sums such as (x - 1)(x - 2) is not split.
- A reference in percent accepts n\%, n and n/100. For any other reference, n\% means n/100 if its
  absolute value is at most 1, and n otherwise. So 50\% equals both 0.5 and 50, but 500\% does not
  equal 5, and 0.5\% does not equal 0.5.
- Sizes, fonts, colours, spaces, a full stop or comma at the end, `\approx` before the answer, and
  spaces between thousands (1 000, `1\,000`) are ignored. Two numbers next to each other are not a
  valid answer (3 4 equals neither 12 nor 7), but 5 1/2 equals 11/2. A long dash is a minus sign,
  except between two digits.
- 2.5e-3, 1e3 and 1E-3 are powers of ten, but 2e-3 is twice Euler's number minus 3.
  `0.1\overline{6}` and 0.1(6) are recurring decimals. i is the imaginary unit. `\varnothing` equals
  `\emptyset`, and `\log_e` equals `\ln`.
- `\textbf{(B)}\ 12` equals B if the reference is a letter from A to J, and 12 if it is a value. Of
  a reference with both, either is accepted. In an answer with both, both must be right.
- An inequality equals the corresponding interval, whichever is the reference. x<3 \text{ or } x>5
  is the union of both intervals.

Known limitations (see also `tests/rewards/test_maths_equality.py` and `benchmarks/maths_pairs`):

- A unit that the other answer does not have, letter case and the base of a numeral are not
  compared: 5 equals 5 \text{ miles}, 73 people equals 73 cats, 30^\circ equals 30, and 43_5 equals
  43_7.
- A colon is a division: 6:20 equals 3:10.
- 1,234 is a number, never the set of 1 and 234. 3,14 is a set.
- Letters are factors: the word east equals seat. In `\text{...}`, letters form a word. Primes and
  quotation marks after letters and numbers are dropped, so y' equals y.
- (1, 2) is both an interval and a point, and equals 1, 2 and {1, 2}. {5} and 5, 5 equal 5. Against
  an interval, the variable of an inequality does not matter.
- x + y = 0 equals 0 in both directions. |x| = 3 and \sin x = 3 equal 3.
- 5 \approx 6 is read as its left side, 5. Dots at the end are dropped (3\ldots).
- If the reference is only a value, the letter of a choice is ignored.
- \log is read as the logarithm to base 10.
"""

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

from gdpo._naming import refuse_unknown
from gdpo.errors import MissingExtraError
from gdpo.rewards.reward import Example, Reward, examples_of

Extraction: TypeAlias = Literal["boxed", "answer_tag", "last_number"]
"""Name of the function in this module that extracts the answer from a completion."""

_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_SIGN = r"(?:(?<![\w)}\]])[-−+])?"
_NUMBER = re.compile(
    rf"{_SIGN}(?:(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)


def maths_answer(
    extract: Extraction = "boxed", *, name: str = "correctness", deadline: float = 5.0
) -> Reward:
    """Return a reward that is 1 if a completion's answer equals the reference answer, or else 0.

    The reference answer is stored under `answer`, as LaTeX without a box. If it is None or
    math-verify cannot parse it, the reward does not apply (`None`).

    Text before the first `</think>` is ignored. Without a `</think>`, the whole text is searched.
    Only the last 100,000 characters count. A completion without an answer gets 0.

    The comparison of some answers never finishes, such as $(x+1)^{9999}$ if the reference answer is
    a polynomial. A `Scorer` therefore runs comparisons in a separate process, which is killed after
    the deadline. This is a failure: the score is missing, or 0 with `on_error="worst"` (in a
    recipe, `scorer: {on_error: worst}`). Use `worst`: a missing score is better than that of a
    wrong answer, so a model could learn to cause failures.

    Args:
        extract: `boxed`, `answer_tag` or `last_number`.
        name: Name of the reward.
        deadline: Maximum time to score one completion, in seconds.

    Raises:
        ConfigError: If `extract` is unknown, or the deadline is not above 0.
        MissingExtraError: If math-verify is not installed.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.2 (the correctness
        reward). math-verify, https://github.com/huggingface/Math-Verify.
    """
    refuse_unknown([extract], get_args(Extraction), "maths_answer: unknown value for extract")
    if find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "math", "to compare mathematical answers")
    from gdpo.rewards._maths import correctness

    extractor, examples = _EXTRACTIONS[extract]
    return Reward(
        name=name,
        function=partial(correctness, extract=extractor),
        low=0.0,
        high=1.0,
        examples=examples,
        deadline=deadline,
    )


def boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}` or `\fbox{...}`, or None if none.

    If a box contains another box, the content of the inner one is returned.

    Examples:
        >>> boxed(r"First \boxed{1}, then \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
        >>> boxed("no box") is None
        True
    """
    opened: list[tuple[bool, int]] = []
    start = end = -1
    for match in _BRACE.finditer(text):
        piece = match.group()
        if piece == "}":
            is_box, place = opened.pop() if opened else (False, 0)
            if is_box and place > start:
                start, end = place, match.start()
        elif piece.endswith("{") and piece != r"\{":
            opened.append((piece != "{", match.end()))
    return None if start < 0 else text[start:end].strip()


def answer_tag(text: str) -> str | None:
    r"""Return the text after the last `<answer>`, up to `</answer>` or the end.

    If this text contains a box, return the content of its last box. None: the text has no
    `<answer>`.

    Examples:
        >>> answer_tag(r"<answer>so it is \boxed{72}</answer>"), answer_tag("<answer> 72 </answer>")
        ('72', '72')
        >>> answer_tag("72") is None
        True
    """
    _, opened, rest = text.rpartition("<answer>")
    if not opened:
        return None
    answer = rest.partition("</answer>")[0].strip()
    return boxed(answer) or answer


def last_number(text: str) -> str | None:
    """Return the last number, without thousands separators. Only the digits 0 to 9 are recognized.

    A minus sign belongs to the number unless it follows a word character or a closing bracket,
    where it may mean subtraction. None: the text has no number.

    Examples:
        >>> last_number("It costs $1,234.50."), last_number("from -3 to -4"), last_number("9-4")
        ('1234.50', '-4', '4')
        >>> last_number("none") is None
        True
    """
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "").replace("−", "-").lstrip("+") if numbers else None


_HALF, _72 = {"answer": r"\frac{1}{2}"}, {"answer": "72"}
_MISSING, _BROKEN = {"answer": None}, {"answer": r"\frac{1}{"}

_EXTRACTIONS: dict[Extraction, tuple[Callable[[str], str | None], tuple[Example, ...]]] = {
    "boxed": (
        boxed,
        (
            *examples_of(
                _HALF,
                {
                    r"<think>\boxed{1}</think> So it is \boxed{\frac12}.": 1.0,
                    r"\boxed{0.5}": 1.0,
                    r"\boxed{\sqrt{\frac{1}{4}}}": 1.0,
                    r"\boxed{x = \frac{2}{4}}": 1.0,
                    r"\boxed{\frac{1}{2}} or \boxed{\frac{1}{3}}": 0.0,  # only the last
                    r"\boxed{\frac{1}{2}, \frac{1}{3}}": 0.0,
                    r"\boxed{\int_0^1 x \, dx}": 0.0,  # not evaluated
                    r"\boxed{9^{9^{9}}}": 0.0,
                    r"\frac{1}{2}": 0.0,
                    "": 0.0,
                },
            ),
            Example(r"\boxed{1}", _MISSING, None),
            Example(r"\boxed{1}", _BROKEN, None),
        ),
    ),
    "answer_tag": (
        answer_tag,
        (
            *examples_of(
                _72,
                {
                    "<think>a</think><answer>72</answer>": 1.0,
                    r"<answer>It is \boxed{72}</answer>": 1.0,
                    "<answer>144/2": 1.0,
                    "<answer>72</answer> <answer>73</answer>": 0.0,
                    "72": 0.0,
                },
            ),
            Example("<answer>72</answer>", _MISSING, None),
        ),
    ),
    "last_number": (
        last_number,
        (
            *examples_of(
                _72,
                {
                    "144/2 = 72.": 1.0,
                    "It costs $72.00": 1.0,
                    "72, not 73": 0.0,
                    "seventy-two": 0.0,
                },
            ),
            Example("72", _MISSING, None),
        ),
    ),
}
