"""What a policy learns from each reward, on policies small enough to be exact."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tests.advantages.claims import options_of

from gdpo.advantages import ESTIMATORS, gdpo, grpo
from gdpo.diagnostics.effect import Coefficients, Effect, effect_of, sentences

NAN = np.nan


def batch(missing=0.0, seed=0, dtype=np.float64):
    """Three rewards of different sizes, 6 prompts, 5 samples. The second is constant in a group."""
    random = default_rng(seed)
    rewards = random.normal(size=(6, 5, 3)) * [1, 10, 0.1]
    rewards[..., 1] = rewards[..., 1] > 0
    rewards[0, :, 1] = 1
    rewards[random.random(rewards.shape) < missing] = NAN
    return rewards.astype(dtype)


BATCH_WEIGHTS = [1, 2, 0.5]


# ---- coefficients


def adds_up(found):
    return found.rest <= 2e-6


def test_a_reward_with_weight_0_adds_nothing():
    found = Coefficients.of(batch(), [1, 0, 0.5], gdpo)
    assert np.any(found.gradient[1])
    assert not np.any(found.presence[1])
    assert not np.any(found.parts[1])


@pytest.mark.parametrize("missing", [0, 0.4, 1])
def test_the_gradients_coefficients_are_those_of_a_loop(missing):
    rewards = batch(missing)
    found = Coefficients.of(rewards, BATCH_WEIGHTS, gdpo).gradient.reshape(3, 6, 5)
    for k, prompt, sample in np.ndindex(found.shape):
        group = [each for each in rewards[prompt, :, k] if not np.isnan(each)]
        expected = 0.0
        if len(group) > 1 and not np.isnan(rewards[prompt, sample, k]):
            size = len(group)
            expected = size / (size - 1) * (rewards[prompt, sample, k] - sum(group) / size)
        assert found[k, prompt, sample] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("missing", [0, 0.4])
@pytest.mark.parametrize("name", ["grpo", "gdpo"])
def test_presence_is_what_replaying_the_batch_without_the_weight_changes(name, missing):
    rewards, estimator = batch(missing), ESTIMATORS[name]
    found = Coefficients.of(rewards, BATCH_WEIGHTS, estimator)
    whole = estimator(rewards, BATCH_WEIGHTS)
    without = [estimator(rewards, w) for w in ([0, 2, 0.5], [1, 0, 0.5], [1, 2, 0])]
    assert_array_equal(found.advantages, whole.ravel())
    assert_array_equal(found.presence, [(whole - each).ravel() for each in without])


DO_NOT_ADD_UP = {"dara_asymmetric", "gd2po_hard", "gd2po_snr", "gdpo_leave_one_out", "rvpo"}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("missing", [0, 0.2])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_parts_of_an_estimator_add_up_or_it_is_named(name, missing, dtype):
    rewards = batch(missing, seed=3, dtype=dtype)
    estimator = partial(ESTIMATORS[name], **options_of(name, rewards))
    found = Coefficients.of(rewards, BATCH_WEIGHTS, estimator)
    left = np.max(np.abs(found.advantages - found.parts.sum(axis=0)))
    assert found.rest == pytest.approx(left, abs=1e-9)
    assert adds_up(found) == (name not in DO_NOT_ADD_UP)
    assert (left < 1e-5) == (name not in DO_NOT_ADD_UP)
    # Within a group, a part is proportional to its reward.
    parts = found.parts.reshape(3, 6, 5)
    centred = np.moveaxis(np.nan_to_num(rewards - np.nanmean(rewards, axis=1, keepdims=True)), 2, 0)
    square = np.sum(centred * centred, axis=2, keepdims=True)
    slope = np.sum(parts * centred, axis=2, keepdims=True) / np.where(square > 0, square, 1)
    assert_allclose(parts, slope * centred, atol=1e-5)
    assert (name in DO_NOT_ADD_UP) or np.all(slope >= 0)


def test_advantages_that_are_clipped_do_not_add_up():
    assert not adds_up(Coefficients.of(batch(), BATCH_WEIGHTS, partial(gdpo, max_advantage=0.5)))


@given(st.integers(0, 1000))
def test_parts_have_the_normalizers_of_the_batch(seed):
    rewards, weights = batch(seed=seed), np.array(BATCH_WEIGHTS)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    std = centred.std(axis=1, ddof=1, keepdims=True)
    z = centred / np.where(std > 0, std, 1)
    of_group = (centred @ weights).std(axis=1, ddof=1)[:, None, None]
    of_batch = (z @ weights).std(ddof=1)
    for estimator, expected in ((grpo, centred / of_group), (gdpo, z / of_batch)):
        found = Coefficients.of(rewards, weights, estimator).parts.reshape(3, 6, 5)
        assert_allclose(np.moveaxis(found, 0, 2), weights * expected, atol=1e-9)


def test_copies_of_a_reward_split_by_weight():
    """The weights of two copies are 3 to 1, also if one has another unit (gdpo)."""
    rewards = batch()[..., :1] * [1, 100]
    first, second = Coefficients.of(rewards, [3, 1], gdpo).parts
    assert_allclose(first, 3 * second)


@pytest.mark.parametrize("estimator", [grpo, gdpo])
def test_parts_follow_the_weights_of_each_prompt(estimator):
    weights = np.tile(BATCH_WEIGHTS, (6, 1))
    weights[0] = 0, 0, 1
    found = Coefficients.of(batch(), weights, estimator)
    assert adds_up(found)
    assert not np.any(found.parts.reshape(3, 6, 5)[:2, 0])
    same = Coefficients.of(batch(), np.tile(BATCH_WEIGHTS, (6, 1)), estimator)
    assert_array_equal(same.parts, Coefficients.of(batch(), BATCH_WEIGHTS, estimator).parts)


def test_a_batch_without_signal_adds_up_to_nothing():
    found = Coefficients.of(np.ones((2, 3, 2)), [1, 1], grpo)
    assert adds_up(found)
    assert not any(np.any(each) for each in (found.gradient, found.presence, found.parts))


# ---- effects


def products():
    return default_rng(0).normal(0.1, 1.0, (5, 2, 5, 3))


def test_the_effects_are_those_of_a_loop():
    given, std = products(), [0.5, 2.0]

    def mean_over(batches, j, k):
        pairs = [(f, b) for f in batches for b in batches if f != b]
        return sum(given[f, j, b, k] for f, b in pairs) / len(pairs) / std[j]

    found = effect_of(given, np.array(std), ["a", "b"], groups=80)
    values, errors = np.empty((2, 3)), np.empty((2, 3))
    for j, k in np.ndindex(2, 3):
        values[j, k] = mean_over(range(5), j, k)
        left_out = [mean_over([b for b in range(5) if b != out], j, k) for out in range(5)]
        middle = sum(left_out) / 5
        errors[j, k] = np.sqrt(4 / 5 * sum((each - middle) ** 2 for each in left_out))
    assert_allclose(np.column_stack([found.matrix, found.totals]), values)
    assert_allclose(np.column_stack([found.errors, found.total_errors]), errors)
    assert (found.names, found.groups) == (("a", "b"), 80)
    assert found.quantile == pytest.approx(stats.t.ppf(0.975, 4))
    assert found.own == {"a": (values[0, 0], pytest.approx(errors[0, 0])), "b": found.own["b"]}
    assert found.own["b"] == pytest.approx((values[1, 1], errors[1, 1]))


def test_sizes_that_have_no_meaning_are_relative_to_the_largest_own_effect():
    given = products() - 0.2
    found, other = (
        effect_of(scale * given, np.ones(2), "ab", groups=80, relative=True) for scale in (1, 9)
    )
    absolute = effect_of(given, np.ones(2), "ab", groups=80)
    unit = np.abs(absolute.matrix.diagonal()).max()
    assert np.abs(found.matrix.diagonal()).max() == 1
    for name in ("matrix", "errors", "totals", "total_errors"):
        assert_allclose(getattr(found, name) * unit, getattr(absolute, name))
        assert_allclose(getattr(found, name), getattr(other, name))
    said = list(sentences(SEEN, np.ones(3), np.ones(3)))
    shown = list(sentences(replace(SEEN, unit=found.unit), np.ones(3), np.ones(3)))
    new = "of the largest own effect"
    assert shown == [each.replace("std per step", new) for each in said] != said
    without = effect_of(0 * given, np.ones(2), "ab", groups=80, relative=True)
    assert not without.matrix.any()


def test_a_batch_is_never_paired_with_itself():
    given = products()
    given[np.arange(5), :, np.arange(5)] = NAN
    found, expected = (effect_of(each, np.ones(2), "ab", groups=1) for each in (given, products()))
    assert_array_equal(found.matrix, expected.matrix)
    assert_array_equal(found.errors, expected.errors)


def test_nothing_moves_a_reward_without_spread():
    found = effect_of(products(), np.array([0.0, NAN]), "ab", groups=256)
    assert not np.any(found.matrix)
    assert not np.any(found.total_errors)
    assert (found.unseen, found.lowers, found.fastest) == ((), (), None)


# ---- a policy whose answers are all listed

PROMPTS, ANSWERS, SAMPLES, SIZE = 2, 3, 3, 4
_random = default_rng(2)
FEATURES = _random.normal(size=(PROMPTS, ANSWERS, SIZE))
REWARDS = np.array([[[0, 1], [0.3, 0.2], [1, 0.6]], [[0, 3], [1, 0], [1, 2]]], np.float64)
THETA = _random.normal(size=SIZE) / 2
WEIGHTS = np.array([1.0, 0.5])
STD = np.array([0.4, 1.1])
MOMENTUM, SQUARES = _random.normal(size=SIZE) / 10, _random.random(SIZE) / 20


def chances(theta):
    """The policy's probabilities [..., prompt, answer], for parameters shared by the prompts."""
    logits = np.exp(np.einsum("pad,...d->...pa", FEATURES, theta))
    return logits / logits.sum(axis=-1, keepdims=True)


