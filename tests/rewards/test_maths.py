"""The reward for mathematical answers: what it reads, what it calls equal, what it survives."""

import os
import pickle
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from gdpo.errors import ConfigError, MissingExtraError
from gdpo.rewards import Scorer
from gdpo.rewards.maths import answer_tag, boxed, last_number, maths_answer
from gdpo.tasks import load_rows
from gdpo.testing import check_reward

EXTRACTIONS = ("boxed", "answer_tag", "last_number")
DATA = os.environ.get("GDPO_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="GDPO_DATA is not set")
BOXED = maths_answer()


def verdict(answer, gold):
    return BOXED.function(rf"\boxed{{{answer}}}", {"answer": gold})


@pytest.mark.parametrize("extract", EXTRACTIONS)
def test_reward_keeps_its_contract(extract):
    check_reward(maths_answer(extract))


@pytest.mark.parametrize("extract", EXTRACTIONS)
def test_reward_can_be_sent_to_another_process(extract):
    reward = pickle.loads(pickle.dumps(maths_answer(extract, name="right", deadline=2)))
    assert (reward.name, reward.deadline, reward.of) == ("right", 2, "text")
    assert reward.function(r"<answer>\boxed{72}</answer>", {"answer": "72.0"}) == 1


# What is taken out of a completion.


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed { 5 }", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{1}, \boxed{2}", "2"),
        (r"\boxed{1}, \boxed{2", "1"),
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"set {1, \boxed{2}", "2"),
        (r"} \boxed{2} }", "2"),
        ("\\boxed{a\nb}", "a\nb"),
        (r"\boxed{}", ""),
        (r"\boxed{5", None),
        (r"\boxed 5", None),
        (r"\boxedx{5}", None),
        (r"\\boxed{5}", None),  # a line break, then a word
        ("boxed{5}", None),
        ("", None),
    ],
)
def test_the_last_box_that_is_closed(text, answer):
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>5</answer>", "5"),
        ("<answer>\n5\n</answer> so", "5"),
        ("<answer>5", "5"),
        ("<answer>4</answer><answer>5</answer>", "5"),
        (r"<answer>\boxed{4} or \boxed{5}</answer>", "5"),
        (r"\boxed{4} <answer>5</answer>", "5"),
        ("<answer></answer>", ""),
        ("5</answer>", None),
        ("<Answer>5</Answer>", None),
    ],
)
def test_what_stands_in_the_last_answer_tag(text, answer):
    assert answer_tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5", "5"),
        ("5.", "5"),
        ("5.25 m", "5.25"),
        (".5", ".5"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("= +5", "5"),
        ("9-4", "4"),
        ("x-4", "4"),
        ("(9)-4", "4"),
        ("$1,234,567.89", "1234567.89"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("3/4", "4"),
        ("50%", "50"),
        ("1 then 2 then none", "2"),
        ("٥", None),
        ("x²", None),
        ("", None),
    ],
)
def test_the_last_number(text, answer):
    assert last_number(text) == answer


