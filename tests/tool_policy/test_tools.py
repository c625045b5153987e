import numpy as np
import pytest
from benchmarks.tool_policy._texts import Carelessness, careless_answer
from benchmarks.tool_policy._tools import CATALOGUE, OFFERED, draw_problem, tool_rows
from numpy.random import default_rng

from gdpo.lab.tasks import TASKS, load_problems
from gdpo.rewards import score

TASK = TASKS["tool_calling"]


def test_the_same_seed_gives_the_same_rows():
    assert tool_rows(50, seed=3) == tool_rows(50, seed=3)
    assert tool_rows(50, seed=3) != tool_rows(50, seed=4)


def test_fewer_rows_are_the_first_of_more():
    assert tool_rows(20, seed=3) == tool_rows(50, seed=3)[:20]


@pytest.mark.parametrize("task", ["tool_calling", "tool_calling_compatible"])
def test_every_reference_answer_gets_the_maximum_of_every_reward(task, saved):
    samples = load_problems(TASKS[task], str(saved("rows.jsonl", tool_rows(1000, seed=0))))
    golds = [TASKS[task].gold_completion(sample.reference) for sample in samples]
    found = score(TASKS[task].rewards, golds, [sample.reference for sample in samples])
    assert not found.failures
    assert np.array_equal(found.values, np.tile([1.0, 3.0], (1000, 1)))


def test_a_prompt_offers_the_tools_that_its_request_needs():
    rng = default_rng(0)
    for problem in (draw_problem(rng) for _ in range(500)):
        system, user = problem.prompt
        assert len(problem.offered) == OFFERED
        for call in problem.calls:
            assert call.tool.signature in system["content"].splitlines()
            assert call.request in user["content"]


def test_there_are_single_and_parallel_calls_of_every_type():
    rng = default_rng(0)
    problems = [draw_problem(rng) for _ in range(500)]
    assert {len(problem.calls) for problem in problems} == {1, 2}
    assert {call.tool.name for p in problems for call in p.calls} == {t.name for t in CATALOGUE}
    kinds = {"string": str, "integer": int, "number": float, "boolean": bool}
    for tool in CATALOGUE:
        for parameter in tool.parameters:
            assert {type(v) for v in parameter.values.values()} == {kinds[parameter.kind]}


def test_careless_responses_are_rarely_well_formed_and_partly_right():
    rng = default_rng(0)
    problems = [draw_problem(rng) for _ in range(2000)]
    answers = [careless_answer(problem, rng, Carelessness()) for problem in problems]
    values = score(TASK.rewards, answers, [{"output": problem.gold} for problem in problems]).values
    well_formed, correctness = values.T
    assert 0.02 < well_formed.mean() < 0.1
    assert well_formed.mean() == pytest.approx(Carelessness().well_formed, abs=0.01)
    assert 0.1 < np.mean(correctness == 3) < 0.5
    assert 0.1 < np.mean(correctness == -3) < 0.6
    right_where_formed = correctness[well_formed == 1].mean()
    assert abs(right_where_formed - correctness[well_formed == 0].mean()) < 0.6


def test_responses_without_mistakes_are_the_reference_answers():
    rng = default_rng(0)
    careful = Carelessness(well_formed=1, right_value=1, right_name=1, whole_json=1)
    for problem in (draw_problem(rng) for _ in range(200)):
        assert careless_answer(problem, rng, careful) == problem.gold
