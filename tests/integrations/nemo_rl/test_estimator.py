"""Tests the estimator with batches as NeMo-RL's trainers pass them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tests.examples.adapters.stand_ins import WEIGHTS, by_formula, grid
from tests.integrations.nemo_rl.recorded import adv_estimator
from tests.integrations.test_rows import SIZES
from tests.refusals import config_error

from gdpo import gdpo
from gdpo.integrations.nemo_rl import AdvantageEstimator

ROWS, TOKENS = sum(SIZES), 5


def estimator(**more):
    return AdvantageEstimator(adv_estimator(gdpo_reward_weights=WEIGHTS, **more))


def scored():
    return np.random.default_rng(0).integers(0, 4, (ROWS, 2)).astype(float)


def prompts():
    """Return prompts of 2 to 5 tokens that differ in one token, padded with 0."""
    ids = torch.zeros(len(SIZES), 6, dtype=torch.long)
    for prompt in range(len(SIZES)):
        ids[prompt, : 2 + prompt] = 7
    return ids.repeat_interleave(torch.tensor(SIZES), dim=0)


def computed(values, *, asked=None, masked=(), prompt_ids=None, **more):
    mask = torch.ones(len(values), TOKENS)
    mask[:, 0] = 0
    mask[list(masked)] = 0
    columns = torch.tensor(values, dtype=torch.float32)
    advantages = (asked or estimator()).compute_advantage(
        prompt_ids=prompts() if prompt_ids is None else prompt_ids,
        rewards=columns.sum(-1),
        mask=mask,
        repeated_batch={
            "total_reward": columns.sum(-1),
            "reward/format": columns[:, 1],
            "reward/correct": columns[:, 0],
        },
        logprobs_policy=None,
        logprobs_reference=None,
        **more,
    )
    assert advantages.shape == mask.shape
    assert advantages.dtype == torch.float32
    assert (advantages == advantages[:, :1]).all()
    return advantages[:, 0].numpy()


def test_rows_of_ragged_groups_get_the_advantages_of_the_formula():
    assert_allclose(computed(scored()), by_formula(scored(), SIZES), rtol=0, atol=1e-6)


def test_another_estimator_is_called_with_the_same_rewards():
    from gdpo.advantages import per_reward_batch_std

    asked = estimator(name="gdpo/per_reward_batch_std")
    wanted = by_formula(scored(), SIZES, formula=per_reward_batch_std)
    assert_allclose(computed(scored(), asked=asked), wanted, rtol=0, atol=1e-6)
    assert np.abs(wanted - by_formula(scored(), SIZES)).max() > 0.01


def test_a_rollout_that_is_not_trained_counts_nowhere_and_gets_0():
    values = scored()
    values[1] = 100.0
    advantages = computed(values, masked=[1])
    wanted = by_formula(np.delete(values, 1, axis=0), sizes=[2, 1, 4, 2])
    assert_allclose(np.delete(advantages, 1), wanted, rtol=0, atol=1e-6)
    assert advantages[1] == 0


def test_prompts_truncated_to_the_same_tokens_are_not_a_group():
    values, cut = scored(), prompts()
    cut[:4] = 7
    assert_allclose(
        computed(values, prompt_ids=cut, masked=range(4)),
        [0] * 4 + list(by_formula(values[4:], sizes=SIZES[2:])),
        rtol=0,
        atol=1e-6,
    )


def test_a_batch_of_which_nothing_is_trained_gives_0_and_no_numbers():
    asked = estimator()
    computed(scored(), asked=asked)
    assert not computed(scored(), asked=asked, masked=range(ROWS)).any()
    assert asked.last_metrics == {}


def test_tokens_that_are_trained_are_counted_where_asked_to():
    lengths = torch.tensor([1, 5, 2, 3, 4, 1, 1, 5, 2, 3])
    asked = estimator(gdpo_options={"token_counts": True})
    counts = grid(lengths.numpy(), SIZES, fill=0)
    columns = torch.tensor(scored())
    advantages = asked.compute_advantage(
        prompts(),
        columns.sum(-1),
        (torch.arange(TOKENS) < lengths[:, None]).float(),
        {"reward/correct": columns[:, 0], "reward/format": columns[:, 1]},
    )
    wanted = gdpo(grid(scored(), SIZES), WEIGHTS, token_counts=counts)[counts > 0]
    assert_allclose(advantages[:, 0], wanted, atol=1e-12)


def test_a_reward_that_the_batch_lacks_is_an_error_that_says_which_there_are():
    asked = estimator(gdpo_reward_keys=["correct", "formatting"])
    with config_error(r"'formatting'.*did you mean 'format'") as raised:
        computed(scored(), asked=asked)
    assert "total_reward" not in str(raised.value)


def test_numbers_of_a_batch_stay_until_the_next_one():
    asked = estimator()
    assert asked.last_metrics == {}
    computed(scored(), asked=asked)
    metrics = asked.last_metrics
    assert metrics["gdpo/correct/mean"] == pytest.approx(scored()[:, 0].mean())
    assert asked.last_metrics is metrics
    computed(scored() + 1, asked=asked)
    assert asked.last_metrics["gdpo/correct/mean"] == pytest.approx(scored()[:, 0].mean() + 1)


def test_a_finding_that_lasts_is_logged_once(caplog):
    asked = estimator()
    silent = np.ones((24, 2))
    for _ in range(13):
        computed(silent, asked=asked, prompt_ids=torch.arange(24)[:, None] // 2)
        first, again = asked.last_metrics, asked.last_metrics  # reading logs nothing
        assert first["gdpo/format/zero_variance_groups"] == 1
        assert again == first
    assert caplog.messages
    assert len(caplog.messages) == len(set(caplog.messages))