def expected(theta):
    """The expected value of each reward."""
    return np.einsum("...pa,pak->...k", chances(theta), REWARDS) / PROMPTS


def sgd(gradient, rate):
    return rate * gradient


def adam(gradient, rate):
    """What Adam adds at its fourth step, from fixed moments."""
    first = (0.9 * MOMENTUM + 0.1 * gradient) / (1 - 0.9**4)
    second = (0.99 * SQUARES + 0.01 * gradient**2) / (1 - 0.99**4)
    return rate * first / (np.sqrt(second) + 1e-8)


GROUPS = Counter(map(tuple, map(sorted, product(range(ANSWERS), repeat=SAMPLES))))
"""The groups that a prompt can have, whatever their order, and how many orders each has."""
OUTCOMES = np.array([one + other for one, other in product(GROUPS, repeat=PROMPTS)])
ORDERS = np.array([prod(each) for each in product(GROUPS.values(), repeat=PROMPTS)])


@cache
def every_batch(estimator):
    """Every batch that the policy can sample: its probability, a_j, g and d_k."""
    policy, which = chances(THETA), np.repeat(np.arange(PROMPTS), SAMPLES)
    scores = FEATURES - np.einsum("pa,pad->pd", policy, FEATURES)[:, None]
    chance = ORDERS * policy[which, OUTCOMES].prod(axis=1)
    found = []
    for answers in OUTCOMES:
        rewards = REWARDS[which, answers].reshape(PROMPTS, SAMPLES, 2)
        c = Coefficients.of(rewards, WEIGHTS, estimator)
        s = scores[which, answers] / len(answers)
        found.append((c.gradient @ s, c.advantages @ s, c.presence @ s))
    return chance, *map(np.array, zip(*found, strict=True))


