"""The numbers of a diagnosis: against loops over groups, and what must not change them."""

import json
from functools import partial

import array_api_strict
import numpy as np
import pytest
import torch
from tests.checkout import python
from tests.pairs import every_pair
from tests.refusals import config_error, data_error

from gdpo.advantages import AdvantageRule, gdpo, grpo, grpo_no_std, mo_grpo, sa_mrpo
from gdpo.diagnostics import diagnose, group_std, zero_advantage_groups, zero_variance_groups

NAN = np.nan
NAMES = ["format", "correctness", "brevity"]
WEIGHTS = [1.0, 2.0, -0.5]
A, B = ["a"], ["a", "b"]


def some_rewards(seed=0, *, missing=0.1):
    """Three correlated rewards in different units, some dead groups and some missing values."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(12, 6))
    rewards = np.stack(
        [
            (rng.random(shared.shape) < 0.4).astype(float),
            np.round(3 * shared + rng.normal(size=shared.shape)),
            100 + shared,
        ],
        axis=-1,
    )
    rewards[0, :, 0] = 1.0
    rewards[1, :, :] = [0.0, 2.0, 100.0]
    rewards[rng.random(rewards.shape) < missing] = NAN
    return rewards


@pytest.fixture
def rewards():
    return some_rewards()


def diagnosed(rewards, **options):
    return diagnose(rewards, WEIGHTS, NAMES, **options)


def z_scores(rewards):
    """By loops: 0 in a group where nothing varies, NaN where a reward does not apply."""
    z = np.full(rewards.shape, NAN)
    for p, k in np.ndindex(rewards.shape[0], rewards.shape[2]):
        column = rewards[p, :, k]
        there = ~np.isnan(column)
        values = column[there]
        std = np.std(values, ddof=1) if len(values) > 1 else 0.0
        z[p, there, k] = (values - values.mean()) / std if std > 0 else 0.0
    return z


def full(diagnosis):
    return diagnosis.metrics(detail="full")


def test_recorded_advantages_of_rollouts_without_a_reward_are_not_measured():
    rewards = np.full((2, 3, 1), NAN)
    assert diagnose(rewards, [1], A, advantages=np.ones((2, 3))).signal_rms is None
    rewards[0] = [[0.0], [1.0], [2.0]]
    advantages = np.array([[-3.0, 0.0, 3.0], [50.0, 50.0, 50.0]])
    found = diagnose(rewards, [1], A, advantages=advantages)
    assert found.signal_rms == pytest.approx(6**0.5)
    assert found.largest == 3.0


def of_each(diagnosis, field):
    return [getattr(reward, field) for reward in diagnosis.rewards]


def close(got, wanted):
    np.testing.assert_allclose(np.array(got, float), np.array(wanted, float), rtol=1e-9, atol=1e-12)


def test_influence_is_the_covariance_of_the_advantage_with_the_z_score(rewards):
    a, z = gdpo(rewards, WEIGHTS), np.nan_to_num(z_scores(rewards))
    rollouts = np.sum(~np.all(np.isnan(rewards), axis=-1))
    wanted = np.array([sum(a.ravel() * z[:, :, k].ravel()) for k in range(3)]) / rollouts
    diagnosis = diagnosed(rewards)
    close(of_each(diagnosis, "influence"), wanted)
    signed = np.sign(WEIGHTS) * wanted
    close(of_each(diagnosis, "influence_share"), signed / np.sum(np.abs(wanted)))
    close(of_each(diagnosis, "weight_share"), [1 / 3.5, 2 / 3.5, 0.5 / 3.5])


def test_the_correlation_is_pooled_over_the_groups_in_which_both_rewards_vary(rewards):
    rewards[2:8, :, 2] = 100.0  # dead in half of the groups: the pair keeps its correlation
    diagnosis = diagnosed(rewards)
    z = z_scores(rewards)
    both = np.nansum(z[:, :, 1] ** 2, axis=1) * np.nansum(z[:, :, 2] ** 2, axis=1) > 0
    product = np.nansum(z[both, :, 1] * z[both, :, 2])
    degrees = np.sqrt(np.nansum(z[both, :, 1] ** 2) * np.nansum(z[both, :, 2] ** 2))
    assert 0 < np.sum(both) < 7
    close(diagnosis.correlation[1][2], product / degrees)
    assert diagnosis.correlation[2][1] == diagnosis.correlation[1][2]
    close(diagnosis.degrees[1][2], degrees)
    samples = np.sum(~np.isnan(z[:, :, 0]), axis=1)
    assert samples.min() < samples.max()
    varies = np.nansum(z[:, :, 0] ** 2, axis=1) > 0
    close(diagnosis.degrees[0][0], np.sum(samples[varies] - 1))


def test_padding_groups_with_rollouts_that_do_not_exist_changes_nothing():
    rewards = some_rewards(missing=0.0)
    padded = np.concatenate([rewards, np.full((12, 3, 3), NAN)], axis=1)
    wanted, got = (
        {k: v for k, v in full(diagnosed(r)).items() if "missing" not in k}
        for r in (rewards, padded)
    )
    assert got == pytest.approx(wanted, rel=1e-9)
    chances = [diagnosed(r).chance_conflict for r in (rewards, padded)]
    close(chances[0], chances[1])


def test_rewards_that_never_vary_together_have_no_correlation():
    rewards = np.zeros((4, 3, 2))
    rewards[:2, 0, 0] = rewards[2:, 0, 1] = 1.0
    diagnosis = diagnose(rewards, None, B)
    assert np.isnan(diagnosis.correlation[0][1])
    assert diagnosis.degrees[0][1] == 0
    assert diagnosis.as_dict()["correlation"][0][1] is None


def test_group_statistics_are_those_of_the_public_functions(rewards):
    diagnosis = diagnosed(rewards, estimator="grpo")
    close(of_each(diagnosis, "group_std"), group_std(rewards))
    close(of_each(diagnosis, "zero_variance_groups"), zero_variance_groups(rewards))
    assert diagnosis.zero_advantage_groups == zero_advantage_groups(grpo(rewards, WEIGHTS))
    close(of_each(diagnosis, "mean"), np.nanmean(rewards, axis=(0, 1)))
    close(of_each(diagnosis, "missing"), np.isnan(rewards).mean(axis=(0, 1)))


def test_the_typical_spread_is_the_median_over_the_groups_in_which_a_reward_varies():
    rewards = np.zeros((4, 2, 1))
    rewards[1:, 0, 0] = 1.0, 2.0, 100.0
    (reward,) = diagnose(rewards, None, A).rewards
    assert reward.varying_std == pytest.approx(2 * np.sqrt(0.5))
    assert reward.group_std == pytest.approx(103 * np.sqrt(0.5) / 4)
    rewards[0, 0, 0] = 4.0
    (reward,) = diagnose(rewards, None, A).rewards
    assert reward.varying_std == pytest.approx(3 * np.sqrt(0.5))


def test_saturation_is_where_the_mean_lies_in_the_declared_range():
    rewards = np.full((2, 2, 3), 1.0)
    by_name = diagnose(rewards, None, NAMES, low={"brevity": -3}, high={"brevity": 5, "format": 1})
    in_order = diagnose(rewards, None, NAMES, low=[None, NAN, -3], high=[1, None, 5])
    assert of_each(by_name, "saturation") == of_each(in_order, "saturation") == [None, None, 0.5]
    assert (by_name.rewards[0].low, by_name.rewards[0].high) == (None, 1.0)


def test_conflict_counts_rollouts_that_are_pulled_both_ways_and_a_penalty_pulls_down():
    rewards = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [NAN, NAN]]])
    assert diagnose(rewards, [1, 1], B).conflict == 2 / 4
    assert diagnose(rewards, [1, -1], B).conflict == 2 / 4
    agree = rewards[:, 2:4]
    assert diagnose(agree, [1, 1], B).conflict == 0.0
    assert diagnose(agree, [1, -1], B).conflict == 1.0
    assert diagnose(agree, [1, 0], B).conflict == 0.0


def test_the_conflict_by_chance_is_that_of_rewards_shuffled_within_their_groups():
    rng = np.random.default_rng(2)
    rewards = (rng.random((20, 6, 3)) < [0.2, 0.5, 0.7]).astype(float)
    wanted = diagnose(rewards, [1, 2, -1], NAMES).chance_conflict
    shuffled = rng.permuted(np.tile(rewards, (500, 1, 1)), axis=1)
    found = diagnose(shuffled, [1, 2, -1], NAMES)
    error = np.sqrt(wanted * (1 - wanted) / found.rollouts)
    assert error < 0.003
    assert abs(found.conflict - wanted) < 4 * error


def test_a_single_trained_reward_that_a_gate_makes_missing_has_no_conflict_by_chance():
    rng = np.random.default_rng(0)
    for _ in range(20):
        watched, trained = (rng.integers(0, 3, (4, 7)) / 2 for _ in range(2))
        rewards = np.stack([np.where(watched < 1, NAN, trained), watched], axis=-1)
        diagnosis = diagnose(rewards, [1, 0], B)
        assert diagnosis.chance_conflict >= 0
        assert diagnosis.chance_conflict == pytest.approx(0, abs=1e-15)


def test_a_larger_group_counts_for_more_in_the_conflict_by_chance():
    rewards = some_rewards(missing=0.0)[2:4]
    rewards[0, 3:] = NAN
    whole = diagnosed(rewards).chance_conflict
    small, large = (diagnosed(rewards[[g]]).chance_conflict for g in (0, 1))
    assert abs(small - large) > 0.01
    close(whole, (3 * small + 6 * large) / 9)


def test_the_gain_is_what_the_batch_step_multiplies_with():
    rewards = some_rewards(missing=0.0)
    gain = diagnosed(rewards).batch_gain
    np.testing.assert_allclose(gdpo(rewards, WEIGHTS), gain * mo_grpo(rewards, WEIGHTS), atol=1e-12)


def test_sizes_are_of_rollouts_in_groups_that_have_signal():
    advantages = np.array([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0]])
    rewards = np.zeros((2, 3, 1))
    rewards[0, 2] = NAN
    diagnosis = diagnose(rewards, None, A, advantages=advantages)
    assert diagnosis.signal_rms == pytest.approx(np.sqrt((9 + 16) / 2))
    assert diagnosis.largest == 4.0
    assert diagnosis.zero_advantage_groups == 0.5
    assert (diagnosis.prompts, diagnosis.samples, diagnosis.rollouts) == (2, 3, 5)


def test_distinct_advantages_are_counted_in_a_group_and_a_rounding_error_makes_none():
    rewards = np.array([[[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [1.0, 0.0]], np.zeros((4, 2))])
    diagnosis = diagnose(rewards, [2, 1], B)
    assert diagnosis.distinct == 3.0
    assert diagnosis.distinct_grpo == 2.0  # 2 x 1 and 1 x 2 are one sum
    advantages = np.array([[1.0, 1.0 + 1e-7, -2.0, 1e-9], np.zeros(4)])
    assert diagnose(rewards, [2, 1], B, advantages=advantages).distinct == 3.0


def test_similarity_to_grpo_is_the_correlation_over_rollouts_that_have_a_reward():
    rewards = some_rewards(3)
    rewards[4, 2:, :] = NAN
    there = ~np.all(np.isnan(rewards), axis=-1)
    wanted = np.corrcoef(gdpo(rewards, WEIGHTS)[there], grpo(rewards, WEIGHTS)[there])[0, 1]
    close(diagnosed(rewards).same_as_grpo, wanted)
    assert diagnosed(rewards, estimator="grpo").same_as_grpo == pytest.approx(1.0)
    raised = np.where(there, grpo(rewards, WEIGHTS) + 2, 0.0)
    assert diagnosed(rewards, advantages=raised).same_as_grpo == pytest.approx(1.0)
    flat = np.ones(rewards.shape[:2])
    assert diagnosed(rewards, advantages=flat).same_as_grpo is None


def test_advantages_that_are_given_are_diagnosed_and_the_estimator_only_named(rewards):
    computed = diagnosed(rewards, estimator="grpo_no_std")
    advantages = grpo_no_std(rewards, WEIGHTS)
    given = diagnosed(rewards, advantages=advantages, estimator=None)
    assert (computed.estimator, given.estimator) == ("grpo_no_std", None)
    close(of_each(given, "influence"), of_each(computed, "influence"))
    named = diagnosed(rewards, advantages=advantages, estimator="my:own")
    assert named.estimator == "my:own"


def test_an_estimator_is_a_name_a_function_or_a_rule_with_its_options():
    rewards = some_rewards(missing=0.0)
    low, high = [0.0, -20.0, 90.0], [1.0, 20.0, 110.0]
    ways = (
        ("sa_mrpo", "sa_mrpo"),
        (partial(sa_mrpo, low=low, high=high), "sa_mrpo"),
        (AdvantageRule("sa_mrpo", NAMES, low=low, high=high), "sa_mrpo"),
        (lambda r, w: sa_mrpo(r, w, low=low, high=high), "<lambda>"),
    )
    results = [diagnosed(rewards, estimator=way, low=low, high=high) for way, _ in ways]
    assert [result.estimator for result in results] == [name for _, name in ways]
    for result in results[1:]:
        close(of_each(result, "influence"), of_each(results[0], "influence"))


def test_weights_go_by_name_or_in_order_or_are_all_one(rewards):
    by_name = diagnose(rewards, {"brevity": -0.5, "correctness": 2, "format": 1.0}, NAMES)
    in_order = diagnose(rewards, np.array(WEIGHTS), NAMES)
    assert of_each(by_name, "weight") == of_each(in_order, "weight") == WEIGHTS
    assert of_each(by_name, "influence") == of_each(in_order, "influence")
    assert of_each(diagnose(rewards, None, NAMES), "weight") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "library",
    [
        lambda x: torch.tensor(x, dtype=torch.float32),
        lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True),
        lambda x: pytest.importorskip("jax.numpy").asarray(x, dtype="float32"),
        array_api_strict.asarray,
        lambda x: x.astype(np.float32),
        np.asfortranarray,
    ],
    ids=["torch32", "torch64 with gradient", "jax", "array-api-strict", "numpy32", "fortran"],
)
def test_every_array_library_gives_the_same(library, rewards):
    wanted = full(diagnosed(rewards))
    got = full(diagnosed(library(rewards)))
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert got[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_half_precision_and_whole_numbers_are_taken_as_they_are():
    counts = np.random.default_rng(0).integers(0, 4, (8, 4, 2))
    wanted = diagnose(counts.astype(float), None, B)
    assert diagnose(counts, None, B) == wanted
    half = torch.tensor(counts, dtype=torch.bfloat16)
    assert of_each(diagnose(half, None, B), "influence") == pytest.approx(
        of_each(wanted, "influence"), rel=1e-5
    )
    used = torch.tensor(gdpo(counts, [1, 1]), dtype=torch.bfloat16)
    assert diagnose(counts, None, B, advantages=used).signal_rms == pytest.approx(
        wanted.signal_rms, rel=0.01
    )


def test_rounding_noise_of_float32_is_no_variation():
    noisy = np.full((4, 8, 1), 0.3, dtype=np.float32)
    noisy[:, ::2] = np.nextafter(np.float32(0.3), np.float32(1))
    assert len(np.unique(noisy)) == 2
    assert of_each(diagnose(noisy.astype(float), None, A), "zero_variance_groups") == [0.0]
    assert of_each(diagnose(noisy, None, A), "zero_variance_groups") == [1.0]


def test_the_order_of_prompts_and_samples_changes_nothing():
    rng = np.random.default_rng(5)
    rewards = some_rewards()
    shuffled = rng.permutation(rewards)
    shuffled = np.stack([rng.permutation(group) for group in shuffled])
    wanted = full(diagnosed(rewards))
    assert full(diagnosed(shuffled)) == pytest.approx(wanted, rel=1e-9)


def test_the_unit_of_a_reward_changes_no_influence_under_gdpo_and_does_under_grpo(rewards):
    other_units = rewards * [1e3, 0.1, 1.0] + [7.0, -50.0, 1e3]

    def influence(r, estimator):
        return of_each(diagnosed(r, estimator=estimator), "influence")

    assert influence(other_units, "gdpo") == pytest.approx(influence(rewards, "gdpo"), rel=1e-6)
    changed = np.subtract(influence(other_units, "grpo"), influence(rewards, "grpo"))
    assert np.max(np.abs(changed)) > 0.1


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e150, 1e300])
def test_tiny_and_huge_rewards_and_weights_are_computed_without_overflow(size):
    rewards = np.random.default_rng(0).random((32, 5, 2))
    wanted = diagnose(rewards, [1, -1], B)
    huge = diagnose(rewards * size, [1, -1], B, low=[-size] * 2, high=[size] * 2)
    close(of_each(huge, "influence"), of_each(wanted, "influence"))
    heavy = diagnose(rewards, [size, -size], B)
    for field in ("weight_share", "influence_share", "influence_margin"):
        assert of_each(heavy, field) == pytest.approx(of_each(wanted, field), rel=1e-9, abs=1e-7)
    in_units = diagnose(rewards * size, [1, -1], B, estimator="grpo_no_std")
    close(
        in_units.signal_rms,
        size * diagnose(rewards, [1, -1], B, estimator="grpo_no_std").signal_rms,
    )
    assert str(in_units)
    assert diagnose(rewards, [1e300, -1e-300], B).rewards[1].weight_share == 0.0


WITHOUT_MUCH = {
    "all NaN": np.full((3, 4, 2), NAN),
    "constant": np.zeros((3, 4, 2)),
    "one rollout": np.full((1, 1, 2), 2.0),
    "G = 1": np.arange(8.0).reshape(4, 1, 2),
    "one prompt": np.arange(8.0).reshape(1, 4, 2),
    "one applies": np.stack([np.arange(12.0).reshape(3, 4), np.full((3, 4), NAN)], axis=-1),
    "diagonal": np.where(np.eye(4)[:, :, None] > 0, [1.0, 2.0], NAN),
}


# 35 combinations of 105.
@every_pair(
    batch=list(WITHOUT_MUCH),
    weights=[(1, 1), (0, 0), (0, 2)],
    estimator=["gdpo", "grpo", "mo_grpo", "rvpo", "gd2po_hard"],
)
def test_a_batch_with_little_in_it_is_diagnosed(batch, weights, estimator):
    rewards = WITHOUT_MUCH[batch]
    diagnosis = diagnose(rewards, weights, B, estimator=estimator, low=[-1, -1], high=[50, 50])
    assert diagnosis.summary() == str(diagnosis)
    json.dumps(diagnosis.as_dict(), allow_nan=False)
    assert all(np.isfinite(value) for value in full(diagnosis).values())
    assert sum(of_each(diagnosis, "weight_share")) == (1.0 if any(weights) else 0.0)
    weighted = [r.influence_share for r in diagnosis.rewards if r.weight and r.influence_share]
    assert not weighted or sum(map(abs, weighted)) == pytest.approx(1.0)


def test_unknown_numbers_are_none():
    diagnosis = diagnose(np.full((3, 4, 1), NAN), [0], A)
    (reward,) = diagnosis.rewards
    assert (reward.mean, reward.group_std, reward.varying_std, reward.zero_variance_groups) == (
        None,
    ) * 4
    assert (reward.influence, reward.influence_share, reward.influence_margin) == (None,) * 3
    assert (reward.missing, reward.groups) == (1.0, 0)
    assert (diagnosis.conflict, diagnosis.batch_gain, diagnosis.signal_rms) == (None,) * 3
    assert (diagnosis.distinct, diagnosis.same_as_grpo) == (None, None)
    assert diagnosis.metrics() == {"diagnostics/warnings": 0.0}
    assert full(diagnosis) == {
        "diagnostics/a/missing": 1.0,
        "diagnostics/zero_advantage_groups": 1.0,
        "diagnostics/largest": 0.0,
        "diagnostics/findings": 1.0,
        "diagnostics/warnings": 0.0,
    }


def test_metrics_are_flat_numbers_by_reward(rewards):
    diagnosis = diagnosed(rewards)
    metrics = full(diagnosis)
    assert metrics["rewards/brevity/group_std"] == diagnosis.rewards[2].group_std
    assert metrics["diagnostics/brevity/influence"] == diagnosis.rewards[2].influence
    assert metrics["diagnostics/conflict"] == diagnosis.conflict
    assert metrics["diagnostics/findings"] == len(diagnosis.findings)
    assert "diagnostics/brevity/saturation" not in metrics
    assert {type(value) for value in metrics.values()} == {float}


def test_by_default_there_are_two_metrics_for_each_reward_and_the_number_of_warnings(rewards):
    diagnosis = diagnosed(rewards)
    wanted = {
        f"rewards/{reward.name}/{number}": getattr(reward, number)
        for reward in diagnosis.rewards
        for number in ("zero_variance_groups", "influence_share")
    }
    warnings = [f for f in diagnosis.findings if f.severity == "warning"]
    assert diagnosis.metrics() == {**wanted, "diagnostics/warnings": len(warnings)}
    assert diagnosis.metrics().items() < full(diagnosis).items()


def test_an_unknown_detail_is_an_error():
    with config_error(r"detail='all'.*brief, full"):
        diagnosed(some_rewards()).metrics(detail="all")


def test_an_infinite_reward_is_named(rewards):
    rewards[2, 3, 1] = -np.inf
    with data_error(r"'correctness' .*-inf .*prompt 2, sample 3"):
        diagnosed(rewards)


def test_rewards_have_three_axes_and_something_in_them():
    """Runs in a new process, because under pytest the annotations are checked first."""
    code = """
