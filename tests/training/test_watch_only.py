"""Tests `watch: true` of a reward in a recipe, which is weight 0."""

import numpy as np
import pytest
from tests.refusals import config_error

from gdpo import gdpo
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.directory import read_run
from gdpo.lab.training import train
from gdpo.rollouts import read_rollouts, reward_arrays


@pytest.fixture
def load(recipe_file, own_rewards, saved):
    """Loads the recipe with these fields of the reward `brief`."""

    def read(fields, **more):
        text = recipe_file.read_text().replace("    weight: 0.5\n", f"    {fields}\n")
        path = saved("changed.yaml", text)
        return load_recipe(path, [f"{key}={value}" for key, value in more.items()])

    return read


@pytest.mark.parametrize("fields", ["watch: true", "watch: true\n    weight: 0"])
def test_a_watched_reward_is_one_with_weight_0(load, fields, saved):
    watched, zero = resolve(load(fields)), resolve(load("weight: 0"))
    assert watched.weights == (1.0, 0.0, 1.0)
    assert watched.rule.weights_in_force(watched.weights) == [1.0, 0.0, 1.0]
    assert watched.recipe.digest == zero.recipe.digest
    again = load_recipe(saved("again.yaml", watched.recipe.to_yaml()))
    assert again.digest == watched.recipe.digest


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("watch: true\n    weight: 0.5", "watch: true .* weight is 0.5"),
        ("watch: true\n    weight: {from: 1.0, to: 0.0, steps: 3}", "watch: true .* 'steps': 3"),
        ("watch: false", "watch must be true, got False"),
        ("wacth: true", r"did you mean 'watch'\? Allowed: .*watch, weight"),
    ],
)
def test_watch_with_a_weight_is_refused_with_its_line(load, fields, told):
    with config_error(rf"changed.yaml:\d+: .*{told}"):
        load(fields)


def test_set_watches_a_reward_that_has_no_weight_in_the_file(load):
    recipe = load("weight: 0.5", **{"rewards.format.watch": "true"})
    assert resolve(recipe).weights == (1.0, 0.5, 0.0)
    with config_error(r"weight is 0.5"):
        load("weight: 0.5", **{"rewards.brief.watch": "true"})


@pytest.mark.slow
def test_a_watched_reward_is_scored_and_recorded_but_not_trained(load):
    run = train(load("watch: true", **{"trainer.max_steps": 2})).run
    files = sorted(run.rollouts.glob("*.parquet"))
    assert len(files) == 2
    for file in files:
        rollouts = read_rollouts(file)
        assert {rollout.weights["brief"] for rollout in rollouts} == {0.0}
        arrays = reward_arrays(rollouts)
        brief = list(arrays.names).index("brief")
        assert np.all(np.isfinite(arrays.rewards[..., brief]))
        others = np.delete(arrays.rewards, brief, axis=-1)
        np.testing.assert_allclose(arrays.advantages, gdpo(others, np.ones(2)), atol=1e-5)
    assert all("rewards/brief/mean" in row for row in read_run(run).steps)
