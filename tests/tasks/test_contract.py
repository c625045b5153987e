"""The contract of every task, built in or your own."""

import json

import numpy as np
import pytest
from tests.refusals import config_error, data_error

from gdpo.lab.tasks import TASKS, load_problems, resolve_task
from gdpo.rewards import Scorer
from gdpo.testing import check_reward

TOOLS = "tools/rlla_sft.json.gz"
MATHS = "gsm8k/train.jsonl.gz"
ROWS = {
    "tool_calling": TOOLS,
    "tool_calling_compatible": TOOLS,
    "gsm8k": MATHS,
    "gsm8k_compatible": MATHS,
    "math_length": "math/math500.jsonl",
    "coding": "code/mbpp.jsonl.gz",
}
REWARDS = [
    (name, reward.name)
    for name, task in TASKS.items()
    for reward in task.rewards
    if reward.needs is None  # those that run programs: tests/rewards/test_code.py
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "reward"), REWARDS)
def test_reward_keeps_its_contract(task, reward):
    check_reward(TASKS[task].reward(reward))


@pytest.mark.parametrize(("task", "reward"), REWARDS)
def test_an_example_reaches_the_top_and_one_the_bottom_of_the_range(task, reward):
    r = TASKS[task].reward(reward)
    scores = {example.score for example in r.examples}
    assert {r.low, r.high} <= scores


@pytest.mark.parametrize("name", TASKS)
def test_names_are_the_keys(name):
    assert TASKS[name].name == name
    assert resolve_task(name) is TASKS[name]


def test_order_of_the_rewards_is_the_published_one():
    orders = {name: tuple(r.name for r in task.rewards) for name, task in TASKS.items()}
    assert orders == {
        "tool_calling": ("format", "correctness"),
        "tool_calling_compatible": ("format", "correctness"),
        "gsm8k": ("correctness", "integer", "format"),
        "gsm8k_compatible": ("correctness", "integer", "format"),
        "math_length": ("correctness", "length"),
        "coding": ("pass_rate", "length", "no_bug"),
    }


@pytest.mark.parametrize("name", ["math_length", "coding"])
def test_a_response_has_at_most_the_published_number_of_tokens(name):
    length = TASKS[name].reward("length").function
    assert (length(4000, {}), length(4001, {})) == (1, 0)


def scores_of(task, samples, completions):
    references = [sample.reference for sample in samples]
    with Scorer(task.rewards, workers=2) as scorer:
        result = scorer.score(completions, references, num_tokens=[100] * len(completions))
    assert not result.failures
    return result.values


@pytest.fixture
def golds(real):
    """Return a task, its rows, and the scores of their reference answers."""

    def scored(name, limit=None):
        task = TASKS[name]
        samples = load_problems(task, real(ROWS[name]), limit=limit)
        answers = [task.gold_completion(sample.reference) for sample in samples]
        return task, samples, scores_of(task, samples, answers)

    return scored


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("tool_calling", 400),
        ("gsm8k", 7473),
        ("math_length", 500),
        ("coding", 100),  # all of them: coding/test_real_programs.py
    ],
)
def test_every_gold_answer_gets_the_maximum_of_every_reward_that_applies(name, rows, golds):
    task, samples, values = golds(name, limit=rows + 1 if rows > 100 else rows)
    assert len(samples) == rows
    high = np.array([reward.high for reward in task.rewards])
    assert np.all((values == high) | np.isnan(values))
    assert not np.isnan(values).all(axis=1).any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "path"), ROWS.items())
def test_the_bad_completion_misses_a_maximum_for_every_row(name, path, real):
    task = TASKS[name]
    samples = load_problems(task, real(path))
    values = scores_of(task, samples, [task.bad_completion] * len(samples))
    high = np.array([reward.high for reward in task.rewards])
    assert np.all((values < high).any(axis=1))


def test_gold_texts_without_a_call_are_those_where_correctness_does_not_apply(golds):
    task, samples, values = golds("tool_calling")
    silent = ["<tool_call>\n" not in task.gold_completion(s.reference) for s in samples]
    assert np.array_equal(np.isnan(values[:, 1]), silent)
    assert sum(silent) == 54


def test_gold_texts_that_the_published_rewards_fail_are_these_and_no_more(golds):
    _, samples, values = golds("tool_calling_compatible")
    named = ["<tool_call>" in s.reference["output"].split("</think>")[0] for s in samples]
    talk = ["<tool_call>" not in s.reference["output"] for s in samples]
    assert np.array_equal(values[:, 0] == 0, named)  # a tag named in the thinking: 17
    assert np.array_equal(np.isnan(values[:, 1]), named)  # where the published code raises
    assert np.array_equal(values[:, 1] == 0, talk)  # no call: always 0
    assert np.all(np.isin(values[:, 1], [0, 3]) | np.isnan(values[:, 1]))
    assert (sum(named), sum(talk)) == (17, 54)


def test_gold_answers_that_the_published_integer_reward_fails_hold_a_comma_or_a_sign(golds):
    _, samples, values = golds("gsm8k_compatible")
    written = ["," in s.reference["answer"] or "-" in s.reference["answer"] for s in samples]
    assert np.all(values[:, [0, 2]] == 1)
    assert np.array_equal(values[:, 1] == 0, written)
    assert sum(written) == 82


def test_an_unknown_task_names_the_nearest_one():
    with config_error("did you mean 'tool_calling'"):
        resolve_task("tool_caling")


def test_your_own_task_is_found_by_module_and_attribute():
    assert resolve_task("gdpo.lab.tasks.gsm8k:COMPATIBLE") is TASKS["gsm8k_compatible"]


def test_what_is_no_task_is_refused():
    with config_error(r"function.*gdpo\.lab\.tasks\.Task"):
        resolve_task("gdpo.lab.tasks:load_rows")


def test_a_wrong_row_is_named_by_file_line_and_column(saved):
    path = saved(
        "rows.jsonl",
        '{"question": "1+1?", "answer": "#### 2"}\n\n{"questions": "1?", "answer": "#### 1"}\n',
    )
    lacks = r"'question',.* questions, answer\. Allowed: \(question, answer\).*'questions'"
    with data_error(f"{path}, line 3: .*{lacks}"):
        load_problems(TASKS["gsm8k"], path)


def test_a_row_of_neither_shape_is_told_what_it_lacks_of_the_nearer_one(saved):
    path = saved("rows.json", json.dumps([{"instruction": "a", "input": "b", "outputs": "c"}]))
    with data_error(r"row 1: .*'tool_calling' .*'output'"):
        load_problems(TASKS["tool_calling"], path)


def test_samples_obey_the_limit(saved):
    path = saved("rows.jsonl", '{"question": "1+1?", "answer": "so #### 2"}\n' * 3 + "{broken\n")
    samples = load_problems(TASKS["gsm8k"], path, limit=2)
    assert [s.reference for s in samples] == [{"answer": "2"}] * 2
