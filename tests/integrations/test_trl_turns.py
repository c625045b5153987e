"""Tests rewards and advantages per turn in `GDPOTrainer`."""

import logging

import numpy as np
import pytest
import torch
from tests.integrations.test_trl_two_turns import (  # noqa: F401  (fixtures)
    tokenizer,
    warm_start,
)
from tests.integrations.turns import at_random, trainer_of
from tests.integrations.variants import settings

from gdpo import ConfigError, RewardError
from gdpo.advantages import TURN_ESTIMATORS
from gdpo.integrations.trl import GDPOConfig
from gdpo.integrations.trl._turns import on_tokens, spans_of, total_of, turn_of_tokens
from gdpo.rollouts import read_rollouts, rollout_file

pytestmark = pytest.mark.usefixtures("_quiet")

turn_gdpo = TURN_ESTIMATORS["turn_gdpo"]

MASKS = [[0, 1, 1, 0, 0, 1], [1, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]


@pytest.fixture
def _quiet(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def test_a_turn_is_a_run_of_tokens_that_the_model_generated():
    mask = torch.tensor(MASKS)
    wanted = [[-1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 1, 1], [-1] * 6, [0] * 6]
    assert turn_of_tokens(mask).tolist() == wanted
    assert [[list(span) for span in spans_of(mask)] for mask in MASKS] == [
        [[1, 2], [5]],
        [[0], [2, 3, 4]],
        [],
        [[0, 1, 2, 3, 4, 5]],
    ]


def test_tokens_get_the_advantage_of_their_turn_and_others_get_0():
    advantages = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    assert on_tokens(advantages, torch.tensor(MASKS)).tolist() == [
        [0, 1, 1, 0, 0, 2],
        [3, 0, 4, 4, 4, 0],
        [0] * 6,
        [7] * 6,
    ]


def test_another_number_of_rewards_than_turns_names_the_reward_the_completion_and_both_counts():
    with pytest.raises(RewardError, match=r"'echo' returned 3 numbers .* completion 5.* 2 turns"):
        total_of("echo", [1, 2, 3], 5, 2)


@pytest.mark.parametrize(
    ("value", "total"), [([1, 2.5], 3.5), ((1, None), None), (np.array([1, 2]), 3.0), (4, 4)]
)
def test_the_total_of_turns_is_their_sum_or_missing(value, total):
    assert total_of("echo", value, 0, 2) == total


@pytest.mark.parametrize(("value", "named"), [("1", "'one'"), (float("inf"), "inf")])
def test_a_value_of_a_turn_that_is_no_finite_number_is_an_error(value, named):
    given = "one" if value == "1" else value
    with pytest.raises(RewardError, match=f"'echo' returned {named}.* turn 1 of completion 7"):
        total_of("echo", [1.0, given], 7, 2)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level='token'"),
        ({"loss_type": "vespo"}, "loss_type='dapo'"),
    ],
)
def test_a_loss_with_one_ratio_per_rollout_is_refused(changed, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        GDPOConfig(**settings(tmp_path, advantage="turn_gdpo", **changed))
    GDPOConfig(**settings(tmp_path, advantage="gdpo", **changed))


@pytest.mark.parametrize(
    ("loss_type", "warns"),
    [("grpo", True), ("sapo", True), ("bnpo", True), ("dapo", False), ("dr_grpo", False)],
)
def test_a_loss_that_divides_by_tokens_of_rollouts_is_named_in_the_log(
    loss_type, warns, tmp_path, caplog
):
    with caplog.at_level(logging.WARNING, "gdpo"):
        trainer_of(tmp_path, loss_type=loss_type)
    assert [f"loss_type='{loss_type}'" in line for line in caplog.messages] == [True] * warns


def rollouts_of(folder, step=1):
    return read_rollouts(rollout_file(folder / "rollouts", step))


def arrays_of(rollouts):
    """Return the recorded rewards of each turn, and the numbers of turns."""
    counts = np.array([len(rollout.turns) for rollout in rollouts])
    names = list(rollouts[0].rewards)
    rewards = np.zeros((len(rollouts), counts.max(), len(names)))
    for i, rollout in enumerate(rollouts):
        for t, turn in enumerate(rollout.turns):
            rewards[i, t] = [np.nan if turn.rewards[n] is None else turn.rewards[n] for n in names]
    samples = 1 + max(rollout.sample_id for rollout in rollouts)
    return rewards.reshape(-1, samples, *rewards.shape[1:]), counts.reshape(-1, samples)


def turn_of_record(rollouts, weights=(1.0, 1.0)):
    """Return turn_gdpo of the recorded rewards, `[rollout, turn]`."""
    rewards, counts = arrays_of(rollouts)
    return turn_gdpo(rewards, list(weights), turns=counts).reshape(len(rollouts), -1)


def on_tokens_of(plays, advantages):
    """Return advantages per token as a loop over the turns of the game."""
    width = max(len(play.ids) for play in plays)
    expected = np.zeros((len(plays), width))
    for row, play in enumerate(plays):
        for turn, places in enumerate(play.runs()):
            expected[row, places] = advantages[row, turn]
    return expected


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return a trainer after one step with turn_gdpo, and its folder."""
    folder = tmp_path_factory.mktemp("played")
    trainer = trainer_of(folder, how=at_random, gradient_accumulation_steps=2)
    trainer.train()
    return trainer, folder


def test_the_loss_gets_turn_gdpo_of_the_recorded_rewards_token_by_token(played):
    trainer, folder = played
    rollouts = rollouts_of(folder)
    assert {len(rollout.turns) for rollout in rollouts} == {1, 2, 3, 4}
    expected = on_tokens_of(trainer.rollout_func.played, turn_of_record(rollouts))
    np.testing.assert_allclose(trainer.kept["advantages"], expected, atol=1e-6)
    assert len(np.unique(expected.round(6))) > 20


def test_the_record_has_the_turns_their_tokens_and_their_advantages(played):
    trainer, folder = played
    rollouts = rollouts_of(folder)
    advantages = turn_of_record(rollouts)
    for rollout, play, own in zip(rollouts, trainer.rollout_func.played, advantages, strict=True):
        turns = rollout.turns
        assert [turn.rewards["echo"] for turn in turns] == play.earned
        assert rollout.rewards["echo"] == sum(play.earned)
        outcome = [0.0] * (len(turns) - 1) + [float(play.ids[-1] == 3)]
        assert [turn.rewards["dots"] for turn in turns] == outcome
        assert [turn.num_tokens for turn in turns] == [len(run) for run in play.runs()]
        assert [turn.advantage for turn in turns] == pytest.approx(own[: len(turns)], abs=1e-6)
        assert rollout.advantage == pytest.approx(own[: len(turns)].mean(), abs=1e-6)


def test_metrics_have_totals_and_numbers_of_turns(played):
    trainer, folder = played
    log, rollouts = trainer.state.log_history[0], rollouts_of(folder)
    total = sum(sum(r.rewards.values()) for r in rollouts) / len(rollouts)
    assert log["reward"] == pytest.approx(total)
    assert log["turns/mean"] == pytest.approx(np.mean([len(r.turns) for r in rollouts]))
    assert log["turns/max"] == 4
