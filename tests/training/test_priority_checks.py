"""What `gdpo check` says about priority and lazy responses."""

import json
from dataclasses import replace
from functools import partial

import pytest
from tests.environments import ROOT

from gdpo.advantages import AdvantageRule
from gdpo.lab.recipes.data import read_data
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.recipe import BatchConfig, DataConfig, Recipe, RewardConfig
from gdpo.lab.recipes.resolve import Resolved, resolve
from gdpo.lab.tasks import Problem, Task
from gdpo.lab.training import priority_findings
from gdpo.lab.training.reward_checks import Level
from gdpo.rewards import Gate, Reward

PROBLEMS = [
    Problem([{"role": "user", "content": f"What is {n} + {n}?"}], {"answer": str(2 * n)})
    for n in range(100, 130)
]


def gold(reference):
    return f"<think>worked out</think>\n<answer>{reference['answer']}</answer>"


def answer_in(text):
    return text.rpartition("<answer>")[2].partition("</answer>")[0]


CORRECT = Reward("correct", lambda text, ref: float(answer_in(text) == ref["answer"]), 0, 1)
FORM = Reward("form", lambda t, _: float(t.startswith("<think>") and "</answer>" in t), 0, 1)
SHORT = Reward("short", lambda count, _: float(count <= 12), 0, 1, of="tokens")
BREVITY = Reward("brevity", lambda text, _: max(0.0, 1 - len(text) / 1024), 0, 1)
ON_CORRECT = Gate("correct", at_least=1)


def own(
    *rewards,
    weights=None,
    gates=None,
    advantage="gdpo",
    rule_options=None,
    problems=PROBLEMS,
    **more,
):
    """The findings on a recipe with these rewards, whose task writes `<think>` and `<answer>`."""
    weights = weights or [1.0] * len(rewards)
    task = Task("own", (("q",),), lambda _: PROBLEMS[0], tuple(rewards), gold, "I do not know.")
    names = [reward.name for reward in rewards]
    recipe = Recipe(
        task="own",
        model="none",
        data=DataConfig(source="none"),
        rewards=tuple(RewardConfig(name=n, weight=w) for n, w in zip(names, weights, strict=True)),
        batch=BatchConfig(samples=8),
        advantage=advantage,
        **more,
    )
    rule = AdvantageRule(advantage, names, rule_options)
    return priority_findings(Resolved(recipe, task, rewards, gates or {}, rule), problems)


of_two = partial(own, CORRECT, FORM)


def lines(findings, mark=None):
    return "\n".join(f.text for f in findings if mark is None or f.level is mark)


def test_the_table_holds_the_weights_that_give_priority():
    found = of_two()
    assert found[0].level is Level.NOTE
    assert found[0].table == (
        ("reward", "weight", "values", "correct wins if the weight is"),
        ("correct", "1", "0, 1", "above 1.512"),
        ("form", "1", "0, 1", "below 0.6614"),
    )
    assert of_two(weights=[1.6, 1])[0].level is Level.FINE


@pytest.mark.parametrize(
    ("third", "weight", "gates", "wins"),
    [
        (BREVITY, 1.0, {}, True),
        (BREVITY, 1.0, {"brevity": ON_CORRECT}, False),
        (SHORT, 1.0, {}, True),
        (SHORT, 0.05, {}, False),
    ],
)
def test_the_four_sets_of_the_trained_policies_end_as_the_check_says(third, weight, gates, wins):
    """research/log.md: 10 of 10 policies ended with non-answers, and 10 of 10 with at most 1 %."""
    found = own(CORRECT, FORM, third, weights=[1, 1, weight], gates=gates)
    beaten = lines(found[1:], Level.NOTE)
    assert ("the form without an answer" in beaten) == wins
    assert ("the form without an answer" in lines(found, Level.FINE)) == (not wins)


def test_the_judge_is_the_reward_that_prefers_a_rows_own_answer():
    assert lines(own(FORM, CORRECT)).startswith("priority: correct ")
    assert "no reward judges correctness" in lines(own(FORM, BREVITY))
    assert "no reward judges correctness" in lines(of_two(weights=[0, 1]))


