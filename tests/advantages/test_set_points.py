"""Set-points: weights that give each reward a requested influence share."""

import json

import numpy as np
import pytest
import torch

from gdpo.advantages import AdvantageRule
from gdpo.advantages._set_points import solve
from gdpo.advantages.arrays import rounded
from gdpo.advantages.stages import SAMPLES, standardize
from gdpo.errors import ConfigError

NAMES = ["correct", "format", "brevity"]
ONES = [1.0, 1.0, 1.0]
ASKED = {"correct": 0.5, "format": 0.3, "brevity": 0.2}
SHARES = np.array([0.5, 0.3, 0.2])


def batch(seed, *, prompts=16, live=(1, 1, 1), correlation=0.0):
    """Return rewards of which each varies in a part of the groups. The first two are related."""
    rng = np.random.default_rng(seed)
    rewards = rng.standard_normal((prompts, 8, 3))
    rewards[..., 1] = correlation * rewards[..., 0] + np.sqrt(1 - correlation**2) * rewards[..., 1]
    for k, rate in enumerate(live):
        rewards[rng.random(prompts) >= rate, :, k] = 0.0
    return rewards


def rule_of(request=None, estimator="gdpo", **options):
    bounds = {key: options.pop(key) for key in ("low", "high") if key in options}
    return AdvantageRule(estimator, NAMES, {"influence": request or ASKED, **options}, **bounds)


def after(rule, steps, **kwargs):
    for seed in range(steps):
        rule.update(batch(seed, **kwargs), ONES)
    return np.array(rule.weights_in_force(ONES))


def influence(rule, **kwargs):
    """Return the influence shares over 2,000 new groups."""
    rewards = batch(10**6, prompts=2000, **kwargs)
    z = standardize(rounded(rewards), over=SAMPLES).values
    each = np.mean(rule(rewards, ONES)[..., None] * z, axis=(0, 1))
    return each / np.sum(np.abs(each))


def influence_of_steps(rule, batches):
    """Train on batches, and yield the influence of the rewards in each of them."""
    for rewards in batches:
        z = standardize(rounded(rewards), over=SAMPLES).values
        yield np.einsum("ps,psk->k", rule(rewards, ONES), z)
        rule.update(rewards, ONES)


def watched(rule, batches):
    """Train on batches. Return the influence in each of them, and the statuses after it."""
    steps = [(found, statuses(rule)) for found in influence_of_steps(rule, batches)]
    return np.array([found for found, _ in steps]), [seen for _, seen in steps[1:]]


def shares_of(influence):
    """Return the shares over all steps, and twice their standard errors."""
    total = np.sum(influence, axis=0)
    size, signs = np.sum(np.abs(total)), np.sign(total)
    apart = influence - total / size * np.sum(influence * signs, axis=1, keepdims=True)
    return total / size, 2 * np.sqrt(np.sum(apart**2, axis=0)) / size


def statuses(rule):
    return {point.name: point.status for point in rule.set_points}


def test_the_weights_start_in_proportion_to_the_request_and_70_30_means_70_percent():
    assert rule_of().weights_in_force(ONES) == pytest.approx([1.5, 0.9, 0.6])
    percent = {"correct": 70, "format": 30}
    assert rule_of(percent).weights_in_force([1, 1, 0]) == pytest.approx([1.4, 0.6, 0])


@pytest.mark.parametrize("estimator", ["gdpo", "mo_grpo"])
@pytest.mark.parametrize(("live", "correlation"), [((1, 1, 0.15), 0), ((1, 1, 1), -0.6)])
def test_the_rewards_get_their_shares_although_one_is_rare_or_related(estimator, live, correlation):
    rule = rule_of(estimator=estimator)
    before = np.max(np.abs(influence(rule, live=live, correlation=correlation) - SHARES))
    weights = after(rule, 30, live=live, correlation=correlation)
    found = influence(rule, live=live, correlation=correlation)
    assert np.max(np.abs(found - SHARES)) < 0.04 < before
    assert sum(weights) == pytest.approx(3)
    assert set(statuses(rule).values()) == {"governed"}


EQUAL = {"correct": 1, "format": 1, "brevity": 1}


