import json

import pytest
from tests.refusals import data_error

from gdpo.lab.rewards import code
from gdpo.lab.tasks.coding import (
    code_contests_tests,
    ground_truth_tests,
    humaneval_tests,
    input_output_tests,
    leetcode_tests,
    mbpp_tests,
)

MBPP = {"test_list": ["assert f(1) == 2"], "test_setup_code": "", "code": "def f(x): ..."}
HUMANEVAL = {
    "entry_point": "g",
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef g(x):\n    """Doc."""\n',
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1) == 2\n",
}
LEETCODE = {
    "entry_point": "Solution().f",
    "prompt": "from typing import *\n",
    "test": "def check(candidate):\n    assert candidate(x = 1) == 2\n",
}
STDIO = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "3\n"]}
CALLS = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [2, 3]}
FUNCTION = "Solution().f if 'Solution' in globals() else f"


def apps(value):
    return {"input_output": value}


def eurus(value):
    return {"reward_model": {"ground_truth": value, "style": "rule"}}


def test_mbpp():
    assert mbpp_tests(MBPP) == {"kind": "asserts", "statements": ["assert f(1) == 2"], "setup": ""}


def test_mbpp_brings_its_imports_and_its_setup():
    row = {**MBPP, "test_imports": ["import math"], "test_setup_code": "a = math.pi"}
    assert mbpp_tests(row)["setup"] == "import math\na = math.pi"


def test_humaneval_brings_what_stands_beside_the_function():
    tests = humaneval_tests(HUMANEVAL)
    assert tests["entry_point"] == "g"
    assert tests["setup"] == "import math\n\ndef helper(x):\n    return x"
    assert tests["code"] == HUMANEVAL["test"]


def test_leetcode_brings_its_prompt():
    assert leetcode_tests(LEETCODE) == {
        "kind": "check",
        "code": LEETCODE["test"],
        "entry_point": "Solution().f",
        "setup": LEETCODE["prompt"],
    }


@pytest.mark.parametrize(("read", "row"), [(input_output_tests, apps), (ground_truth_tests, eurus)])
@pytest.mark.parametrize("written", [json.dumps, lambda value: value], ids=["text", "object"])
def test_inputs_and_outputs_as_text_or_as_an_object(read, row, written):
    assert read(row(written(STDIO))) == {"kind": "stdio", "cases": [["1\n", "2\n"], ["2\n", "3\n"]]}
    assert read(row(written(CALLS))) == {
        "kind": "calls",
        "function": FUNCTION,
        "cases": [[[1], 2], [[2], 3]],
    }


def cases(inputs, outputs, **more):
    return input_output_tests(apps({"inputs": inputs, "outputs": outputs, **more}))["cases"]


def test_streams_given_as_lines_are_joined():
    assert cases([["1", "2"]], [["3", "4"]]) == [["1\n2", "3\n4"]]


def test_values_that_are_all_wrapped_are_unwrapped():
    assert cases([[1], [2]], [[2], [3]], fn_name="f") == [[[1], 2], [[2], 3]]
    assert cases([[1], [2]], [[2], [3, 4]], fn_name="f") == [[[1], [2]], [[2], [3, 4]]]
    assert cases([[1], [2]], [[2], []], fn_name="f") == [[[1], [2]], [[2], []]]


def test_whole_numbers_are_keys_again():
    assert cases([[{"1": "a", "-2": {"3": 0}}]], [{"4": 5}], fn_name="f") == [
        [[{1: "a", -2: {"3": 0}}], {4: 5}]
    ]
    assert cases([[{"1": 0, "b": 0}, {}]], [5], fn_name="f") == [[[{"1": 0, "b": 0}, {}], 5]]


def test_code_contests_joins_its_three_parts():
    row = {
        "public_tests": {"input": ["1"], "output": ["2"]},
        "private_tests": {"input": [], "output": []},
        "generated_tests": {"input": ["3", "5"], "output": ["4", "6"]},
    }
    expected = {"kind": "stdio", "cases": [["1", "2"], ["3", "4"], ["5", "6"]]}
    assert code_contests_tests(row) == expected
    assert code_contests_tests({**row, "private_tests": None}) == expected


@pytest.mark.parametrize(
    "tests",
    [
        mbpp_tests(MBPP),
        humaneval_tests(HUMANEVAL),
        leetcode_tests(LEETCODE),
        input_output_tests(apps(STDIO)),
        input_output_tests(apps(CALLS)),
        code_contests_tests({"public_tests": {"input": ["1"], "output": ["2"]}}),
    ],
    ids=lambda tests: tests["kind"],
)
def test_what_is_read_are_tests_and_survives_json(tests):
    assert code.tests_of(json.loads(json.dumps(tests))) is not None


@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (mbpp_tests, {}, r"'test_list' .*got nothing"),
        (mbpp_tests, {"test_list": []}, r"'test_list'"),
        (mbpp_tests, {"test_list": ["assert ("]}, r"'test_list\[0\]'"),
        (mbpp_tests, {"test_list": [1]}, r"'test_list'"),
        (mbpp_tests, {**MBPP, "test_imports": "math"}, r"'test_imports'"),
        (mbpp_tests, {**MBPP, "test_setup_code": "a ="}, r"'test_setup_code'"),
        (humaneval_tests, {**HUMANEVAL, "prompt": ""}, r"'prompt'"),
        (humaneval_tests, {**HUMANEVAL, "prompt": "def g("}, r"'prompt'"),
        (humaneval_tests, {**HUMANEVAL, "entry_point": "h"}, r"function 'h'"),
        (humaneval_tests, {**HUMANEVAL, "test": "assert 1"}, r"'test' .*'check'"),
        (leetcode_tests, {**LEETCODE, "test": "a b"}, r"'test'"),
        (leetcode_tests, {**LEETCODE, "prompt": "a b"}, r"'prompt'"),
        (leetcode_tests, {**LEETCODE, "entry_point": None}, r"'entry_point'"),
        (input_output_tests, {}, r"'input_output' .*got nothing"),
        (input_output_tests, apps(""), r"'input_output'"),
        (input_output_tests, apps("[" * 100_000), r"'input_output'"),
        (input_output_tests, apps("[]"), r"'input_output' .*got list"),
        (input_output_tests, apps({}), r"'input_output': .*inputs .*got nothing"),
        (input_output_tests, apps({"inputs": [], "outputs": []}), r"'input_output' .*'inputs'"),
        (input_output_tests, apps({**STDIO, "outputs": ["2"]}), r"2 inputs .*1 outputs"),
        (input_output_tests, apps({**STDIO, "outputs": ["2", 3]}), r"got int 3 in test 1"),
        (input_output_tests, apps({**CALLS, "inputs": [1, 2]}), r"arguments, got int 1"),
        (input_output_tests, apps({**CALLS, "fn_name": "f()"}), r"function's name"),
        (input_output_tests, apps({**CALLS, "fn_name": 1}), r"'fn_name'"),
        (ground_truth_tests, {"reward_model": "x"}, r"'reward_model'"),
        (ground_truth_tests, eurus("{"), r"'reward_model.ground_truth'"),
        (code_contests_tests, {}, r"public_tests"),
        (code_contests_tests, {"public_tests": {"input": ["1"]}}, r"'public_tests': .*outputs"),
    ],
)
def test_bad_rows_are_refused_by_name(read, row, message):
    with data_error(message):
        read(row)
