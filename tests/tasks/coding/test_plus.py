"""EvalPlus rows: their tests run without numpy, and every comparison is a test."""

import json
import math
import random

import pytest
from tests.refusals import data_error
from tests.sandbox.needed import needs_sandbox

from gdpo.lab.evaluation.benchmarks import find_benchmark, problems
from gdpo.lab.rewards.code import pass_all, pass_rate, verdict_of
from gdpo.lab.tasks import TASKS
from gdpo.lab.tasks.evalplus import _STAND_IN, mbpp_plus_tests, plus_check

TASK = TASKS["coding"]

ASSERTION = """\
import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False


def assertion(out, exp, atol):
    exact_match = out == exp

    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match
"""
HALVED = {
    "task_id": "HumanEval/0",
    "prompt": 'def half(x):\n    """Half of it."""\n',
    "canonical_solution": "    return x / 2\n",
    "entry_point": "half",
    "test": f"{ASSERTION}\n\ndef check(candidate):\n    inputs = [[1], [2], [3]]\n"
    "    results = [0.5, 1.0, 1.5000000001]\n"
    "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
    "        assertion(candidate(*inp), exp, 0)\n",
}
MBPP_PLUS = {
    "task_id": 2,
    "code": "def check(a, b):\n    return tuple(set(a) & set(b))",
    "prompt": "Write a function to find the shared elements.",
    "test_imports": ["from math import inf"],
    "test_list": ["assert check((3, 4), (5, 4)) == (4,)"],
    "test": f"import numpy as np\nfrom math import inf\n\n{ASSERTION}\n\n"
    "inputs = [[(3, 4), (5, 4)], [(1, inf), (inf,)], [(), ()]]\n"
    "results = [(4,), (inf,), ()]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
    "    assertion(check(*inp), exp, 0)\n",
}


def program(text):
    return f"```python\n{text}\n```"


@needs_sandbox
def test_the_rows_own_solutions_pass_and_each_comparison_is_a_test():
    for row in (HALVED, MBPP_PLUS):
        sample = TASK.read_row(row)
        verdict = verdict_of(TASK.gold_completion(sample.reference), sample.reference)
        assert verdict.outcomes == ("passed",) * 3
        assert pass_all.function("", sample.reference) == 0


@needs_sandbox
def test_a_program_that_is_nearly_right_passes_the_rest():
    half = TASK.read_row(HALVED).reference
    assert pass_rate.function(program("half = lambda x: 1.0"), half) == pytest.approx(1 / 3)
    assert pass_rate.function(program("half = lambda x: x / 2 + 1e-9"), half) == 1
    assert pass_rate.function(program("half = lambda x: x / 2 + 1e-5"), half) == 0
    shared = TASK.read_row(MBPP_PLUS).reference
    assert pass_rate.function(program("check = lambda a, b: ()"), shared) == pytest.approx(1 / 3)


def stand_in():
    names = {}
    exec(_STAND_IN, names)
    return names["np"]


def test_the_stand_in_agrees_with_numpy_where_shapes_are_equal():
    import numpy as np

    rng, ours = random.Random(0), stand_in()
    special = [0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-9, 1 + 1e-7, 1 + 3e-7, 3, True, 1j]
    for _ in range(2000):
        size = rng.randint(0, 3)
        a, b = ([rng.choice(special) for _ in range(size)] for _ in "ab")
        atol = rng.choice([0, 1e-6, 1e-3])
        assert ours.allclose(a, b, rtol=1e-07, atol=atol) == np.allclose(a, b, 1e-07, atol), (a, b)
    assert ours.allclose([[1.0, 2.0], (3.0,)], ([1.0, 2.0], [3.0]))
    assert not ours.allclose([1.0], [1.0, 1.0])
    assert not ours.allclose("a", 1.0)
    ours.testing.assert_allclose([1.0, math.nan], [1.0, math.nan])
    with pytest.raises(AssertionError):
        ours.testing.assert_allclose(1.0, 1.1)