@pytest.mark.parametrize("extract", [boxed, answer_tag, last_number])
@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", "}", "{", "\\", "<answer>", "</answer>", "9", "111,", "-", ".", "1.", " ", "x"],
)
def test_extraction_is_linear(extract, piece):
    text = piece * (2_000_000 // len(piece))
    start = perf_counter()
    extract(text)
    assert perf_counter() - start < 5


def test_thinking_is_no_part_of_the_answer():
    gold = {"answer": "5"}
    assert BOXED.function(r"<think>\boxed{5}</think> \boxed{6}", gold) == 0
    assert BOXED.function(r"<think>\boxed{5}</think> five", gold) == 0
    assert BOXED.function(r"<think>\boxed{6}</think> \boxed{5}", gold) == 1
    assert BOXED.function(r"<think>so \boxed{5}", gold) == 1  # cut off


# What is equal. One line each: the row's answer, then the model's.

RIGHT = r"""
0.5 | 50\%
50\% | 0.5
50\% | 50
\frac{1}{2} | 0.5
\frac{1}{2} | .5
\frac{1}{2} | 1/2
\frac{1}{2} | \frac12
\frac{1}{2} | \dfrac{1}{2}
\frac{1}{2} | \tfrac 12
\frac{1}{3} | 0.333333
\frac{3}{4} | \frac{6}{8}
3\frac{1}{2} | \frac{7}{2}
1000 | 1,000
1000 | 1{,}000
1000 | 1,\!000
1000 | 1\,000
\frac{1}{20,\!000} | \frac{1}{20000}
1234567 | 1,234,567
2.5\times10^{-3} | 0.0025
5 | 5.
5 | +5
5 | \approx 5
2,3 | 2 \text{ and } 3 \text{ cm}
5 | x = 5
x=5 | 5
5 | 5 \text{ cm}
5 \text{ cm} | 5
5 | 5\,\text{cm}^2
5 | 5~\mathrm{cm}
5 | \$5
5 | $5$
5 | \(5\)
5 | \mathbf{5}
5 | \left(5\right)
30^\circ | 30
\pi | 3.141593
\sqrt{12} | 2\sqrt{3}
\frac{1}{\sqrt2} | \frac{\sqrt2}{2}
1024 | 2^{10}
120 | 5!
x^2+2x+1 | (1+x)^2
1 | \sin^2 x + \cos^2 x
\sin^2 t | \sin^2 t
a + b + c | c + b + a
\log 8 | 3 \log 2
f(x) = x^2 | x^2
y = 2x+3 | 2x+3
y = 2x+3 | 2y = 4x+6
(1,2) | (1, 2)
(1,2) | x \in (1,2)
(1,2) | 1 < x < 2
[1,2] | 1 \le x \le 2
1 < x < 2 | (1,2)
x \ge 3 | [3,\infty)
(-\infty,1)\cup(2,\infty) | (2,\infty)\cup(-\infty,1)
(-\infty,\infty) | \mathbb{R}
x > 3 | 3 < x
\{1,2\} | \{2,1\}
\{1,2\} | 2 \text{ and } 1
1,2 | x=1 \text{ or } x=2
\pm 2 | -2, 2
1 \pm \sqrt2 | 1+\sqrt2, 1-\sqrt2
\emptyset | \{\}
(1,2),(3,4) | (3,4),(1,2)
(3, \frac{\pi}{2}) | (3, 1.570796)
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{bmatrix} 1 \\ 2 \end{bmatrix}
\begin{pmatrix} \frac12 \end{pmatrix} | \begin{pmatrix} 0.5 \end{pmatrix}
3+4i | 4i+3
\text{east} | east
\text{east} | \text{East}
\text{(A)} | A
\binom{5}{2} | \binom{5}{2}
2^{5000} | 2^{5000}
"""

WRONG = r"""
50\% | 0.05
\frac{1}{3} | 0.33
3\frac{1}{2} | \frac{3}{2}
1000 | 1,00
5 | y + 1
x=5 | y=5
5 | 5 \text{ or } 6
5 | 5, 6
5 | -5
\pi | 3.14159
\pi | \frac{22}{7}
x^2 | y^2
x^2+2x+1 | x^2+1
2t | 2
2t | 2s
\sin^2 t | \sin^2 s
y = 2x+3 | y = 2x+4
(1,2) | [1,2]
(1,2) | (2,1)
(1,2) | 1 \le x < 2
[1,2) | [1,2]
x > 3 | x \ge 3
x > 3 | x < 3
1,2,3 | 1,2
\{1,2\} | \{1,3\}
\pm 2 | 2
(1,2,3) | (1,3,2)
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 1 & 2 \end{pmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}
3+4i | 3-4i
\text{east} | \text{west}
\text{east} | \text{seat}
\text{A and B} | \text{A and C}
3 \text{ ft } 5 \text{ in} | 3 \text{ ft } 6 \text{ in}
\infty | -\infty
72 | 72.0000001
5 |
5 | \text{}
"""

RIGHT_TO_US_ALONE = r"""
5 \text{ cm} | 5 \text{ km}
5 | 5\%
(1,2) | \{1,2\}
(1,2) | 1,2
43_5 | 43_7
6:20 | 3:10
east | seat
x + y = 0 | 0
5 | 3 = 5
5 | 2 + 3
5 | 5 \approx 6
\frac{1}{20000000} | 0.0
"""

WRONG_TO_US_ALONE = r"""
1000 | 1 000
3.14 | 3,14
5 | 5 cm
5 | five
5 | \text{5 dollars}
5 | \text{The answer is } 5
5 | \boldsymbol{5}
5 | \color{red}5
\frac{\pi}{6} | 30^\circ
x > 3 | 2x > 6
(1,2) | \begin{pmatrix}1\\2\end{pmatrix}
(-\infty,1)\cup(2,\infty) | x<1 \text{ or } x>2
i | \sqrt{-1}
\ln 2 | \log 2
\text{Monday} | \text{It is Monday}
1000 | 1e3
10 | \binom{5}{2}
6 | \gcd(12, 18)
"""


def pairs(table):
    for line in table.strip().splitlines():
        gold, _, answer = line.rpartition("|")
        yield gold.strip(), answer.strip()


@pytest.mark.parametrize(
    ("table", "score"), [(RIGHT, 1), (WRONG, 0), (RIGHT_TO_US_ALONE, 1), (WRONG_TO_US_ALONE, 0)]
)
def test_what_is_equal(table, score):
    scores = {(gold, answer): verdict(answer, gold) for gold, answer in pairs(table)}
    assert scores == dict.fromkeys(scores, score)


@pytest.mark.parametrize(
    ("gold", "problem"),
    [
        (r"\frac{1}{3}", r"\int_0^1 x^2 dx"),
        ("10", r"\sum_{i=1}^{4} i"),
        ("24", r"\prod_{i=1}^4 i"),
        ("1", r"\lim_{x \to 0} \frac{\sin x}{x}"),
        ("-2", r"\det\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        ("-2", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
        ("2x", r"\frac{d}{dx} x^2"),
        ("3", r"\operatorname{trace}\begin{pmatrix}1&2\\3&2\end{pmatrix}"),
    ],
)
def test_the_problem_repeated_is_no_answer(gold, problem):
    assert verdict(gold, gold) == 1
    assert verdict(problem, gold) == 0
    assert verdict(problem, problem) == 1  # the row asks for no more


@pytest.mark.parametrize("gold", [None, "", " ", r"\frac{1}{", r"07\!:\!00", r"\frac{0}{0}", "$"])
def test_a_row_whose_answer_cannot_be_read_does_not_apply(gold):
    for answer in ("5", "", str(gold)):
        assert verdict(answer, gold) is None
    assert BOXED.function("no answer", {"answer": gold}) is None


@pytest.mark.parametrize(("gold", "answer"), [(72, "72"), (0.5, r"\frac12"), (-3, "-3.0")])
def test_a_row_may_give_its_answer_as_a_number(gold, answer):
    assert verdict(answer, gold) == 1


def test_it_works_in_any_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(verdict(r"\frac{2}{4}", "0.5")))
    thread.start()
    thread.join()
    assert found == [1]


# What a model may write.

NINES = "9^{9^9}"
HOSTILE = [
    "2^{10^9}",
    "9**9**9",
    NINES,
    "10^{-10^9}",
    "9^{99999}",
    "10000000!",
    "((10!)!)!",
    "5" + "!" * 50,
    "10^{100}!",
    "x^{10^9}",
    rf"x^{{{NINES}}}",
    rf"{NINES}=y",
    rf"({NINES},{NINES})",
    rf"\{{{NINES},1\}}",
    rf"\begin{{pmatrix}}{NINES}\\2\end{{pmatrix}}",
    rf"4+0\cdot {NINES}",
    rf"\sin({NINES})",
    rf"\lfloor {NINES} \rfloor",
    rf"\gcd({NINES}, 2)",
    r"\binom{99999999}{49999999}",
    r"\sum_{i=1}^{10^9} \frac{1}{i^2}",
    r"\prod_{i=1}^{10^6} i",
    r"\int_0^1 e^{\sin(x^3)} dx",
    r"\operatorname{ones}(100000,100000)",
    r"\Gamma(10^9)",
    r"10^{10^8} \mod 7",
    "{" * 20 + "1" + "}" * 20,
    "(" * 40 + "1" + ")" * 40,
    r"\sqrt{" * 9 + "2" + "}" * 9,
    "1+" * 149 + "1",
    "1," * 149 + "1",
    "1=" * 149 + "1",
    r"\pm 1," * 40,
    "9" * 299,
    "9" * 5000,
    "1e999999999",
    r"\frac{1}{0}",
    r"\frac{0}{0}",
    r"\infty-\infty",
    "NaN",
    "\\" * 1_000_000,
    "$" * 1_000_000,
    "-" * 299,
    "٤",
    "²",
    "Ⅷ",
    "\x00",
    "\ud800",
    "\u202e4",
]


@pytest.mark.parametrize("gold", ["4", "x^2+1", r"\{1,2\}", r"\begin{pmatrix}1\\2\end{pmatrix}"])
def test_hostile_answers_are_wrong_and_cheap(gold):
    verdict("1", gold)
    slow = {}
    for answer in HOSTILE:
        start = perf_counter()
        assert verdict(answer, gold) == 0, answer[:80]
        slow[answer[:80]] = perf_counter() - start
    assert max(slow.values()) < 4, max(slow, key=slow.__getitem__)


def test_an_answer_of_more_than_300_characters_is_wrong():
    assert verdict("5" + "+0" * 149, "5") == 1
    assert verdict("5" + "+0" * 150, "5") == 0


@pytest.mark.parametrize(
    "wrapped",
    [
        "{}",
        "'{}'",
        "$ {} $",
        "1+{}",
        "f({})",
        "x_{{{}}}",
        r"\{{{}\}}",
        r"\text{{{}}}",
        r"\mathrm{{{}}}",
        r"\bar{{{}}}",
        r"\sqrt{{{}}}",
        r"\operatorname{{{}}}",
        r"\variable{{{}}}",
    ],
)
def test_nothing_in_an_answer_is_executed(wrapped, tmp_path):
    marker = tmp_path / "executed"
    for code in (f"__import__('os').system('touch {marker}')", f"open('{marker}','w')"):
        for gold in ("4", r"\text{east}", code):
            assert verdict(wrapped.format(code), gold) in (0, None)
    assert not marker.exists()


FOREVER = r"\boxed{(x+y+z+w)^{999}}"


def test_what_takes_forever_is_ended_and_costs_nobody_else():
    reward = maths_answer(deadline=2)
    right = r"\boxed{1+x^2}"
    golds = [{"answer": "x^2+1"}] * 3
    with Scorer([reward], workers=1) as scorer:
        missing = scorer.score([right, FOREVER, right], golds)
    with Scorer([reward], workers=1, on_error="worst") as scorer:
        worst = scorer.score([FOREVER], golds[:1])
    np.testing.assert_array_equal(missing.values[:, 0], [1, np.nan, 1])
    assert worst.values[0, 0] == 0
    assert missing.kinds("correctness") == {"timed out": 1}


# Real rows.

UNREAD = {
    886: "the row has no answer",
    1009: "the row has no answer",
    5328: "the row's answer is empty",
    5330: "the row's answer is empty",
    6131: "a time of day is a division by zero",
    6768: r"\phantom",
    6792: r"\frac with a command and no braces",
}
"""Rows of MATH's training part whose answer cannot be read, by position."""


def scores_of_gold(rows: list[Mapping[str, str]], completion="\\boxed{{{answer}}}"):
    known = {}
    for i, row in enumerate(rows):
        key = completion.format(**row), row["answer"]
        if key not in known:
            known[key] = BOXED.function(key[0], {"answer": key[1]})
        yield i, known[key]


@needs_data
def test_every_answer_of_math_is_equal_to_itself():
    rows = load_rows(Path(DATA or "") / "math/math_train.json.gz")
    not_right = {i: score for i, score in scores_of_gold(rows) if score != 1}
    assert not_right == dict.fromkeys(UNREAD)
    assert 1 - len(not_right) / len(rows) > 0.999


@needs_data
@pytest.mark.parametrize("completion", ["\\boxed{{{answer}}}", "{solution}"])
def test_every_answer_and_every_solution_of_math_500_is_right(completion):
    rows = load_rows(Path(DATA or "") / "math/math500.jsonl")
    assert [i for i, score in scores_of_gold(rows, completion) if score != 1] == []


@needs_data
def test_every_answer_of_gsm8k_is_right_in_a_box_and_as_the_last_number():
    rows = load_rows(Path(DATA or "") / "gsm8k/train.jsonl.gz")
    golds = [{"answer": row["answer"].partition("####")[2].strip()} for row in rows]
    assert [i for i, score in scores_of_gold(golds) if score != 1] == []
    last = maths_answer("last_number").function
    assert all(last(r["answer"], gold) == 1 for r, gold in zip(rows, golds, strict=True))


@needs_data
def test_an_answer_to_another_problem_is_wrong():
    """Equal only where the two rows have equal answers: a mixed sample, looked through by hand."""
    rows = load_rows(Path(DATA or "") / "math/math500.jsonl")
    answers = sorted({row["answer"] for row in rows if not row["answer"].lstrip("-").isdigit()})
    neighbours = [(a, b) for step in (1, 7) for a, b in zip(answers, answers[step:], strict=False)]
    assert sum(verdict(a, b) for a, b in neighbours) == 0


# Arguments.


def test_an_extraction_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="extract 'box' is none: did you mean 'boxed'"):
        maths_answer("box")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gdpo\[math\]'"):
        maths_answer()


def test_the_answer_is_looked_for_in_the_last_hundred_thousand_characters():
    reward = maths_answer("boxed")
    for filler, value in ((99_000, 1.0), (101_000, 0.0)):
        assert reward.function(r"\boxed{72}" + "x" * filler, {"answer": "72"}) == value
