"""Tests `watch` on TRL's trainer with a model that reads images."""

import pytest
import torch
from tests.integrations.images import trained
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl import watch
from gdpo.rollouts import read_rollouts, rollout_file

pytestmark = pytest.mark.slow


def test_a_watched_training_on_images_is_the_same_bit_for_bit(tiny_policy, tmp_path):
    folder = tmp_path / "rollouts"
    _, alone = trained(GRPOTrainer, GRPOConfig, tiny_policy, tmp_path)
    trainer, watched = trained(
        GRPOTrainer,
        GRPOConfig,
        tiny_policy,
        tmp_path,
        before=lambda trainer: watch(trainer, rollouts_dir=folder, estimators=["gdpo"]),
    )
    assert len(alone.all) == 3
    assert all(gradient.norm() > 0 for gradient in alone.of_images)
    for mine, theirs in zip(watched.all, alone.all, strict=True):
        assert torch.equal(mine, theirs)
    logged = trainer.state.log_history[0]
    for name in ("upper", "even"):
        assert f"rewards/{name}/influence_share" in logged
    assert "estimators/gdpo/sign_flips" in logged
    assert len(read_rollouts(rollout_file(folder, 1))) == 8
