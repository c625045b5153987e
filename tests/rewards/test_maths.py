"""The maths reward: how it reads answers, what it accepts, and which texts it survives."""

import pickle
import sys
from collections.abc import Mapping
from time import process_time

import numpy as np
import pytest
from tests.refusals import config_error, missing_extra_error

from gdpo.lab.tasks import load_rows
from gdpo.rewards import Scorer
from gdpo.rewards.maths import answer_tag, boxed, last_number, maths_answer
from gdpo.testing import check_reward

EXTRACTIONS = ("boxed", "answer_tag", "last_number")
BOXED = maths_answer()


def verdict(answer, gold):
    return BOXED.function(rf"\boxed{{{answer}}}", {"answer": gold})


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("extract", [boxed, answer_tag, last_number])
@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", "}", "{", "\\", "<answer>", "</answer>", "9", "111,", "-", ".", "1.", " ", "x"],
)
def test_extraction_is_linear(extract, piece):
    text = piece * (2_000_000 // len(piece))
    start = process_time()
    extract(text)
    assert process_time() - start < 5


def test_thinking_is_no_part_of_the_answer():
    gold = {"answer": "5"}
    assert BOXED.function(r"<think>\boxed{5}</think> \boxed{6}", gold) == 0
    assert BOXED.function(r"<think>\boxed{5}</think> five", gold) == 0
    assert BOXED.function(r"<think>\boxed{6}</think> \boxed{5}", gold) == 1
    assert BOXED.function(r"<think>so \boxed{5}", gold) == 1  # cut off


@pytest.mark.parametrize("extract", EXTRACTIONS)
def test_thinking_ends_at_the_first_closing_tag(extract):
    """All that follows the first `</think>` is searched, so a later tag cannot hide an answer."""
    score, gold = maths_answer(extract).function, {"answer": "5"}
    five, six = (rf"<answer>\boxed{{{number}}}</answer>" for number in (5, 6))
    assert score(f"<think>{six}</think> {five} </think> so", gold) == 1
    assert score(f"<think>{six}</think> {five} <think>wait</think> {six}", gold) == 0
    assert score(f"{five}</think> none </think>", gold) == 0


@pytest.mark.parametrize(
    "text",
    ["**5**", "**5** people", "`5 people`", "5 apples.", "The answer is **5**.", "**Answer:** 5"],
)
def test_an_answer_tag_may_hold_marks_words_and_a_unit(text):
    score = maths_answer("answer_tag").function
    assert score(f"<answer>{text}</answer>", {"answer": "5"}) == 1
    assert score(f"<answer>{text}</answer>", {"answer": "6"}) == 0
    assert score("<answer>5</answer>", {"answer": text}) == 1


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
    "**" * 149,
    "*a" * 149,
    "`" * 299,
    "5 " + "cm/" * 98,
    "5 " + "a " * 148,
    "a " * 149 + "=",
    "I=" * 149,
    r"\text{a" * 40,
    r"\sqrt{\frac{1}{n" + "n" * 200 + "}}",
    r"\sqrt{" + "(n+1)^{3}" * 30 + "}",
    r"\sqrt{n^{99999}m^{99998}}",
    r"\ln(n^{99999}m^{99998})",
    "The answer is " * 20,
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


@pytest.mark.slow
@pytest.mark.parametrize("gold", ["4", "x^2+1", r"\{1,2\}", r"\begin{pmatrix}1\\2\end{pmatrix}"])
def test_hostile_answers_are_wrong_and_cheap(gold):
    verdict("1", gold)
    slow = {}
    for answer in HOSTILE:
        start = process_time()
        assert verdict(answer, gold) == 0, answer[:80]
        slow[answer[:80]] = process_time() - start
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


@pytest.mark.slow
def test_what_takes_forever_is_ended_and_costs_nobody_else():
    reward = maths_answer(deadline=8)
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


@pytest.mark.slow
def test_every_answer_of_math_is_equal_to_itself(real):
    rows = load_rows(real("math/math_train.json.gz"))
    not_right = {i: score for i, score in scores_of_gold(rows) if score != 1}
    assert not_right == dict.fromkeys(UNREAD)
    assert 1 - len(not_right) / len(rows) > 0.999


@pytest.mark.slow
def test_every_solution_of_math_500_is_right(real):
    rows = load_rows(real("math/math500.jsonl"))
    assert [i for i, score in scores_of_gold(rows, "{solution}") if score != 1] == []


@pytest.mark.slow
def test_every_answer_of_gsm8k_is_right_in_a_box_and_as_the_last_number(real):
    rows = load_rows(real("gsm8k/train.jsonl.gz"))
    golds = [{"answer": row["answer"].partition("####")[2].strip()} for row in rows]
    assert [i for i, score in scores_of_gold(golds) if score != 1] == []
    last = maths_answer("last_number").function
    assert all(last(r["answer"], gold) == 1 for r, gold in zip(rows, golds, strict=True))


@pytest.mark.slow
def test_an_answer_to_another_problem_is_wrong(real):
    """Answers of different rows are equal only in a sample that was checked by hand."""
    rows = load_rows(real("math/math500.jsonl"))
    answers = sorted({row["answer"] for row in rows if not row["answer"].lstrip("-").isdigit()})
    neighbours = [(a, b) for step in (1, 7) for a, b in zip(answers, answers[step:], strict=False)]
    assert sum(verdict(a, b) for a, b in neighbours) == 0


# Arguments.


def test_an_extraction_that_there_is_not_is_refused():
    with config_error(r"extract 'box'.* did you mean 'boxed'"):
        maths_answer("box")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with missing_extra_error(r"pip install '\.\[math\]'"):
        maths_answer()


def test_the_answer_is_looked_for_in_the_last_hundred_thousand_characters():
    reward = maths_answer("boxed")
    for filler, value in ((99_000, 1.0), (101_000, 0.0)):
        assert reward.function(r"\boxed{72}" + "x" * filler, {"answer": "72"}) == value