def directions(estimator, step, rate):
    """The change without and with each reward, and by the whole step."""
    _, _, g, d = every_batch(estimator)
    whole = step(g, rate)
    return np.concatenate([whole[:, None] - step(g[:, None] - d, rate), whole[:, None]], axis=1)


def test_the_gradients_of_the_rewards_are_unbiased():
    chance, a, *_ = every_batch(grpo)
    shift = 1e-6 * np.eye(SIZE)
    slope = (expected(THETA + shift) - expected(THETA - shift)).T / 2e-6
    assert_allclose(np.tensordot(chance, a, 1), slope, atol=1e-9)


@cache
def sampled(estimator, step):
    """Effects from sampled batches, and those that the enumeration of all batches gives."""
    chance, a, *_ = every_batch(estimator)
    u = directions(estimator, step, 0.1)
    true = np.tensordot(chance, a, 1) @ np.tensordot(chance, u, 1).T / STD[:, None]
    random, found = default_rng(1), []
    for places in random.choice(len(chance), (600, 24), p=chance):
        given = np.einsum("fjd,bkd->fjbk", a[places], u[places])
        found.append(effect_of(given, STD, "ab", groups=24 * PROMPTS))
    values = np.array([np.column_stack([each.matrix, each.totals]) for each in found])
    errors = np.array([np.column_stack([each.errors, each.total_errors]) for each in found])
    return true, values, errors