@pytest.mark.parametrize(
    ("estimator", "prompts", "rate", "every", "steps"),
    [
        ("gdpo", 1, 0.3, 1, 350),
        ("gdpo", 8, 0.05, 1, 240),
        ("gdpo", 8, 0.1, 1, 120),
        ("gdpo", 16, 0.1, 1, 80),
        ("gdpo", 64, 0.05, 1, 50),
        ("gdpo", 8, 1, 10, 160),
        ("mo_grpo", 8, 0.1, 1, 120),
        ("mo_grpo", 24, 1, 10, 160),
    ],
)
def test_the_advantages_follow_a_rare_reward_as_much_as_requested(
    estimator, prompts, rate, every, steps
):
    rule = rule_of(EQUAL, estimator)
    rates = [rate if step % every == 0 else 0 for step in range(steps)]
    batches = (batch(t, prompts=prompts, live=(1, 1, now)) for t, now in enumerate(rates))
    found = np.array(list(influence_of_steps(rule, batches)))
    shares, margins = shares_of(found[steps // 4 :])
    assert np.all(np.abs(shares - 1 / 3) <= 0.03 + margins / 2)
    assert set(statuses(rule).values()) == {"governed"}


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ({"live": (1, 1, 0.1), "prompts": 8}, {"max_advantage": 1}),
        (
            {"live": (1, 1, 0.01), "prompts": 32},
            {"request": {"correct": 1, "format": 1, "brevity": 2}},
        ),
        ({"correlation": 0.8}, {"request": {"correct": 0.9, "format": 0.05, "brevity": 0.05}}),
    ],
)
def test_a_request_that_is_missed_is_never_called_governed(world, options):
    rule = rule_of(**options)
    request = np.array([point.requested for point in rule.set_points])
    found, seen = watched(rule, (batch(step, **world) for step in range(140)))
    shares, margins = shares_of(found[70:])
    missed = np.abs(shares - request) > 0.03 + margins
    assert np.any(missed)
    for name, wrong in zip(NAMES, missed, strict=True):
        governed = np.mean([each[name] == "governed" for each in seen[70:]])
        assert not wrong or (governed < 0.1 and seen[-1][name] != "governed")


def test_a_wide_interval_does_not_excuse_a_share_beside_a_reward_at_its_bound():
    rule = rule_of({"correct": 1, "format": 1, "brevity": 2}, "mo_grpo")
    rng, bound = np.random.default_rng(0), []
    for step in range(200):
        rewards = rng.normal(size=(16, 8, 3))
        rewards[..., 2] *= rng.random((16, 1)) < 0.02
        rule.update(rewards, ONES)
        if step >= 120 and statuses(rule)["correct"] == "at its bound":
            bound.append(statuses(rule)["brevity"])
    assert len(bound) > 50
    assert "governed" not in bound


def test_the_share_is_known_only_after_enough_groups_and_steps():
    seen = watched(rule_of(EQUAL), (batch(step) for step in range(12)))[1]
    assert [set(each.values()) for each in seen[8:10]] == [{"settling"}, {"governed"}]
    seen = watched(rule_of(EQUAL), (batch(step, prompts=1) for step in range(45)))[1]
    assert [set(each.values()) for each in seen[38:40]] == [{"settling"}, {"governed"}]


def test_a_missed_share_is_reported_once_the_averages_are_full():
    rule = rule_of(EQUAL, max_advantage=0.5)
    rewards = [batch(step, live=(1, 1, 0.5)) for step in range(30)]
    for each in rewards:  # a reward with few extreme values loses most of its size when clipped
        each[..., 2] = each[..., 2] > 1.5
    words = [each["brevity"] for each in watched(rule, rewards * 3)[1]]
    assert words[0] == "settling"
    assert words[-1] == "missed"
    assert sorted(set(words)) == ["missed", "settling"]
    assert words.count("settling") == words.index("missed")


def test_a_reward_without_a_share_does_not_count():
    rule = rule_of({"correct": 1, "format": 1})
    for seed in range(30):
        rewards = batch(seed)
        rewards[..., 2] = rewards[..., 0]
        rule(rewards, [1, 1, 0])
        rule.update(rewards, [1, 1, 0])
    assert set(statuses(rule).values()) == {"governed"}


def test_gdpo_is_divided_by_the_root_mean_square_of_the_sum_over_the_averages():
    rule, first = rule_of(), batch(0)
    first[3] = np.nan  # rollouts without a reward do not count
    found = rule(first, ONES)
    rest = np.delete(found, 3, axis=0)
    assert np.sqrt(np.mean(rest**2)) == pytest.approx(1)
    rule.update(first, ONES)
    before = rule.scale.including(first, ONES)
    assert rule.scale.including(first, [2.0, 2.0, 2.0]) == pytest.approx(2 * before)
    quiet = batch(1, live=(0, 0, 0))
    assert rule.scale.including(quiet, ONES) < before
    assert rule_of().scale.including(quiet * np.nan, ONES) == 0


