"""Computes by how much the divisors of TRL's loss types turn the mean gradient of turn_gdpo."""

import numpy as np
import pytest
from benchmarks.credit._agents import TurnTask, exact_gradient, list_groups, list_rollouts

from gdpo.advantages import TURN_ESTIMATORS

TOKENS = np.array([1, 2, 4, 1])
"""Number of tokens of each turn."""
SIZE = 4
AGENTS = [
    (np.array([0.6, 0.5, 0.7, 0.4]), np.array([[0, 1], [1, 2], [0.5, 1], [3, 1]])),
    (np.array([0.3, 0.8, 0.5, 0.5]), np.array([[1, 0], [1, 0], [0, 0], [0, 1]])),
    (np.array([0.9, 0.9, 0.2, 0.5]), np.array([[0, -0.2], [0, -0.2], [0, -0.2], [1, 2]])),
]
"""For each turn, the probability of continuing, and what stopping and continuing there earn."""


def degrees_off(divisor, go, paid):
    """Return the angle between the mean gradient over all groups and the true gradient."""
    rollouts = list_rollouts(np.stack([1 - go, go], axis=1)[:, None])
    r = np.where(rollouts.actions >= 0, paid[np.arange(len(go)), rollouts.actions], 0)
    groups, weight = list_groups(rollouts, SIZE)
    turns = rollouts.turns[groups]
    a = TURN_ESTIMATORS["turn_gdpo"](r[groups][..., None], [1], turns=turns, scales=[1])
    rows = weight[:, None] / divisor(np.cumsum(TOKENS)[turns - 1])
    got = np.einsum("gs,gst,gst->t", rows, a, rollouts.score[groups][..., 0, 1])
    wanted = exact_gradient(rollouts, TurnTask("paid", r[..., None]))[:, 0, 1]
    cosine = got @ wanted / np.linalg.norm(got) / np.linalg.norm(wanted)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


@pytest.mark.parametrize(("go", "paid"), AGENTS)
def test_only_a_constant_divisor_gives_the_true_gradient_and_tokens_of_rollouts_are_far_off(
    go, paid
):
    """The divisors are those of dr_grpo, of dapo with one prompt, and of grpo."""
    assert degrees_off(np.ones_like, go, paid) < 1e-5
    assert 1 < degrees_off(lambda tokens: tokens.sum(1, keepdims=True), go, paid) < 7
    assert 13 < degrees_off(lambda tokens: tokens, go, paid) < 25
