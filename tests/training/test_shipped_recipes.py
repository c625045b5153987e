"""The recipes that come with gdpo: short, valid, with the published batches, and they train."""

from functools import partial

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from tests.environments import ROOT
from tests.refusals import config_error
from tests.training.conftest import wrong_in
from tests.training.test_priority_checks import write_rows

from gdpo.lab.launch.launch import plan_verl
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.batches import plan_batches, split_batch
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.recipes.starter import copy_recipe, shipped_recipe, shipped_recipes
from gdpo.lab.recipes.trainer_fields import build_config
from gdpo.lab.training import train
from gdpo.lab.training.preflight import quiet
from gdpo.rollouts import read_rollouts

RECIPES = ROOT / "recipes"
FOLDERS = sorted(file.parent for file in RECIPES.glob("*/recipe.yaml"))

SMALL = {
    "max_completion_length": 8,
    "max_steps": 2,
    "use_vllm": "false",
    "gradient_checkpointing": "false",
}


def small(name, policy, folder):
    """The recipe on four rows with a tiny model, two steps."""
    rows = write_rows(folder / "rows.jsonl", load_recipe(RECIPES / name).task, [1] * 4)
    changes = {f"trainer.{key}": value for key, value in SMALL.items()}
    changes |= {"model": policy, "data.source": rows, "runs_dir": folder / "runs"}
    changes |= {"batch.prompts": 1, "batch.samples": 4, "batch.rollouts_per_step": 4}
    return load_recipe(RECIPES / name, [f"{key}={value}" for key, value in changes.items()])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_a_recipe_is_short_and_comes_with_a_readme(folder):
    assert len((folder / "recipe.yaml").read_text().splitlines()) <= 40
    assert folder.name.startswith(load_recipe(folder).task)
    text = (folder / "README.md").read_text()
    for part in (f"gdpo train recipes/{folder.name}", "Needs", "Takes", "Expect", "## Differences"):
        assert part in text
    assert f"]({folder.name})" in (RECIPES / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "rows", "rollouts", "per_step", "steps"),
    [
        ("gsm8k", 7473, 512, 512, 233),
        ("tool_calling", 3920, 2048, 512, 420),
        ("tool_calling_3b", 3920, 2048, 512, 420),
        ("math_length_1.5b", 40_000, 8192, 1024, 4000),
        ("math_length_4b", 40_000, 8192, 1024, 4000),
        ("math_length_7b", 40_000, 8192, 1024, 4000),
        ("coding_7b", 24_000, 8192, 1024, 3200),
        ("coding_7b_two", 24_000, 8192, 1024, 3200),
    ],
)
def test_the_batches_are_the_published_ones_on_any_number_of_gpus(
    name, rows, rollouts, per_step, steps
):
    recipe = load_recipe(RECIPES / name, ["trainer.use_vllm=false"])
    with quiet():
        config = build_config(resolve(recipe))
    plan = plan_batches(config, rows)
    assert (plan.rollouts, plan.rollouts_per_step, plan.total_steps) == (rollouts, per_step, steps)
    for gpus in (1, 2, 4, 8, 16):
        split = split_batch(recipe, gpus)
        assert split.micro_batch * split.per_step * gpus == per_step
        assert split.micro_batch * split.per_generation * gpus == rollouts
        assert split.micro_batch <= recipe.batch.micro_batch
        launched = plan_verl(recipe, Machines(1, gpus))
        config = launched.config
        assert config["data"]["train_batch_size"] * recipe.batch.samples == rollouts
        mini_batch = config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
        assert mini_batch * recipe.batch.samples == per_step
        of_epoch = rows // config["data"]["train_batch_size"] * launched.batches.updates
        length = config["trainer"]
        generations = length.get("total_training_steps")
        updates = (generations or 0) * launched.batches.updates
        assert (updates or length["total_epochs"] * of_epoch) == steps
    for refused in (partial(split_batch, recipe, 6), partial(plan_verl, recipe, Machines(1, 6))):
        with config_error(r"6 processes .*: 1, 2, 4, 8, 16, 32"):
            refused()


@pytest.mark.slow
@pytest.mark.parametrize("name", [folder.name for folder in FOLDERS])
def test_a_recipe_is_checked_and_trains(name, tiny_policy, tmp_path):
    recipe = small(name, tiny_policy, tmp_path)
    wrong = wrong_in(recipe)
    assert all("the model's context" in text for text in wrong), wrong  # the tiny model's context
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


def test_recipes_are_found_by_name_and_copied(tmp_path):
    assert set(shipped_recipes()) == {folder.name for folder in FOLDERS}
    copied = copy_recipe("gsm8k", tmp_path / "mine")
    copy, original = load_recipe(copied), load_recipe(RECIPES / "gsm8k")
    assert copy.digest == original.digest
    assert (copied / "README.md").is_file()
    assert (copied / "launch" / "fsdp.yaml").is_file()
    with config_error("nothing is overwritten"):
        copy_recipe("gsm8k", copied)
    with config_error("did you mean 'gsm8k'"):
        shipped_recipe("gsm8")