def test_older_batches_count_less_in_the_averages_and_in_the_shares():
    rule, batches = rule_of(EQUAL), [batch(step) for step in range(6)]
    influence = np.array(list(influence_of_steps(rule, batches)))
    z = [standardize(rounded(each), over=SAMPLES).values.reshape(-1, 3) for each in batches]
    ages = np.arange(5, -1, -1)
    halves, kept = 0.5**ages, 0.5 ** (ages * 4 / 64)  # 8 and 4 of 16 live groups count in a step
    wanted = {
        "products": np.einsum("t,tik,til->kl", halves, z, z),
        "rollouts": np.sum(halves) * 128,
        "live": np.full(3, np.sum(halves) * 8),
        "influence": kept @ influence,
        "squares": np.einsum("t,tk,tl->kl", kept**2, influence, influence),
        "seen": np.full(3, np.sum(kept) * 4),
    }
    state = rule.state()["set_points"]
    for key, value in wanted.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-9, err_msg=key)


def test_a_half_life_of_the_scale_is_that_of_the_running_scale():
    assert rule_of(scale_half_life=3).scale.half_life == 3
    assert rule_of(estimator="mo_grpo").scale is None


def test_rewards_that_cancel_leave_no_huge_advantages():
    rule = rule_of({"correct": 1, "format": 1})
    rewards = batch(0)
    rewards[..., 1] = -rewards[..., 0] + 1e-7 * rewards[..., 1]
    assert np.max(np.abs(rule(rewards, [1, 1, 0]))) < 0.5


def test_noise_in_single_precision_is_no_variation_as_in_the_estimator():
    rule = rule_of()
    for seed in range(20):
        rewards = torch.tensor(batch(seed), dtype=torch.float32)
        rewards[..., 2] = 0.1 + 1e-8 * torch.rand(16, 8)
        rule.update(rewards, ONES)
    assert statuses(rule)["brevity"] == "does not vary"


def test_a_reward_that_is_silent_for_long_gets_its_share_soon_after():
    live = [(1, 1, 0.5)] * 40 + [(1, 1, 0)] * 80 + [(1, 1, 0.5)] * 40
    rewards = (batch(step, prompts=8, live=each) for step, each in enumerate(live))
    found, seen = watched(rule_of(EQUAL), rewards)
    shares, _ = shares_of(found[130:])
    np.testing.assert_allclose(shares, 1 / 3, atol=0.06)
    assert seen[115] == {"correct": "missed", "format": "missed", "brevity": "does not vary"}


def test_no_weight_changes_by_more_than_half_in_a_step_or_by_20_in_all():
    rule = rule_of()
    before = np.array(rule.weights_in_force(ONES))
    for seed in range(60):
        now = after_one(rule, batch(seed, live=(1, 1, 0.01)))
        assert np.all(now / before <= 1.5 + 1e-9)
        assert np.all(before / now <= 1.5 + 1e-9)
        before = now
    assert np.all(before / (3 * SHARES) >= 1 / 20 - 1e-9)
    assert "at its bound" in statuses(rule).values()


def after_one(rule, rewards):
    rule.update(rewards, ONES)
    return np.array(rule.weights_in_force(ONES))


def test_a_reward_that_does_not_vary_keeps_its_weight_and_leaves_the_others_their_shares():
    rule = rule_of()
    weights = after(rule, 30, live=(1, 0.3, 0))
    assert weights[2] == pytest.approx(0.6)
    found = influence(rule, live=(1, 0.3, 0))
    np.testing.assert_allclose(found, [5 / 8, 3 / 8, 0], atol=0.03)
    assert statuses(rule)["brevity"] == "does not vary"


def test_a_reward_that_stops_varying_keeps_the_weight_it_had():
    rule = rule_of()
    before = after(rule, 30, live=(1, 1, 0.2))
    for seed in range(17):
        rule.update(batch(seed, live=(1, 1, 0)), ONES)
    kept = rule.weights_in_force(ONES)[2]
    for seed in range(5):
        rule.update(batch(seed, live=(1, 1, 0)), ONES)
    assert rule.weights_in_force(ONES)[2] == kept > before[2]


