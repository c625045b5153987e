"""The recipes that come with gdpo: short, valid, and with the published batches."""

import os
from pathlib import Path

import pytest

from gdpo.training import Verdict, check, load_recipe
from gdpo.training._batch import plan_batches
from gdpo.training._noise import quiet
from gdpo.training._trainer_fields import build_config

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("folder", sorted(p for p in RECIPES.iterdir()), ids=lambda p: p.name)
def test_a_recipe_is_short_and_comes_with_a_readme(folder):
    assert len((folder / "recipe.yaml").read_text().splitlines()) <= 40
    assert load_recipe(folder).task == folder.name
    text = (folder / "README.md").read_text()
    for part in (f"gdpo train recipes/{folder.name}", "Needs", "Takes", "Expect"):
        assert part in text


@pytest.mark.parametrize(
    ("name", "rows", "rollouts", "per_step", "steps"),
    [("gsm8k", 7473, 512, 512, 233), ("tool_calling", 3920, 2048, 512, 420)],
)
def test_the_batches_are_the_published_ones(name, rows, rollouts, per_step, steps):
    with quiet():
        config = build_config(load_recipe(RECIPES / name, ["trainer.use_vllm=false"]))
    plan = plan_batches(config, rows)
    assert (plan.rollouts, plan.rollouts_per_step, plan.total_steps) == (rollouts, per_step, steps)


@pytest.mark.skipif("GDPO_DATA" not in os.environ, reason="GDPO_DATA names no folder of real data")
@pytest.mark.parametrize(
    ("name", "file"),
    [("gsm8k", "gsm8k/train.jsonl.gz"), ("tool_calling", "tools/rlla_sft.json.gz")],
)
def test_every_gold_answer_gets_the_maximum(name, file, tiny_policy):
    source = Path(os.environ["GDPO_DATA"]) / file
    recipe = load_recipe(
        RECIPES / name,
        [
            f"data.source={source}",
            f"model={tiny_policy}",
            "trainer.use_vllm=false",
            "trainer.generation_batch_size=512",
        ],
    )
    wrong = [f.text for f in check(recipe) if f.verdict is Verdict.WRONG]
    assert all("the model sees" in text for text in wrong), wrong  # the tiny model's context
