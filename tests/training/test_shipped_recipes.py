"""The recipes that come with gdpo: short, valid, with the published batches, and they train."""

import json
import os
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from gdpo.errors import ConfigError
from gdpo.rollouts import read_rollouts
from gdpo.training import (
    Verdict,
    check,
    copy_recipe,
    load_recipe,
    shipped_recipe,
    shipped_recipes,
    train,
)
from gdpo.training._batch import plan_batches
from gdpo.training._noise import quiet
from gdpo.training._resolve import resolve
from gdpo.training._trainer_fields import build_config

RECIPES = Path(__file__).parents[2] / "recipes"
FOLDERS = sorted(file.parent for file in RECIPES.glob("*/recipe.yaml"))

TURN = "<think>a</think>\n<tool_call>\n{}\n</tool_call>"
CALL = TURN.format('{"name": "f", "parameters": {"x": 1}}')
ROWS = {
    "gsm8k": {"question": "1+1?", "answer": "#### 2"},
    "tool_calling": {"instruction": "tools: f(x)", "input": "call f with 1", "output": CALL},
    "math_length": {"problem": "1+1?", "answer": "2"},
    "coding": {"text": "Add.", "test_list": ["assert f(1) == 2"], "code": "f = lambda x: x + 1"},
}
SMALL = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 2,
    "use_vllm": "false",
    "gradient_checkpointing": "false",
}


def small(name, policy, folder):
    """The recipe on four rows with a tiny model, two steps."""
    task = load_recipe(RECIPES / name).task
    rows = folder / "rows.jsonl"
    rows.write_text(f"{json.dumps(ROWS[task])}\n" * 4)
    changes = {f"trainer.{key}": value for key, value in SMALL.items()}
    changes |= {"model": policy, "data.source": rows, "runs_dir": folder / "runs"}
    recipe = load_recipe(RECIPES / name)
    if "generation_batch_size" in recipe.trainer:
        changes["trainer.generation_batch_size"] = 4
    return load_recipe(RECIPES / name, [f"{key}={value}" for key, value in changes.items()])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_a_recipe_is_short_and_comes_with_a_readme(folder):
    assert len((folder / "recipe.yaml").read_text().splitlines()) <= 40
    assert folder.name.startswith(load_recipe(folder).task)
    text = (folder / "README.md").read_text()
    for part in (f"gdpo train recipes/{folder.name}", "Needs", "Takes", "Expect", "Where the num"):
        assert part in text
    assert f"]({folder.name})" in (RECIPES / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "rows", "rollouts", "per_step", "steps"),
    [
        ("gsm8k", 7473, 512, 512, 233),
        ("tool_calling", 3920, 2048, 512, 420),
        ("tool_calling_3b", 3920, 2048, 512, 420),
        # A process of eight.
        ("math_length_1.5b", 40_000, 8192, 1024 // 8, 4000),
        ("math_length_4b", 40_000, 8192, 1024 // 8, 4000),
        ("math_length_7b", 40_000, 8192, 1024 // 8, 4000),
        ("coding_7b", 24_000, 8192, 1024 // 8, 3200),
        ("coding_7b_two", 24_000, 8192, 1024 // 8, 3200),
    ],
)
def test_the_batches_are_the_published_ones(name, rows, rollouts, per_step, steps):
    with quiet():
        config = build_config(resolve(load_recipe(RECIPES / name, ["trainer.use_vllm=false"])))
    plan = plan_batches(config, rows)
    assert (plan.rollouts, plan.rollouts_per_step, plan.total_steps) == (rollouts, per_step, steps)


@pytest.mark.parametrize("name", [folder.name for folder in FOLDERS])
def test_a_recipe_is_checked_and_trains(name, tiny_policy, tmp_path):
    recipe = small(name, tiny_policy, tmp_path)
    wrong = [f.text for f in check(recipe) if f.verdict is Verdict.WRONG]
    assert all("the model sees" in text for text in wrong), wrong  # the tiny model's context
    result = train(recipe)
    assert result.finished
    assert [reward.name for reward in result.rewards] == [
        {"token_limit": "length"}.get(reward.name, reward.name) for reward in recipe.rewards
    ]
    records = [r for file in result.run.rollouts.glob("*.parquet") for r in read_rollouts(file)]
    assert sum(record.trained for record in records) == 2 * 4


@pytest.mark.parametrize("name", ["fsdp", "deepspeed_zero3"])
def test_a_configuration_of_accelerate_is_one(name):
    config = load_config_from_file(str(RECIPES / "launch" / f"{name}.yaml"))
    assert config.num_processes == 8


@pytest.mark.skipif("GDPO_DATA" not in os.environ, reason="GDPO_DATA names no folder of real data")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("gsm8k", "gsm8k/train.jsonl.gz"),
        ("tool_calling", "tools/rlla_sft.json.gz"),
        ("math_length_7b", "math/math500.jsonl"),
    ],
)
def test_every_gold_answer_gets_the_maximum(name, file, tiny_policy):
    source = Path(os.environ["GDPO_DATA"]) / file
    changes = [f"data.source={source}", f"model={tiny_policy}", "trainer.use_vllm=false"]
    changes += ["trainer.generation_batch_size=512"]
    wrong = [
        f.text for f in check(load_recipe(RECIPES / name, changes)) if f.verdict is Verdict.WRONG
    ]
    assert all("the model sees" in text for text in wrong), wrong  # the tiny model's context


def test_recipes_are_found_by_name_and_copied(tmp_path):
    assert set(shipped_recipes()) == {folder.name for folder in FOLDERS}
    copied = copy_recipe("gsm8k", tmp_path / "mine")
    copy, original = load_recipe(copied), load_recipe(RECIPES / "gsm8k")
    assert copy.digest == original.digest
    assert (copied / "README.md").is_file()
    assert (copied / "launch" / "fsdp.yaml").is_file()
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        copy_recipe("gsm8k", copied)
    with pytest.raises(ConfigError, match="did you mean 'gsm8k'"):
        shipped_recipe("gsm8")
