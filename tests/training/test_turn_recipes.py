"""Tests recipes with an estimator for turns. A completion of a recipe is one turn."""

import numpy as np
import pytest
from tests.refusals import config_error
from tests.training.conftest import wrong_in

from gdpo.advantages import TURN_ESTIMATORS
from gdpo.lab.launch.launch import plan_verl
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.data import read_data
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.training import priority_findings, train
from gdpo.lab.training.reward_checks import Level
from gdpo.rollouts import read_rollouts

OF_TURNS = (
    "from gdpo import Reward\n"
    "def of(messages, reference):\n"
    "    assert [m['role'] for m in messages] == ['assistant']\n"
    "    return min(1.0, messages[-1]['content'].count('a') / 4)\n"
    "letters = Reward('letters', of, low=0, high=1, of='turn')\n"
)


@pytest.fixture
def turn_recipe(load, own_rewards, tmp_path):
    (tmp_path / "own" / "own_turns.py").write_text(OF_TURNS)
    rewards = f"rewards=[{{name: 'own_turns:letters'}}, {{name: '{own_rewards}:vowels'}}]"
    return load(rewards, "advantage=turn_gdpo", "trainer.max_steps=2")


def test_a_recipe_resolves_to_an_estimator_for_turns_with_the_ranges_of_one_turn(turn_recipe):
    resolved = resolve(turn_recipe)
    assert resolved.rule.wants_turns
    assert resolved.described()["letters"] == {"low": 0.0, "high": 1.0}


def test_options_of_an_estimator_for_turns_are_checked(load):
    changes = ["advantage=turn_gdpo", "advantage_options={scales: [1]}"]
    with config_error("scales has the shape"):
        load(*changes)


def test_verl_refuses_an_estimator_for_turns(load):
    changes = ["advantage=turn_gdpo", "data.max_prompt_length=99"]
    recipe = load(*changes, "trainer.lr_scheduler_type=constant")
    with config_error(r"advantage = turn_gdpo.*gdpo train"):
        plan_verl(recipe, Machines(1, 1))


def test_priority_is_not_decided_for_an_estimator_for_turns(turn_recipe):
    resolved = resolve(turn_recipe)
    problems = read_data(resolved.task, resolved.recipe.data).problems
    (found,) = priority_findings(resolved, problems)
    assert found.level is Level.NOTE


def test_a_loss_with_one_ratio_per_rollout_is_found_by_the_check(turn_recipe):
    trainer = {**turn_recipe.trainer, "importance_sampling_level": "sequence"}
    wrong = wrong_in(turn_recipe.model_copy(update={"trainer": trainer}))
    assert any("importance_sampling_level='token'" in text for text in wrong)


@pytest.mark.slow
def test_a_recipe_is_checked_and_trains(turn_recipe):
    assert not wrong_in(turn_recipe)
    run = train(turn_recipe).run
    rollouts = read_rollouts(run.rollouts / "step_000002.parquet")
    rewards = np.array([list(rollout.rewards.values()) for rollout in rollouts])
    assert rewards[:, 0].any()
    turns = np.ones((2, 4))
    advantages = TURN_ESTIMATORS["turn_gdpo"](rewards.reshape(2, 4, 1, 2), [1.0, 1.0], turns=turns)
    shown = [rollout.advantage for rollout in rollouts]
    np.testing.assert_allclose(shown, advantages.reshape(-1), atol=1e-5)
    assert {len(rollout.turns) for rollout in rollouts} == {1}
