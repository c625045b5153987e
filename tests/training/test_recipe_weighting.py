"""Weights in a recipe that change during a run."""

import pytest
from tests.refusals import config_error

from gdpo.lab.recipes import load_recipe
from gdpo.lab.recipes.resolve import resolve

LINEAR = {"from": 1.0, "to": 0.2, "steps": 200}
AFTER = {"after": {"reward": "format", "mean_at_least": 0.95}, "value": 0.2}


@pytest.fixture
def recipe_of(saved):
    """Write a recipe with this weight of the format, and more after it."""
    return lambda weight="1.0", more="": saved(
        "recipe.yaml",
        f"""task: gsm8k
model: smollm2-135m
data: {{source: rows.jsonl}}
rewards:
  - {{name: correctness}}
  - name: format
    weight: {weight}
{more}
""",
    )


@pytest.mark.parametrize(
    ("weight", "schedule", "words"),
    [
        ("{from: 1.0, to: 0.2, steps: 200}", LINEAR, "1 → 0.2 over 200 steps"),
        (
            "{after: {reward: format, mean_at_least: 0.95}, value: 0.2}",
            AFTER,
            "1, 0.2 after mean format ≥ 0.95",
        ),
    ],
)
def test_a_schedule_becomes_an_option_of_the_rule(recipe_of, saved, weight, schedule, words):
    resolved = resolve(load_recipe(recipe_of(weight=weight)))
    assert resolved.weights == (1.0, 1.0)
    assert resolved.options == {"schedules": {"format": schedule}}
    assert resolved.recipe.rewards[1].weight_in_words == words
    again = load_recipe(saved("again.yaml", resolved.recipe.to_yaml()))
    assert again.digest == resolved.recipe.digest


def test_set_overrides_a_part_of_a_schedule(recipe_of):
    file = recipe_of(weight="{from: 1.0, to: 0.2, steps: 200}")
    recipe = load_recipe(file, ["rewards.format.weight.steps=50"])
    assert recipe.rewards[1].weight == {**LINEAR, "steps": 50}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": "{to: 0.2}"}, r"recipe.yaml:7: .*write \{from"),
        ({"weight": "{to: 0.2, steps: 0}"}, "recipe.yaml:7: .*steps must be an integer"),
        ({"weight": "{to: 0.2, steps: 3, by: 2}"}, "recipe.yaml:7: .*'by'"),
        ({"weight": "half"}, "recipe.yaml:7: .*a weight without a schedule must be a number"),
        ({"weight": "{after: {reward: x, mean_at_least: 1}, value: 0.2}"}, "recipe.yaml:7: .*'x'"),
        (
            {"weight": "{after: {reward: correctness, mean_at_least: 95}, value: 0.2}"},
            "recipe.yaml:7: .*never at least 95, .*from 0 to 1",
        ),
        (
            {"more": "advantage_options: {schedules: {correctness: 1}}"},
            "recipe.yaml:8: advantage_options contains schedules: use `weight:` of a reward",
        ),
    ],
)
def test_a_recipe_that_cannot_work_is_an_error_with_its_line(recipe_of, changes, message):
    with config_error(message):
        resolve(load_recipe(recipe_of(**changes)))


def test_a_wrong_schedule_is_found_where_a_name_begins_like_another(
    recipe_of, saved, tmp_path, monkeypatch
):
    saved(
        "own_late.py",
        "from gdpo.rewards import Reward\n"
        "late = Reward('format_late', lambda completion, reference: 0.0, low=0, high=1)\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    wrong = "{after: {reward: x, mean_at_least: 1}, value: 0.2}"
    more = f"  - name: own_late:late\n    weight: {wrong}"
    file = recipe_of(weight="{from: 1.0, to: 0.2, steps: 200}", more=more)
    with config_error(r"recipe\.yaml:9: .*'x'"):
        load_recipe(file)
