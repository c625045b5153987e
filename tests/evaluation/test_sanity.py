"""Reference answers are right and empty responses wrong; exceptions are reported."""

from dataclasses import replace

import pytest
from tests.evaluation.conftest import written
from tests.sandbox.needed import needs_sandbox

from gdpo.lab.cli._evaluating import sanity_lines
from gdpo.lab.evaluation.benchmarks import find_benchmark
from gdpo.lab.evaluation.sanity import Sanity, sanity


def program(code, test="assert f(1) == 2"):
    return {"text": "Add one.", "test_list": [test], "code": code}


RIGHT, WRONG = program("f = lambda x: x + 1"), program("f = lambda x: x")


def mbpp(path, *rows):
    return find_benchmark("mbpp", written(path / "mbpp.jsonl", rows))


def test_right_reference_answers_have_no_exceptions(gsm8k_file):
    found = sanity(find_benchmark("gsm8k", gsm8k_file), rows=5)
    assert (found.problems, found.answered, found.exceptions, found.lucky) == (5, 5, (), ())
    assert found.sane


def test_empty_responses_are_not_scored_where_no_call_is_right():
    of_calls, of_none = (
        Sanity(name, 9, 0, (), (), {}) for name in ("bfcl_simple_python", "bfcl_irrelevance")
    )
    assert sanity_lines(of_calls)[0].plain.endswith("wrong: 9 of 9")
    assert "wrong" not in sanity_lines(of_none)[0].plain


@pytest.mark.slow
@needs_sandbox
def test_one_wrong_answer_in_twenty_is_tolerated_and_two_are_not(tmp_path):
    one = sanity(mbpp(tmp_path, *[RIGHT] * 19, WRONG))
    assert one.sane
    assert one.exceptions == (
        "problem 20: pass_all 0 of 1, pass_rate 0 of 1 (test 1: wrong answer)",
    )
    assert not sanity(mbpp(tmp_path, *[RIGHT] * 18, WRONG, WRONG)).sane


@needs_sandbox
def test_each_kind_of_row_is_reported(tmp_path):
    """One reference answer is missing, one imports what the sandbox lacks, one test is too easy."""
    lacking = {**RIGHT, "test_setup_code": "import no_such_package"}
    easy = program("f = 1", "assert 1 == 1")
    found = sanity(mbpp(tmp_path, *[RIGHT] * 20, program(None), lacking, easy))
    assert (found.problems, found.answered) == (23, 22)
    [said] = found.exceptions
    assert said.startswith("problem 22: pass_all 0 of 1, pass_rate 0 of 1, no_bug 0 of 1 (")
    assert "ModuleNotFoundError: No module named 'no_such_package'" in said
    assert found.lucky == (
        "problem 23: an empty response gets 1 for pass_all",
        "problem 23: an empty response gets 1 for pass_rate",
    )
    assert not found.sane
    assert replace(found, lucky=()).sane


def test_an_answer_that_cannot_be_read_is_an_exception(tmp_path):
    rows = [{"problem": f"{i}?", "answer": answer} for i, answer in enumerate(["2", "f(0,4]"])]
    found = sanity(find_benchmark("math500", written(tmp_path / "maths.jsonl", rows)))
    assert found.exceptions == ("problem 2: correctness does not apply (reference answer: f(0,4])",)


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(
    ("rows", "code", "said"), [((RIGHT,), 0, "1 of 1"), ((WRONG,), 1, "0 of 1")]
)
def test_the_command_reports_and_exits_with_1(rows, code, said, tmp_path, gdpo_says):
    file = written(tmp_path / "mbpp.jsonl", rows)
    left, out, _ = gdpo_says("check", "--benchmarks", "mbpp", "--data", f"mbpp={file}")
    assert left == code
    assert f": {said};" in out
