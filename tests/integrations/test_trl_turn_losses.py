"""Computes by how much the divisors of TRL's loss types turn the mean gradient of turn_gdpo."""

import numpy as np
import pytest
from benchmarks.credit._agents import list_groups
from tests.advantages.test_turns import AGENTS, listed, true_gradient

from gdpo.advantages import TURN_ESTIMATORS

TOKENS = np.array([1, 2, 4, 1])
"""Number of tokens of each turn."""
SIZE = 4


def degrees_off(divisor, go, paid):
    """Return the angle between the mean gradient over all groups and the true gradient."""
    rollouts, r = listed(go, paid)
    groups, weight = list_groups(rollouts, SIZE)
    turns = rollouts.turns[groups]
    a = TURN_ESTIMATORS["turn_gdpo"](r[groups][..., None], [1], turns=turns, scales=[1])
    rows = weight[:, None] / divisor(np.cumsum(TOKENS)[turns - 1])
    got = np.einsum("gs,gst,gst->t", rows, a, rollouts.score[groups][..., 0, 1])
    _, through_rewards, through_reaching = true_gradient(go, paid)
    wanted = through_rewards + through_reaching
    cosine = got @ wanted / np.linalg.norm(got) / np.linalg.norm(wanted)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


@pytest.mark.parametrize(("go", "paid"), AGENTS[1:])
def test_only_a_constant_divisor_gives_the_true_gradient_and_tokens_of_rollouts_are_far_off(
    go, paid
):
    """The divisors are those of dr_grpo, of dapo with one prompt, and of grpo."""
    assert degrees_off(np.ones_like, go, paid) < 1e-5
    assert 1 < degrees_off(lambda tokens: tokens.sum(1, keepdims=True), go, paid) < 7
    assert 13 < degrees_off(lambda tokens: tokens, go, paid) < 25
