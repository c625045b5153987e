"""Answers that the maths reward accepts or refuses, one per line."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.rewards.test_maths import BOXED, verdict

# One line each: the row's answer, then the model's.

RIGHT = r"""
-1./3 | -1/3
-1/3 | -1./3
-1./3 | -0.333333
-3./2 | -1.5
0.5 | \frac{1.}{2}
30000 | 3.\times 10^{4}
\frac{4}{3} | 1.\overline{3}
\frac{5}{3} | 1.(6)
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
-1./3 | 1/3
-1./3 | -1.3
\frac{1.5}{3} | \frac{15}{3}
50\% | 0.05
\frac{1}{3} | 0.33
3\frac{1}{2} | \frac{3}{2}
1000 | 1,00
5 | y + 1
x=5 | y=5
5 | 5 \text{ or } 6
5 | 5, 6
5 | -5
5 | .5
12 | 1 2
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
5 \text{ cm} | 5 \text{ km}
5 |
5 | \text{}
"""

RIGHT_TO_US_ALONE = r"""
5 | 5\%
(1,2) | \{1,2\}
(1,2) | 1,2
43_5 | 43_7
6:20 | 3:10
east | seat
x + y = 0 | 0
5 | 2 + 3
5 | 5 \approx 6
"""

WRONG_TO_US_ALONE = r"""
3.14 | 3,14
5 | five
\frac{\pi}{6} | 30^\circ
x > 3 | 2x > 6
(1,2) | \begin{pmatrix}1\\2\end{pmatrix}
\ln 2 | \log 2
\text{Monday} | \text{It is Monday}
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
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(verdict, r"\frac{2}{4}", "0.5").result() == 1
