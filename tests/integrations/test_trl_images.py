"""Tests models with image inputs: our trainer and TRL's train a tiny LLaVA."""

import pytest
import torch
from tests.integrations.images import trained
from tests.integrations.variants import rollouts_of
from tests.refusals import config_error
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer, watch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def theirs(tiny_policy, tmp_path_factory):
    """Return the gradients of TRL's trainer."""
    folder = tmp_path_factory.mktemp("theirs")
    _, gradients = trained(GRPOTrainer, GRPOConfig, tiny_policy, folder)
    assert len(gradients.all) == 3
    assert all(gradient.norm() > 0 for gradient in gradients.of_images)
    return gradients


@pytest.mark.parametrize(
    ("advantage", "tolerance"),
    [("grpo", 1e-3), ("tests.integrations.test_trl_environments:trl_formula", 1e-6)],
)
def test_gradients_on_images_are_trls(advantage, tolerance, theirs, place, caplog):
    _, ours = trained(GDPOTrainer, GDPOConfig, *place, advantage=advantage)
    differences = [
        float((a - b).norm() / b.norm()) for a, b in zip(ours.all, theirs.all, strict=True)
    ]
    assert max(differences) < tolerance
    assert "pack_micro_batches: micro-batches remain TRL's, because the model is multimodal" in (
        caplog.text
    )
    assert "prompts may contain images" in caplog.text
    assert "the batch is multimodal" in caplog.text


def test_gdpo_trains_on_images_and_records_each_reward(place, tmp_path):
    folder = tmp_path / "rollouts"
    trainer, gradients = trained(GDPOTrainer, GDPOConfig, *place, rollouts_dir=str(folder))
    assert all(gradient.norm() > 0 for gradient in gradients.of_images)
    for name in ("upper", "even"):
        assert f"rewards/{name}/zero_variance_groups" in trainer.state.log_history[0]
    rollout = rollouts_of(tmp_path)[0]
    (asked,) = rollout.prompt
    image, question = asked["content"]
    assert image == {"type": "image"}
    assert question["text"].startswith("colour")
    assert set(rollout.rewards) == {"upper", "even"}
    assert "image" not in rollout.extra


def test_an_account_reads_no_images(place, caplog):
    trained(GDPOTrainer, GDPOConfig, *place, effect_every=10, optim="adamw_torch")
    assert "effect_every is switched off" in caplog.text
    assert "the account reads no images" in caplog.text


def test_filter_groups_is_refused_with_the_reason(place):
    with config_error("rows per image, not per rollout"):
        trained(GDPOTrainer, GDPOConfig, *place, filter_groups="any_reward_varies")


def test_a_watched_training_on_images_is_the_same_bit_for_bit(theirs, place, tmp_path):
    folder = tmp_path / "rollouts"
    trainer, watched = trained(
        GRPOTrainer,
        GRPOConfig,
        *place,
        before=lambda trainer: watch(trainer, rollouts_dir=folder, estimators=["gdpo"]),
    )
    for mine, alone in zip(watched.all, theirs.all, strict=True):
        assert torch.equal(mine, alone)
    logged = trainer.state.log_history[0]
    for name in ("upper", "even"):
        assert f"rewards/{name}/influence_share" in logged
    assert "estimators/gdpo/sign_flips" in logged
    assert len(rollouts_of(tmp_path)) == 8