BOTH = pytest.mark.parametrize("step", [sgd, adam])
EACH = pytest.mark.parametrize("estimator", [grpo, gdpo])


@BOTH
@EACH
def test_the_mean_effect_is_the_one_that_enumeration_gives(estimator, step):
    true, values, _ = sampled(estimator, step)
    z = (values.mean(axis=0) - true) / (values.std(axis=0, ddof=1) / np.sqrt(len(values)))
    assert np.all(np.abs(z) < 3.5)
    assert np.max(np.abs(true) / values.std(axis=0)) > 1  # the sampling could tell it from 0


@BOTH
@EACH
def test_the_jackknife_gives_the_spread_over_repetitions(estimator, step):
    _, values, errors = sampled(estimator, step)
    ratio = np.sqrt(np.mean(errors**2, axis=0)) / values.std(axis=0, ddof=1)
    assert np.all(np.abs(ratio - 1) < 0.2)


@BOTH
@EACH
def test_forks_of_one_step_approach_the_effect_as_the_learning_rate_falls(estimator, step):
    """A fork takes the step without one reward. Its difference is the effect, to first order."""
    chance, a, g, d = every_batch(estimator)
    slopes = np.tensordot(chance, a, 1)
    far = []
    for rate in (0.1, 0.01, 0.001):
        u = np.tensordot(chance, directions(estimator, step, rate), 1)
        given = np.broadcast_to((slopes @ u.T)[:, None], (3, 2, 3, 3))
        effect = effect_of(given, STD, "ab", groups=6)
        run = expected(THETA + step(g, rate))
        forks = expected(THETA + step(g[:, None] - d, rate))
        recorded = np.tensordot(chance, run[:, None] - forks, 1).T / STD[:, None]
        total = np.tensordot(chance, run - expected(THETA), 1) / STD
        ratio = np.column_stack([recorded, total]) / np.column_stack([effect.matrix, effect.totals])
        far.append(np.max(np.abs(ratio - 1)))
    assert far[2] < 0.01
    assert far[1] < far[0] / 5
    assert far[2] < far[1] / 5


def test_noise_is_not_called_effective():
    """300 experiments with three rewards of pure noise, 16 batches and 128 parameters."""
    experiments, batches, groups, samples, size = 300, 16, 8, 4, 128
    random = default_rng(0)
    noise = random.normal(size=(experiments * batches * groups, samples, 3))
    c = Coefficients.of(noise, [1, 1, 1], grpo)  # every group by itself
    rows = (c.gradient, c.presence, c.advantages[None])
    rows = np.concatenate(rows).reshape(7, experiments, batches, -1).astype(np.float32)
    own, unseen = [], 0
    for experiment in range(experiments):
        scores = random.standard_normal((batches, groups * samples, size), np.float32)
        vectors = np.einsum("cbi,bid->bcd", rows[:, experiment], scores, optimize=True)
        given = np.tensordot(vectors[:, :3], vectors[:, 3:], (2, 2)).astype(np.float64)
        effect = effect_of(given, np.ones(3), "abc", groups=512)
        own += effect.own.values()
        unseen += len(effect.unseen)
    values, errors = np.array(own).T
    effective = np.sum(values > effect.quantile * errors)
    assert effective <= stats.binom.ppf(0.999, len(own), 0.025)
    assert len(own) - unseen <= stats.binom.ppf(0.999, len(own), 0.05)
    # Neither a gradient nor a direction has a mean, so the jackknife counts the variance twice.
    assert 1.2 < np.sqrt(np.mean(errors**2)) / values.std() < 1.6


# ---- what is said


