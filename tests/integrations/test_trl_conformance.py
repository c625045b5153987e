"""Compares our advantages with TRL's on the same rollouts, and both with the formula."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.integrations.two_ranks import launched
from tests.integrations.variants import SAMPLES, WEIGHTS, make, scored_again, trained, trainer_of
from tests.oracles import estimators as by_hand
from trl import GRPOConfig, GRPOTrainer

from gdpo.integrations.trl._probe import rule_of
from gdpo.rollouts import read_rollouts

TRL_EPSILON = 1e-4


def rewards_of(batch, samples=SAMPLES):
    rows = [[np.nan if v is None else v for v in row] for row in batch["rewards"]]
    return np.array(rows, dtype=float).reshape(-1, samples, len(WEIGHTS))


def gap(batch, formula, epsilon=None):
    rewards = rewards_of(batch).tolist()
    expected = formula(rewards, WEIGHTS, *([] if epsilon is None else [epsilon]))
    return np.abs(np.ravel(expected) - np.array(batch["advantages"])).max()


def batches_of(rule, policy, folder, **changed):
    """Return pairs of batches: ours, and TRL's."""
    records = [
        trained(f"{name}{rule}", policy, folder / name, **changed).record
        for name in ("ours", "theirs")
    ]
    return list(zip(*records, strict=True))


@pytest.mark.parametrize(("rule", "formula"), [("", by_hand.gdpo), ("_grpo", by_hand.grpo)])
def test_the_difference_to_trl_is_its_epsilon(rule, formula, place):
    batches = batches_of(rule, *place)
    assert len(batches) == 3
    for our, their in batches:
        assert_array_equal(rewards_of(our), rewards_of(their))
        assert gap(our, formula) < 1e-6
        assert gap(their, formula, TRL_EPSILON) < 1e-6
        assert gap(their, formula) > 1e-6  # so the line above could have failed


def test_without_std_there_is_no_difference_to_trl(place):
    ((our, their),) = batches_of("_grpo_no_std", *place, max_steps=1)
    assert_allclose(our["advantages"], their["advantages"], atol=1e-5)
    assert np.ptp(our["advantages"]) > 1


def test_with_the_batchs_std_the_difference_to_trl_is_its_epsilon(place):
    ((our, their),) = batches_of("_grpo_batch_std", *place, max_steps=1)
    assert gap(our, by_hand.grpo_batch_std) < 1e-6
    std = (rewards_of(our) @ WEIGHTS).std(ddof=1)
    with_epsilon = np.array(our["advantages"]) * std / (std + TRL_EPSILON)
    assert_allclose(with_epsilon, their["advantages"], atol=1e-6)
    assert np.ptp(our["advantages"]) > 1


def advantages_of_a_rank(policy, folder):
    """Train with 6 rollouts on each rank, and return what was recorded."""
    half = {"per_device_train_batch_size": 6}
    rollouts = str(folder / "ours" / "rollouts")
    ours = trained("ours", policy, folder / "ours", rollouts_dir=rollouts, **half)
    plain = trainer_of(GRPOTrainer, GRPOConfig, policy, folder, **half)
    return {
        "ours": ours.record,
        "checked": ours._between.is_checked,
        "theirs": trained("theirs", policy, folder / "theirs", **half).record,
        "rule": rule_of(plain),
    }


@pytest.mark.slow
def test_two_processes_with_a_group_on_both_give_the_advantages_of_one(place, tmp_path):
    """Each rank holds 6 of 12 rollouts. A group has 4, so the second group spans both ranks.

    Each rank is a node of its own, and takes part in the check of TRL with a made-up batch.
    """
    function = "tests.integrations.test_trl_conformance:advantages_of_a_rank"
    ranks_of = launched(function, *place, nodes=2)
    assert [(rank["rule"], rank["checked"]) for rank in ranks_of] == [("grpo", True)] * 2
    for variant, epsilon in (("ours", 0.0), ("theirs", TRL_EPSILON)):
        first, second = (rank[variant] for rank in ranks_of)
        assert len(first) == 3
        for one, other in zip(first, second, strict=True):
            assert len(one["advantages"]) == len(other["advantages"]) == 6
            assert_array_equal(rewards_of(one), rewards_of(other))
            both = {**one, "advantages": one["advantages"] + other["advantages"]}
            assert gap(both, by_hand.gdpo, epsilon) < 1e-6
    files = sorted((tmp_path / "ours" / "rollouts").glob("*.parquet"))
    assert len(files) == 3
    for rollout in (r for file in files for r in read_rollouts(file)):
        assert rollout.rewards == scored_again(rollout.completion)  # in float64, of both ranks


def test_evaluation_uses_its_own_number_of_samples(place):
    trainer = make("ours", *place, num_generations_eval=2, per_device_eval_batch_size=4)
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_rewards/digits/zero_variance_groups"] <= 1
    batch = trainer.record[0]
    assert not batch["training"]
    expected = by_hand.gdpo(rewards_of(batch, samples=2).tolist(), WEIGHTS)
    assert_allclose(batch["advantages"], np.ravel(expected), atol=1e-6)


def test_gradient_accumulation_normalizes_over_the_whole_generation_batch(place):
    smaller = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}
    batches = trained("ours", *place, **smaller).record
    assert [len(b["advantages"]) for b in batches] == [12, 12, 12]
    assert all(gap(b, by_hand.gdpo) < 1e-6 for b in batches)


def test_a_user_can_name_an_estimator_of_their_own(place):
    own = "tests.integrations.test_trl_conformance:constant"
    (batch,) = trained("ours", *place, advantage=own, max_steps=1).record
    assert set(batch["advantages"]) == {0.25}


def constant(rewards, weights):
    return 0 * rewards.nan_to_num().sum(-1) + 0.25