def test_weights_that_change_are_tried_at_their_extremes():
    schedule = {"schedules": {"form": {"from": 0.1, "to": 2.0, "steps": 9}}}
    found = of_two(weights=[2, 1], rule_options=schedule)
    assert found[0].level is Level.NOTE
    assert found[0].table[2][1] == "2"
    assert of_two(weights=[2, 1])[0].level is Level.FINE
    rule = AdvantageRule("gdpo", ["correct", "form"], schedule)
    assert rule.factors == [(1.0, 1.0), (0.1, 2.0)]


def test_weights_of_rows_count_with_the_row_that_is_furthest_from_priority():
    rows = [Problem(p.prompt, p.reference, weights={"correct": 2, "form": 1}) for p in PROBLEMS]
    assert of_two(problems=rows)[0].level is Level.FINE
    rows[3] = replace(rows[3], weights={"correct": 2, "form": 9})
    assert of_two(problems=rows)[0].level is Level.NOTE
    assert of_two(problems=rows)[0].table[2][1] == "9"


def test_an_estimator_without_a_closed_form_gets_one_sentence():
    (found,) = of_two(advantage="gdpo_leave_one_out")
    assert (found.level, found.table) == (Level.NOTE, ())
    assert "correct always wins is not known for gdpo_leave_one_out" in found.text


def test_a_reward_that_cannot_be_scored_is_said_once(caplog):
    def broken(text, _):
        raise OSError("no service")

    own(CORRECT, Reward("broken", broken, 0, 1))
    assert len(caplog.records) == 1
    found = own(CORRECT, Reward("broken", broken, 0, 1), scorer={"on_error": "raise"})
    assert "not known" in lines(found)
    assert "no service" in lines(found)


def test_rounding_errors_of_a_score_are_no_difference():
    noisy = Reward("noisy", lambda text, _: 0.1 + 0.2 if len(text) > 60 else 0.3, 0, 1)
    found = own(CORRECT, noisy)
    assert found[0].table[2][2] == "0, 0.3, 1"
    assert "can beat" not in lines(found)


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "What?"}]])
def test_a_prompt_without_plain_text_can_be_checked(content):
    rows = [replace(p, prompt=[{"role": "user", "content": content}]) for p in PROBLEMS]
    assert of_two(problems=rows)[0].table


def test_too_few_rows_are_said():
    assert "fewer than two rows" in lines(of_two(problems=PROBLEMS[:1]))


NAMES = [folder.name for folder in (ROOT / "recipes").glob("*/")]


CALL = '<think>a</think>\n<tool_call>\n{"name": "f", "parameters": {"x": @}}\n</tool_call>'
ROWS = {
    "gsm8k": {"question": "@+1?", "answer": "#### @1"},
    "math_length": {"problem": "@+1?", "answer": "@1"},
    "coding": {"text": "Name: f@", "test_list": ["assert f@(1) == @"], "code": "f@ = lambda x: @"},
    "tool_calling": {"instruction": "tools: f(x)", "input": "call f with @", "output": CALL},
}


def write_rows(file, task, numbers):
    """Write a row of a task's data for each number."""
    row = json.dumps(ROWS[task])
    file.write_text("".join(row.replace("@", str(n)) + "\n" for n in numbers))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"launch"}))
def test_the_readme_of_a_shipped_recipe_shows_its_table(name, tmp_path):
    recipe = ROOT / "recipes" / name
    rows = write_rows(tmp_path / "rows.jsonl", load_recipe(recipe).task, range(200, 208))
    resolved = resolve(load_recipe(recipe, [f"data.source={rows}"]))
    found = priority_findings(resolved, read_data(resolved.task, resolved.recipe.data).problems)
    readme = (recipe / "README.md").read_text("utf-8")
    for row in found[0].table:
        assert f"| {' | '.join(row)} |" in readme, found
