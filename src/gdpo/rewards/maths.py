r"""A reward for mathematical answers: equal to the row's answer, in whatever form it is written.

The answer is taken out of the completion (`boxed`, `answer_tag` or `last_number`, which the task
chooses), read as LaTeX and compared by math-verify: 1/2, 0.5 and $\sqrt{1/4}$ are the same.

Where it departs from math-verify:

- One answer counts, the last one. math-verify joins neighbouring boxes to a set.
- A sum, product, integral, derivative, limit, determinant, binomial, greatest common divisor or the
  like is no answer unless the row's answer has it too: an answer is worked out. math-verify works
  it out itself, so that the problem, repeated in the box, would be right. Arithmetic, powers, roots
  and factorials count as they are.
- Answers of more than 300 characters, brackets nested more than 10 deep and numbers of more than
  10,000 digits (`9^{9^9}`) are wrong without being worked out.
- Numbers are equal if they are equal exactly. A decimal equals a fraction, a root or another
  decimal to 6 places, below 0.001 to about 6 digits, and a whole number to 14 digits: 0.333333 is
  1/3; 1.6 \times 10^{-19} is not 9.1 \times 10^{-31}; 0.0 is not e^{-20}. math-verify compares 6
  places of everything.
- Of an equation, the right side counts where the left one is letters only: a product, sum,
  difference or quotient of letters (x, AB, |AB|, x - y, a/b), or a function f, or a trigonometric
  one, of anything (f(2), \cos 2x).
  Of a chain the other sides must be equal: x = 2 + 3 = 5 and 2 + 3 = 5 are 5, and 5 = x is; 2x = 5,
  -x = 5, x^2 = 5, 1/x = 5, 3 = 5 and x = 6 = 5 are nothing. math-verify takes the right side of
  all. An equation is to be solved: 2x = 3 is not x = 3/2.
- A unit is `\text{...}` (or `\mathrm`, `\mbox`) after a number, and is dropped. It has at least two
  letters (but °C, °F and °K), and no word that changes the value. Read are hundred, thousand,
  million, billion, trillion, dozen (3 \text{ million} is 3000000), percent, and squared, cubed and
  factorial after digits. Other words (mod, or, half, pi, two) and single letters (3\mathrm{i}, 2
  \text{ m}) stay where they are, as factors. math-verify takes the t of 2t and the c of a + b + c
  for units, so that 2 is 2t.
- Of n\% there is one reading for each row. A row in percent takes n\%, n, and n/100. For a row
  without %, n\% is n/100 if the row's number is at most 1 in size, else n: 50\% is 0.5 and is 50;
  500\% is not 5, and 0.5\% is not 0.5.
- Sizes, fonts, colours, spaces and a full stop or comma at the end, `\approx` before the answer and
  spaces between thousands (1 000, `1\,000`) do not matter. Numbers side by side are no answer (3 4
  is neither 12 nor 7); 5 1/2 is 11/2. A long dash is a minus, but between two digits.
- 2.5e-3, 1e3 and 1E-3 are powers of ten; 2e-3 is Euler's number twice, less 3. `0.1\overline{6}`
  and 0.1(6) recur. i is the imaginary unit. `\varnothing` is `\emptyset`, `\log_e` is `\ln`.
- `\textbf{(B)}\ 12` is B where the row is a letter from A to J, and 12 where it is a value; a row
  that has both takes either, and both only if both are right.
- An inequality is equal to its interval, whichever of the two the row has; x<3 \text{ or } x>5 is
  the union.

Where a reader may differ (`tests/rewards/test_maths_equality.py`, `benchmarks/maths_pairs`):

- Neither units nor upper and lower case nor the base of a numeral are compared: 5 \text{ km} is
  5 \text{ cm}, 30^\circ is 30, 43_5 is 43_7.
- 5\% is 5.
- A colon divides: 6:20 is 3:10.
- 1,234 is a number, never the set of 1 and 234; 3,14 is a set.
- Letters are factors: 5 cm is 5 times c times m, and the word east is seat. In `\text{...}` they
  are a word. Primes and quotation marks after letters and numbers are dropped: y' is y.
- (1, 2) is an interval and a point, and 1, 2 and {1, 2} are equal to it. {5}, and 5, 5, are 5. The
  letter of an inequality that is compared with an interval does not matter.
- x + y = 0 is 0, and 0 is x + y = 0; |x| = 3 and \sin x = 3 are 3.
- Of 5 \approx 6, the left side counts; dots at the end are dropped (3\ldots).
- The letter of a choice is not looked at where the row has a value only.
- \log has base 10.
"""

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.rewards.reward import Example, Reward

Extraction: TypeAlias = Literal["boxed", "answer_tag", "last_number"]
"""Where in a completion its answer stands: the functions of this module."""