def learned(mean, seed=0):
    """Return rewards of which the first, 0 or 1, has this mean."""
    rewards = batch(seed)
    flat = np.random.default_rng(seed).permutation(128) < round(mean * 128)
    rewards[..., 0] = flat.reshape(16, 8)
    return rewards


def test_a_learned_reward_is_released_and_taken_back():
    bounds = {"low": [0, np.nan, np.nan], "high": [1, np.nan, np.nan]}
    rule = rule_of(**bounds)
    seen = []
    for mean in [0.97] * 12 + [0.92] * 8 + [0.85] * 8:
        rule.update(learned(mean, seed=len(seen)), ONES)
        seen.append((statuses(rule)["correct"], rule.weights_in_force(ONES)[0]))
    status, weights = zip(*seen, strict=True)
    assert status[2] == "settling"  # 48 groups are too few
    assert status[3] == status[11] == status[19] == "learned and released"
    assert weights[11] == weights[19] == 1.5
    assert status[-1] == "missed"  # the recent share is still that of the time after its release
    assert weights[-1] > 1.5


def test_a_reward_without_a_declared_range_is_not_released():
    rule = rule_of()
    for seed in range(12):
        rule.update(learned(0.99, seed=seed), ONES)
    assert statuses(rule)["correct"] != "learned and released"


def test_shares_that_a_correlation_rules_out_are_reported_with_the_correlation():
    rule = rule_of({"correct": 0.9, "format": 0.1})
    for seed in range(20):
        rule.update(batch(seed, correlation=0.8), [1, 1, 0])
    correct, format_ = rule.set_points
    assert (correct.status, format_.status) == ("settling", "not attainable")
    assert (correct.related, format_.related) == ("", "correct")
    assert format_.correlation == pytest.approx(0.78, abs=0.03)
    assert np.isnan(correct.correlation)
    weights = rule.weights_in_force([1, 1, 0])
    assert weights[1] == pytest.approx(0.2 / 20, rel=0.01)


def test_copies_share_the_weight_and_do_not_break_the_solution():
    weights, held, _ = solve(np.ones((2, 2)), np.array([1.0, 1.0]))
    np.testing.assert_allclose(weights, [1, 1])
    assert not np.any(held)
    weights, held, negative = solve(np.ones((2, 2)), np.array([1.4, 0.6]))
    assert list(held & negative) == [False, True]


def test_opposite_rewards_are_not_attainable_because_no_weights_give_them_their_shares():
    rule = rule_of({"correct": 0.7, "format": 0.3})
    for seed in range(20):
        rewards = batch(seed)
        rewards[..., 1] = -rewards[..., 0]
        rule.update(rewards, [1, 1, 0])
    for point, other in zip(rule.set_points, ("format", "correct"), strict=True):
        assert (point.status, point.related) == ("not attainable", other)
        assert point.correlation == pytest.approx(-1)


def test_a_weight_is_at_most_20_times_its_share_of_the_request():
    weights, held, _ = solve(np.diag([1.0, 0.0077]), np.array([0.97, 0.03]))
    assert weights == pytest.approx([0.4, 0.6])
    assert held.tolist() == [False, True]


def test_the_solution_gives_the_shares_where_no_bound_is_met():
    m = np.array([[0.8, 0.1, 0], [0.1, 0.7, -0.2], [0, -0.2, 0.1]])
    weights, held, _ = solve(m, 3 * SHARES)
    shares = m @ weights
    np.testing.assert_allclose(shares / np.sum(shares), SHARES, atol=2e-3)
    assert not np.any(held)


@pytest.mark.parametrize("asarray", [np.asarray, torch.tensor])
def test_a_resumed_run_goes_on_bit_for_bit(asarray):
    bounds = {"low": [-9, 0, 0], "high": [9, 1, 1]}
    whole, resumed = rule_of(**bounds), rule_of(**bounds)
    after(whole, 27, live=(1, 0.5, 0.3))
    assert set(statuses(whole).values()) == {"governed"}
    resumed.restore(json.loads(json.dumps(whole.state())))
    for seed in range(27, 34):
        rewards = asarray(batch(seed, live=(1, 0.5, 0.3)))
        ours, theirs = whole(rewards, ONES), resumed(rewards, ONES)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
        for rule in (whole, resumed):
            rule.update(rewards, ONES)
    assert resumed.state() == whole.state()
    assert resumed.set_points == whole.set_points