import numpy as np
from gdpo.diagnostics import diagnose
from gdpo.errors import DataError
for shape in [(), (4,), (4, 1), (2, 2, 3, 1), (0, 4, 1), (4, 0, 1)]:
    try:
        diagnose(np.zeros(shape), None, ["a"])
    except DataError as error:
        print(error)
"""
    lines = python("-c", code, check=True).stdout.splitlines()
    assert len(lines) == 6
    assert all("[prompt, sample, reward]" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": B, "weights": None}, "3 rewards.* 2 names"),
        ({"names": ["a", "b", "a"]}, "unique, got"),
        ({"weights": [1, 2]}, "2 entries for 3 rewards"),
        ({"weights": {"formatt": 1}}, "did you mean 'format'"),
        ({"weights": [1, NAN, 1]}, "finite"),
        ({"low": [0, 0, 1], "high": [1, 1, 1]}, r"'brevity'.* low < high, got \[1, 1\]"),
        ({"low": {"brevty": 0}}, "low: .*'brevty'.* did you mean 'brevity'"),
        ({"high": [1, 2]}, "high"),
        ({"high": [1, 2, np.inf]}, "high .*finite"),
        ({"estimator": "gdop"}, "did you mean 'gdpo'"),
        ({"estimator": None}, "estimator.*advantages"),
        ({"estimator": "saw"}, "'saw' needs 'low'"),
        ({"estimator": lambda r, w: r[:, 0, :]}, "'<lambda>' .*shape"),
    ],
)
def test_what_does_not_fit_the_rewards_is_a_config_error(arguments, message):
    arguments = {"weights": WEIGHTS, "names": NAMES, **arguments}
    with config_error(message):
        diagnose(some_rewards(), arguments.pop("weights"), arguments.pop("names"), **arguments)


@pytest.mark.parametrize("advantages", [np.zeros((12, 5)), np.full((12, 6), NAN), np.zeros(72)])
def test_advantages_that_do_not_fit_are_a_data_error(advantages):
    with data_error(r"\[prompt, sample\] of shape \(12, 6\)"):
        diagnosed(some_rewards(), advantages=advantages)