_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_SIGN = r"(?:(?<![\w)}\]])[-−+])?"
_NUMBER = re.compile(
    rf"{_SIGN}(?:(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)


def maths_answer(
    extract: Extraction = "boxed", *, name: str = "correctness", deadline: float = 5.0
) -> Reward:
    r"""1 if the answer in a completion equals the row's, as mathematics, else 0.

    The reference holds the row's answer under `answer`, as LaTeX without a box. Where it is None,
    or math-verify cannot read it, the reward does not apply (`None`): it would call every
    completion of the row wrong.

    What stands before the first `</think>` is no part of the answer; where the thinking was cut
    off, all is looked at, up to the last 100,000 characters. A completion without an answer gets 0.

    Most comparisons take milliseconds; a few that a model can write take forever, as
    $(x+1)^{9999}$ against a polynomial. Hence the deadline: a `Scorer` makes the comparison in a
    process that it kills. What is killed has failed: it is missing, and with the scorer's
    `on_error="worst"` (`scorer: {on_error: worst}` in a recipe) it is 0. Take `worst`: to be left
    out is better than to be wrong, and a model can learn to be left out.

    Args:
        extract: `boxed`, `answer_tag` or `last_number`.
        name: What logs, recipes and files call the reward.
        deadline: Seconds that one completion may take.

    Returns:
        A reward in {0, 1}, of the text.

    Raises:
        ConfigError: There is no such extraction, or the deadline is not above 0.
        MissingExtraError: math-verify is not installed.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.2: its correctness.
        math-verify, https://github.com/huggingface/Math-Verify.
    """
    if extract not in get_args(Extraction):
        raise ConfigError(
            f"maths_answer: extract {extract!r} is none: "
            f"{did_you_mean(str(extract), get_args(Extraction))}"
        )
    if find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "math", "to compare mathematical answers")
    from gdpo.rewards._math_verify import correctness

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
    r"""What stands in the last `\boxed{...}` or `\fbox{...}` that is closed; braces nest.

    Of boxes within boxes it is the innermost.

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
    r"""What stands after the last `<answer>`, up to `</answer>` or the end; of that, the last box.

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
    """The last number, without commas between its thousands; digits are 0 to 9.

    A minus counts as its sign where it cannot take anything away.

    Examples:
        >>> last_number("It costs $1,234.50."), last_number("from -3 to -4"), last_number("9-4")
        ('1234.50', '-4', '4')
        >>> last_number("none") is None
        True
    """
    number = None
    for match in _NUMBER.finditer(text):
        number = match
    return number.group().replace(",", "").replace("−", "-").lstrip("+") if number else None


_HALF, _72 = {"answer": r"\frac{1}{2}"}, {"answer": "72"}
_MISSING, _BROKEN = {"answer": None}, {"answer": r"\frac{1}{"}

_EXTRACTIONS: dict[Extraction, tuple[Callable[[str], str | None], tuple[Example, ...]]] = {
    "boxed": (
        boxed,
        (
            Example(r"<think>\boxed{1}</think> So it is \boxed{\frac12}.", _HALF, 1.0),
            Example(r"\boxed{0.5}", _HALF, 1.0),
            Example(r"\boxed{\sqrt{\frac{1}{4}}}", _HALF, 1.0),
            Example(r"\boxed{x = \frac{2}{4}}", _HALF, 1.0),
            Example(r"\boxed{\frac{1}{2}} or \boxed{\frac{1}{3}}", _HALF, 0.0),  # the last counts
            Example(r"\boxed{\frac{1}{2}, \frac{1}{3}}", _HALF, 0.0),
            Example(r"\boxed{\int_0^1 x \, dx}", _HALF, 0.0),  # not worked out
            Example(r"\boxed{9^{9^{9}}}", _HALF, 0.0),
            Example(r"\frac{1}{2}", _HALF, 0.0),
            Example("", _HALF, 0.0),
            Example(r"\boxed{1}", _MISSING, None),
            Example(r"\boxed{1}", _BROKEN, None),
        ),
    ),
    "answer_tag": (
        answer_tag,
        (
            Example("<think>a</think><answer>72</answer>", _72, 1.0),
            Example(r"<answer>It is \boxed{72}</answer>", _72, 1.0),
            Example("<answer>144/2", _72, 1.0),
            Example("<answer>72</answer> <answer>73</answer>", _72, 0.0),
            Example("72", _72, 0.0),
            Example("<answer>72</answer>", _MISSING, None),
        ),
    ),
    "last_number": (
        last_number,
        (
            Example("144/2 = 72.", _72, 1.0),
            Example("It costs $72.00", _72, 1.0),
            Example("72, not 73", _72, 0.0),
            Example("seventy-two", _72, 0.0),
            Example("72", _MISSING, None),
        ),
    ),
}