def test_the_most_extreme_request_works_and_is_restored():
    whole, resumed = rule_of({"correct": 1e6, "format": 1e-6}), rule_of({"correct": 1, "format": 1})
    for seed in range(20):
        whole.update(batch(seed), [1, 1, 0])
    resumed.restore(json.loads(json.dumps(whole.state())))
    assert resumed.state() == whole.state()


def test_the_state_of_another_request_is_refused():
    other = rule_of({"correct": 1, "format": 1})
    with pytest.raises(ConfigError, match="set-points of this run"):
        rule_of().restore(other.state())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weights", [0.0, 1.0, 1.0]),
        ("weights", [-1.0, 1.0, 1.0]),
        ("weights", [float("nan"), 1.0, 1.0]),
        ("products", [[float("inf")] * 3] * 3),
        ("live", [-1.0, 0.0, 0.0]),
        ("steps", -1.0),
        ("quiet", [1e30, 0, 0]),
        ("rollouts", -1.0),
        ("influence", [float("inf"), 0.0, 0.0]),
        ("squares", [[float("nan")] * 3] * 3),
        ("seen", [-1.0, 0.0, 0.0]),
        ("seen_steps", -1.0),
    ],
)
def test_a_state_with_impossible_numbers_is_refused(key, value):
    rule = rule_of()
    after(rule, 3)
    state = rule.state()
    state["set_points"][key] = value
    with pytest.raises(ConfigError, match="set-points of this run"):
        rule_of().restore(state)


def test_missing_values_and_a_noise_floor_count_as_in_the_estimator():
    rule = rule_of({"correct": 1, "format": 1}, noise_floor={"format": 10.0})
    for seed in range(20):
        rewards = batch(seed)
        rewards[0, :, 0] = np.nan
        rule.update(rewards, [1, 1, 0])
    weights = rule.weights_in_force([1, 1, 0])
    assert weights[1] > 10 * weights[0]


def test_the_metrics_contain_weight_and_request():
    assert rule_of({"correct": 3, "format": 1}).metrics(NAMES, [1, 1, 0]) == {
        "rewards/correct/weight": 1.5,
        "rewards/format/weight": 0.5,
        "rewards/correct/requested_share": 0.75,
        "rewards/format/requested_share": 0.25,
        "rewards/correct/set_point_status": 5.0,
        "rewards/format/set_point_status": 5.0,
    }


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 1, 2], "'brevity' has the weight 2 and a requested share"),
        ([1, 1], "one weight per reward"),
    ],
)
def test_weights_beside_a_request_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        rule_of()(batch(0), weights)


def test_weights_per_prompt_beside_a_request_are_refused():
    with pytest.raises(ConfigError, match="remove the weights per prompt"):
        rule_of().weighting.check(np.ones((16, 3)))


def test_a_trained_reward_without_a_share_is_refused():
    with pytest.raises(ConfigError, match="no share for 'brevity', whose weight is 1"):
        rule_of({"correct": 1, "format": 1}).weights_in_force(ONES)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {"influence": ASKED}, "rare reward cannot get its share. Use gdpo or mo_grpo"),
        ("gdpo_leave_one_out", {"influence": ASKED}, "Use gdpo or mo_grpo"),
        ("gdpo", {"influence": 0.5}, "influence must map"),
        ("gdpo", {"influence": {}}, "influence must map"),
        ("gdpo", {"influence": {"corect": 1}}, "'corect'.*correct"),
        ("gdpo", {"influence": {"correct": 0}}, "influence: correct must be .* 1e-06 to 1e\\+06"),
        (
            "gdpo",
            {"influence": {"correct": 1e308, "brevity": 1e308}},
            r"influence: correct .*1e\+308",
        ),
        ("gdpo", {"influence": {"correct": 1e-320, "brevity": 1}}, "influence: correct .*1e-320"),
        ("gdpo", {"influence": {"correct": float("nan")}}, "influence: correct .*nan"),
        ("gdpo", {"influence": {"correct": "much"}}, "correct must be a number"),
        ("gdpo", {"influence": {"correct": 10**400}}, r"influence: correct .* 1\.79769e\+308"),
        (
            "gdpo",
            {"influence": ASKED, "schedules": {"format": {"to": 1, "steps": 2}}},
            "cannot be combined",
        ),
        ("gdpo", {"influence": ASKED, "token_counts": True}, "token_counts cannot be combined"),
    ],
)
def test_a_request_that_cannot_work_is_an_error_at_once(name, options, message):
    with pytest.raises(ConfigError, match=message):
        AdvantageRule(name, NAMES, options)
