"""Compares our advantages with TRL's on the same rollouts, and both with the formula."""

import numpy as np
import pytest
from tests.integrations.two_ranks import launched
from tests.integrations.variants import SAMPLES, WEIGHTS, make, scored_again, train
from tests.oracles import estimators as by_hand

from gdpo.rollouts import read_rollouts

TRL_EPSILON = 1e-4


def rewards_of(batch):
    rows = [[np.nan if v is None else v for v in row] for row in batch["rewards"]]
    return np.array(rows, dtype=float).reshape(-1, SAMPLES, len(WEIGHTS))


def gap(batch, formula, epsilon=None):
    rewards = rewards_of(batch).tolist()
    expected = formula(rewards, WEIGHTS, *([] if epsilon is None else [epsilon]))
    return np.abs(np.ravel(expected) - np.array(batch["advantages"])).max()


@pytest.mark.parametrize(
    ("ours", "theirs", "formula"),
    [("ours", "theirs", by_hand.gdpo), ("ours_grpo", "theirs_grpo", by_hand.grpo)],
)
def test_the_difference_to_trl_is_its_epsilon(ours, theirs, formula, tiny_policy, tmp_path):
    our_batches = train(ours, tiny_policy, tmp_path / "ours")
    their_batches = train(theirs, tiny_policy, tmp_path / "theirs")
    assert len(our_batches) == len(their_batches) == 3
    for our, their in zip(our_batches, their_batches, strict=True):
        np.testing.assert_array_equal(rewards_of(our), rewards_of(their))
        assert gap(our, formula) < 1e-6
        assert gap(their, formula, TRL_EPSILON) < 1e-6
        assert gap(their, formula) > 1e-6  # so the line above could have failed


def test_without_std_there_is_no_difference_to_trl(tiny_policy, tmp_path):
    ours = train("ours_grpo_no_std", tiny_policy, tmp_path / "ours", max_steps=1)
    theirs = train("theirs_grpo_no_std", tiny_policy, tmp_path / "theirs", max_steps=1)
    assert len(ours) == 1
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our["advantages"], their["advantages"], atol=1e-5)
        assert np.ptp(our["advantages"]) > 1


def test_with_the_batchs_std_the_difference_to_trl_is_its_epsilon(tiny_policy, tmp_path):
    ours = train("ours_grpo_batch_std", tiny_policy, tmp_path / "ours", max_steps=1)
    theirs = train("theirs_grpo_batch_std", tiny_policy, tmp_path / "theirs", max_steps=1)
    assert len(ours) == 1
    for our, their in zip(ours, theirs, strict=True):
        assert gap(our, by_hand.grpo_batch_std) < 1e-6
        std = (rewards_of(our) @ WEIGHTS).std(ddof=1)
        with_epsilon = np.array(our["advantages"]) * std / (std + TRL_EPSILON)
        np.testing.assert_allclose(with_epsilon, their["advantages"], atol=1e-6)
        assert np.ptp(our["advantages"]) > 1


def advantages_of_a_rank(policy, folder):
    """Train with 6 rollouts on each rank, and return what was recorded."""
    half = {"per_device_train_batch_size": 6}
    rollouts = str(folder / "ours" / "rollouts")
    return {
        "ours": train("ours", policy, folder / "ours", rollouts_dir=rollouts, **half),
        "theirs": train("theirs", policy, folder / "theirs", **half),
    }


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_processes_with_a_group_on_both_give_the_advantages_of_one(
    nodes, tiny_policy, tmp_path
):
    """Each rank holds 6 of 12 rollouts. A group has 4, so the second group spans both ranks."""
    function = "tests.integrations.test_trl_conformance:advantages_of_a_rank"
    ranks_of = launched(function, tiny_policy, tmp_path, nodes=nodes)
    for variant, formula, epsilon in (
        ("ours", by_hand.gdpo, 0.0),
        ("theirs", by_hand.gdpo, TRL_EPSILON),
    ):
        ranks = [rank[variant] for rank in ranks_of]
        assert len(ranks[0]) == 3
        for first, second in zip(*ranks, strict=True):
            assert len(first["advantages"]) == len(second["advantages"]) == 6
            np.testing.assert_array_equal(rewards_of(first), rewards_of(second))
            both = {**first, "advantages": first["advantages"] + second["advantages"]}
            assert gap(both, formula, epsilon) < 1e-6
    files = sorted((tmp_path / "ours" / "rollouts").glob("*.parquet"))
    assert len(files) == 3
    for rollout in (r for file in files for r in read_rollouts(file)):
        assert rollout.rewards == scored_again(rollout.completion)  # in float64, of both ranks


def test_evaluation_uses_its_own_number_of_samples(tiny_policy, tmp_path):
    trainer = make(
        "ours", tiny_policy, tmp_path, num_generations_eval=2, per_device_eval_batch_size=4
    )
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_rewards/digits/zero_variance_groups"] <= 1
    batch = trainer.record[0]
    assert not batch["training"]
    rewards = np.array(
        [[np.nan if v is None else v for v in row] for row in batch["rewards"]]
    ).reshape(2, 2, 3)
    expected = by_hand.gdpo(rewards.tolist(), WEIGHTS)
    np.testing.assert_allclose(batch["advantages"], np.ravel(expected), atol=1e-6)


def test_gradient_accumulation_normalizes_over_the_whole_generation_batch(tiny_policy, tmp_path):
    batches = train(
        "ours", tiny_policy, tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=3
    )
    assert [len(b["advantages"]) for b in batches] == [12, 12, 12]
    assert all(gap(b, by_hand.gdpo) < 1e-6 for b in batches)


def test_a_user_can_name_an_estimator_of_their_own(tiny_policy, tmp_path):
    own = "tests.integrations.test_trl_conformance:constant"
    (batch,) = train("ours", tiny_policy, tmp_path, advantage=own, max_steps=1)
    assert set(batch["advantages"]) == {0.25}


def constant(rewards, weights):
    return 0 * rewards.nan_to_num().sum(-1) + 0.25
