"""Weights in a recipe that change during a run."""

import pytest
from tests.refusals import config_error

from gdpo.lab.recipes import load_recipe
from gdpo.lab.recipes.resolve import resolve

LINEAR = {"from": 1.0, "to": 0.2, "steps": 200}
AFTER = {"after": {"reward": "format", "mean_at_least": 0.95}, "value": 0.2}


def recipe_of(tmp_path, *, weight="1.0", more=""):
    file = tmp_path / "recipe.yaml"
    file.write_text(
        f"""task: gsm8k
model: smollm2-135m
data: {{source: rows.jsonl}}
rewards:
  - {{name: correctness}}
  - name: format
    weight: {weight}
{more}
"""
    )
    return file


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
def test_a_schedule_becomes_an_option_of_the_rule(tmp_path, saved, weight, schedule, words):
    resolved = resolve(load_recipe(recipe_of(tmp_path, weight=weight)))
    assert resolved.weights == (1.0, 1.0)
    assert resolved.options == {"schedules": {"format": schedule}}
    assert resolved.recipe.rewards[1].weight_in_words == words
    saved("again.yaml", resolved.recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml").digest == resolved.recipe.digest


def test_set_overrides_a_part_of_a_schedule(tmp_path):
    file = recipe_of(tmp_path, weight="{from: 1.0, to: 0.2, steps: 200}")
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
def test_a_recipe_that_cannot_work_is_an_error_with_its_line(tmp_path, changes, message):
    with config_error(message):
        resolve(load_recipe(recipe_of(tmp_path, **changes)))


def test_a_wrong_schedule_is_found_where_a_name_begins_like_another(tmp_path, monkeypatch):
    (tmp_path / "own_late.py").write_text(
        "from gdpo.rewards import Reward\n"
        "late = Reward('format_late', lambda completion, reference: 0.0, low=0, high=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    wrong = "{after: {reward: x, mean_at_least: 1}, value: 0.2}"
    more = f"  - name: own_late:late\n    weight: {wrong}"
    file = recipe_of(tmp_path, weight="{from: 1.0, to: 0.2, steps: 200}", more=more)
    with config_error(r"recipe\.yaml:9: .*'x'"):
        load_recipe(file)
