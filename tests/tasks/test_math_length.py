"""Maths with a length limit: rows of every published format, and the prompt."""

import pytest
from tests.checkout import python
from tests.refusals import data_error

from gdpo.lab.evaluation import BENCHMARKS
from gdpo.lab.evaluation.benchmarks import Source, find_benchmark, problems
from gdpo.lab.tasks import TASKS

TASK = TASKS["math_length"]


def read(**row):
    sample = TASK.read_row(row)
    return sample.prompt, sample.reference["answer"]


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"problem": "1+1?", "answer": "2", "solution": r"so \boxed{3}"}, "2"),
        ({"problem": "1+1?", "solution": r"\boxed{1}, no: \boxed{\frac{4}{2}}"}, r"\frac{4}{2}"),
        ({"problem": "1+1?", "answer": 2}, "2"),
        ({"problem": "1+1?", "answer": 0.5}, "0.5"),
        ({"question": "1+1?", "answer": "one and one #### 2 "}, "2"),
        ({"question": "1+1?", "answer": r"\frac{1}{2}"}, r"\frac{1}{2}"),
        ({"question": "1+1?", "final_answer": ["$2$"], "is_multiple_answer": False}, "$2$"),
        ({"question": "1+1?", "final_answer": ["$2$", " 3 "]}, "$2$, 3"),
        ({"question": "1+1?", "final_answer": []}, None),
        ({"question": "1+1?", "final_answer": None}, None),
        ({"problem": "1+1?", "answer": None}, None),
        ({"problem": "1+1?", "answer": ""}, None),
    ],
)
def test_the_answer_is_the_rows(row, answer):
    prompt, read_answer = read(**row)
    assert read_answer == answer
    assert prompt[0]["content"].startswith("1+1?\n\n")
    assert r"\boxed{}" in prompt[0]["content"]
    assert [message["role"] for message in prompt] == ["user"]


def test_the_order_of_several_answers_does_not_matter():
    reference = TASK.read_row({"question": "x?", "final_answer": ["$1,2,3$"]}).reference
    correctness = TASK.reward("correctness").function
    assert correctness(r"\boxed{3, 1, 2}", reference) == 1
    assert correctness(r"\boxed{3, 1}", reference) == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "1+1?", "solution": "it is 2"}, "column 'solution'"),
        ({"problem": "1+1?", "answer": True}, "column 'answer' .*got bool True"),
        ({"question": "1+1?", "final_answer": "2"}, "column 'final_answer'"),
        ({"problem": " ", "answer": "2"}, "column 'problem'"),
        ({"problem": "1+1?", "answer": ["2"]}, "column 'answer' .*got list"),
    ],
)
def test_a_row_without_a_readable_answer_is_named(row, message):
    with data_error(message):
        TASK.read_row(row)


def test_a_row_without_an_answer_has_no_gold_completion_and_no_correctness():
    sample = TASK.read_row({"problem": "1+1?", "answer": None})
    assert TASK.gold_completion(sample.reference) is None
    assert TASK.reward("correctness").function(r"\boxed{2}", sample.reference) is None


def test_other_tasks_do_not_load_what_it_needs():
    code = (
        "import sys; from gdpo.lab.tasks import TASKS; TASKS['gsm8k']; "
        "assert not {'sympy', 'math_verify'} & set(sys.modules)"
    )
    python("-c", code, check=True)


def test_rows_of_amc_22_and_23_have_a_number_as_their_answer(saved):
    file = saved(
        "amc.jsonl",
        '{"id": 0, "problem": "$m+n$?", "answer": 142.0, "url": "2022_AMC_12A/Problem_1"}\n'
        '{"id": 1, "problem": "$k$?", "answer": -4.0, "url": "2023_AMC_12A/Problem_1"}\n',
    )
    samples = problems(find_benchmark("amc22_23", str(file)), None)
    score = TASK.reward("correctness").function
    written = [r"\boxed{142}", r"\boxed{-4}"]
    right = [score(text, s.reference) for text, s in zip(written, samples, strict=True)]
    wrong = [score(r"\boxed{14.2}", s.reference) for s in samples]
    assert (right, wrong) == ([1, 1], [0, 0])
    assert BENCHMARKS["amc22_23"].source == Source("AI-MO/aimo-validation-amc", "", "train")