def effect(matrix, errors, groups=512, names=("noise", "brevity", "correctness")):
    matrix, errors = np.array(matrix, np.float64), np.array(errors, np.float64)
    count = len(matrix)
    totals = np.ones(count), np.ones(count)
    return Effect(tuple(names)[:count], groups, 2.0, matrix, errors, *totals, "std per step")


SEEN = effect(
    [[-0.0001, 0, 0.002], [0, 0.049, -0.009], [0.01, 0, 0.02]],
    [[0.00015, 1, 0.002], [1, 0.0045, 0.0005], [0.006, 1, 0.004]],
)


def test_each_fact_is_one_sentence():
    assert list(sentences(SEEN, np.array([0.6, 0.3, 0.1]), np.ones(3))) == [
        "noise: 60 % of the influence, but no effect on itself is seen "
        "(-0.0001 ± 0.0003 std per step, 512 groups)",
        "brevity moves fastest: +0.049 ± 0.009 std per step because it is rewarded",
        "correctness lowers brevity: -0.009 ± 0.001 std per step",
    ]


def test_a_reward_with_a_negative_weight_is_penalized():
    found = list(sentences(SEEN, np.array([0.6, 0.3, 0.1]), np.array([1.0, -1.0, 1.0])))
    assert "brevity moves fastest: +0.049 ± 0.009 std per step because it is penalized" in found


@pytest.mark.parametrize(
    ("error", "size"), [(0.0, "+40.0000 ± 0.0000"), (0.002, "+40.000 ± 0.004"), (9.0, "+40 ± 18")]
)
def test_an_effect_has_the_digits_of_its_margin(error, size):
    found = effect(np.diag([40, 0]), np.diag([error, 0]))
    (sentence,) = sentences(found, np.ones(2), np.ones(2))
    assert sentence == f"noise moves fastest: {size} std per step because it is rewarded"


@pytest.mark.parametrize("share", [0.049, NAN, -0.6])
def test_no_effect_is_no_news_for_a_reward_without_influence(share):
    found = list(sentences(SEEN, np.array([share, 0.3, 0.1]), np.ones(3)))
    assert [each.split()[0] for each in found] == ["brevity", "correctness"]


@pytest.mark.parametrize(("groups", "unseen"), [(511, ()), (512, ("noise",))])
def test_nothing_is_unseen_below_512_groups(groups, unseen):
    assert effect(SEEN.matrix, SEEN.errors, groups).unseen == unseen


@pytest.mark.parametrize(
    ("own", "error", "unseen"),
    [(1, 0.51, True), (1, 0.49, False), (-1, 0.51, True), (-1, 0.49, False), (0, 0, False)],
)
def test_an_effect_is_unseen_if_its_interval_contains_0(own, error, unseen):
    """Without spread or weight, both are 0, and nothing can be seen."""
    assert bool(effect([[own]], [[error]]).unseen) == unseen


def test_a_reward_lowers_another_one_if_the_whole_interval_is_below_0():
    matrix = [[-2, -0.9, 0.9], [-1.1, -2, 1], [-2, -1, -2]]
    found = effect(matrix, np.full((3, 3), 0.5))
    assert found.lowers == (("noise", "brevity"), ("noise", "correctness"))


@pytest.mark.parametrize(
    ("own", "error", "fastest"),
    [
        ([1.0, 0.1], [0.4, 0.1], "noise"),
        ([1.0, 0.3], [0.4, 0.1], None),
        ([0.1, -1.0], [0.1, 0.4], "brevity"),
        ([1.0, 0.9, 0.1], [0.1, 0.1, 0.1], None),
        ([1.0, NAN], [0.1, NAN], None),
        ([1.0], [0.1], None),
    ],
)
def test_the_fastest_reward_is_clearly_ahead_of_every_other(own, error, fastest):
    assert effect(np.diag(own), np.diag(error)).fastest == fastest


def test_the_numbers_can_be_written_as_json():
    found = json.loads(json.dumps(effect([[0.5]], [[NAN]]).as_dict()))
    assert found == {
        "names": ["noise"],
        "groups": 512,
        "quantile": 2.0,
        "matrix": [[0.5]],
        "errors": [[None]],
        "totals": [1.0],
        "total_errors": [1.0],
        "unit": "std per step",
    }