def test_nothing_else_of_a_row_changes():
    code = plus_check(HALVED["test"])
    assert "        assert assertion(candidate(*inp), exp, 0) is None\n" in code
    assert code.replace(_STAND_IN.rstrip(), "import numpy as np") != HALVED["test"]
    assert "import numpy" not in code
    tests = mbpp_plus_tests(MBPP_PLUS)
    assert tests["entry_point"] == "check"
    assert "def check(candidate):\n    inputs = [[(3, 4)" in tests["code"]


@needs_sandbox
def test_an_answer_may_be_long_where_the_tests_compute_what_they_expect():
    row = {
        **HALVED,
        "prompt": 'def digits(n):\n    """Numbers."""\n',
        "canonical_solution": "    return ' '.join(map(str, range(n)))\n",
        "entry_point": "digits",
        "test": f"{ASSERTION}\n\ndef check(candidate):\n"
        "    assertion(candidate(10**6), ' '.join(map(str, range(10**6))), 0)\n",
    }
    reference = TASK.read_row(row).reference
    assert pass_rate.function(TASK.gold_completion(reference), reference) == 1


@pytest.mark.parametrize("column", ["base_input", "plus_input"])
def test_rows_of_a_release_file_are_refused_because_their_test_is_humaneval_s(column):
    row = {**HALVED, "test": "def check(candidate):\n    assert candidate(1) == 0.5\n"}
    assert TASK.read_row({**row, column: None}).reference["limits"] is None
    with data_error(f"column '{column}' .*EvalPlus"):
        TASK.read_row({**row, column: [[1]]})


HUMANEVAL = {**HALVED, "test": "def check(candidate):\n    assert candidate(1) == 0.5\n"}
MBPP = {"text": "Halve.", "test_list": ["assert half(1) == 0.5"], "code": "half = lambda x: x / 2"}


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("humaneval_plus", HUMANEVAL, "column 'test' .*humaneval_*plus"),
        ("humaneval_plus", {**HUMANEVAL, "base_input": [[1]]}, "column 'base_input'"),
        ("mbpp_plus", MBPP, "column 'test' .*humaneval_*plus"),
        ("mbpp_plus", {"prompt": "Halve.", "plus_input": [[1]]}, "column 'plus_input'"),
    ],
)
def test_no_other_rows_are_scored_under_the_name_of_evalplus(name, row, said, saved):
    file = saved("rows.jsonl", [row])
    with data_error(said):
        problems(find_benchmark(name, str(file)), None)


def test_evalplus_rows_are_read_under_its_name_with_numpy_or_without(saved):
    test = "def check(candidate):\n    for i, (inp, exp) in enumerate(zip(inputs, results)):\n"
    rows = [HALVED, {**HALVED, "test": f"{test}        assert candidate(*inp) == exp\n"}]
    file = saved("rows.jsonl", rows)
    assert len(problems(find_benchmark("humaneval_plus", str(file)), None)) == 2


@pytest.mark.parametrize(
    ("test", "message"),
    [("def f(:", "column 'test'"), ("assert f(1) == 2", "column 'test'"), (None, "column 'test'")],
)
def test_a_test_that_compares_nothing_is_refused(test, message):
    with data_error(message):
        TASK.read_row({**MBPP_PLUS, "test": test})


def test_the_paper_s_origins_of_programs_are_rows_of_one_file(saved):
    rows = [
        {
            "data_source": origin,
            "prompt": [{"role": "user", "content": f"{origin} {i}"}],
            "reward_model": {"ground_truth": json.dumps({"inputs": ["1"], "outputs": ["1"]})},
        }
        for i in range(3)
        for origin in ("apps", "taco", "numina_math")
    ]
    for row in rows:
        if row["data_source"] == "numina_math":
            row["reward_model"]["ground_truth"] = "no tests"
    file = saved("eurus.jsonl", rows)
    asked = [s.prompt[0]["content"] for s in problems(find_benchmark("taco", str(file)), 2)]
    assert asked == ["taco 0", "taco 1"]
    with data_error("has no rows"):
        problems(find_benchmark("codeforces", str(file)), None)
    tests = {"inputs": ["1"], "outputs": ["1"]}
    own = saved("own.jsonl", [{"question": "Echo.", "input_output": tests}])
    assert len(problems(find_benchmark("apps", str(own)), None)) == 1
