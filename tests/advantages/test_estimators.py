"""One battery of contracts for every estimator."""

import subprocess
import sys

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.oracles import estimators as by_hand

from gdpo.advantages import ESTIMATORS, gdpo, grpo, grpo_no_std
from gdpo.errors import ConfigError, DataError

ALL = pytest.mark.parametrize("name", sorted(ESTIMATORS))
UNITLESS = pytest.mark.parametrize("name", ["gdpo", "grpo"])
WEIGHTS = np.array([1.0, 0.5])

# Eighths are exact in binary, so a shift or a scale by a power of two loses nothing.
eighths = st.integers(-72, 72).map(lambda i: i / 8)
rewards = arrays(np.float64, (3, 5, 2), elements=eighths)
rewards_with_gaps = arrays(np.float64, (3, 5, 2), elements=st.one_of(eighths, st.just(np.nan)))


@ALL
@given(r=rewards_with_gaps)
@example(r=np.full((3, 5, 2), np.nan))
def test_matches_the_formula_written_as_loops(name, r):
    expected = getattr(by_hand, name)(r.tolist(), WEIGHTS.tolist())
    np.testing.assert_allclose(ESTIMATORS[name](r, WEIGHTS), expected, rtol=1e-9, atol=1e-9)


@UNITLESS
@given(
    r=rewards,
    scale=st.sampled_from([2**-10, 1, 2**10]),
    shift=st.sampled_from([-1000, 0, 1000]),
)
def test_the_unit_of_all_rewards_together_does_not_matter(name, r, scale, shift):
    np.testing.assert_allclose(
        ESTIMATORS[name](scale * r + shift, WEIGHTS), ESTIMATORS[name](r, WEIGHTS), atol=1e-7
    )


@given(
    r=rewards,
    scale=st.sampled_from([1e-3, 2**-10, 1, 1e3]),
    shift=st.sampled_from([-1000, 0, 1000]),
)
def test_gdpo_does_not_depend_on_the_unit_of_one_reward(r, scale, shift):
    other = r.copy()
    other[..., 0] = scale * other[..., 0] + shift
    np.testing.assert_allclose(gdpo(other, WEIGHTS), gdpo(r, WEIGHTS), atol=1e-5)


@given(r=rewards, shift=st.sampled_from([-1000, 1000]))
def test_grpo_no_std_keeps_the_unit_and_forgets_the_shift(r, shift):
    np.testing.assert_allclose(
        grpo_no_std(8 * r + shift, WEIGHTS), 8 * grpo_no_std(r, WEIGHTS), atol=1e-9
    )


@ALL
@given(r=rewards_with_gaps, order=st.permutations(range(3)), samples=st.permutations(range(5)))
def test_order_does_not_matter(name, r, order, samples):
    shuffled = r[list(order)][:, list(samples)]
    expected = ESTIMATORS[name](r, WEIGHTS)[list(order)][:, list(samples)]
    np.testing.assert_allclose(ESTIMATORS[name](shuffled, WEIGHTS), expected, atol=1e-12)


@ALL
@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 8, 10, 12, 16])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_without_signal_gives_exactly_zero(name, size, unit, dtype):
    per_prompt = torch.rand(8, 1, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    r = (unit * per_prompt).expand(8, size, 2).contiguous()
    assert torch.count_nonzero(ESTIMATORS[name](r, torch.ones(2))) == 0


@ALL
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_noise_is_no_signal(name, dtype):
    """Sums of the same numbers in another order differ in the last digit, and mean nothing."""
    r = np.full((4, 6, 2), 0.3, dtype=dtype)
    r[:, ::2] = np.nextafter(dtype(0.3), dtype(1))
    assert np.count_nonzero(ESTIMATORS[name](r, WEIGHTS)) == 0


@ALL
def test_a_dead_group_beside_live_ones_gets_exactly_zero(name):
    r = np.random.default_rng(0).random((6, 7, 2))
    r[2] = [0.1, 0.7]
    a = ESTIMATORS[name](r, WEIGHTS)
    assert np.count_nonzero(a[2]) == 0
    assert np.all(a[[0, 1, 3, 4, 5]] != 0)


@ALL
def test_rewards_that_cancel_give_exactly_zero(name):
    """Two rewards with a constant sum pull apart with equal force."""
    first = np.array([[0.1, 0.4, 0.8, 0.35], [0.2, 0.9, 0.3, 0.15]])
    r = np.stack([first, 1 - first], axis=-1)
    assert np.count_nonzero(ESTIMATORS[name](r, [1.0, 1.0])) == 0


@ALL
def test_a_spread_far_above_rounding_counts_however_small(name):
    r = np.zeros((2, 4, 1))
    r[0, 0] = 1e-9
    r[1, 1] = 1e-300
    a = ESTIMATORS[name](r, [1.0])
    assert np.all(a[0, 0] > 0)
    assert a[1, 1] > 0


@ALL
@given(r=rewards, where=st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 1)))
def test_a_missing_reward_touches_nothing_but_its_own_group(name, r, where):
    if name == "gdpo":
        return  # its batch step sees every group; the next test covers it
    gap = r.copy()
    gap[where] = np.nan
    others = [p for p in range(3) if p != where[0]]
    a, b = ESTIMATORS[name](gap, WEIGHTS), ESTIMATORS[name](r, WEIGHTS)
    np.testing.assert_array_equal(a[others], b[others])
    assert np.all(np.isfinite(a))


@ALL
@given(r=rewards_with_gaps)
def test_no_missing_reward_makes_an_advantage_missing(name, r):
    a = ESTIMATORS[name](r, WEIGHTS)
    assert np.all(np.isfinite(a))
    assert np.all(a[np.isnan(r).all(axis=-1)] == 0)


@ALL
@given(r=rewards)
def test_padding_with_missing_rollouts_changes_nothing(name, r):
    padded = np.concatenate([r, np.full((3, 2, 2), np.nan)], axis=1)
    a = ESTIMATORS[name](padded, WEIGHTS)
    np.testing.assert_allclose(a[:, :5], ESTIMATORS[name](r, WEIGHTS), atol=1e-12)
    assert np.count_nonzero(a[:, 5:]) == 0


@ALL
@given(r=rewards_with_gaps)
def test_a_reward_of_weight_zero_is_as_good_as_absent(name, r):
    always_there = np.arange(15.0).reshape(3, 5, 1) * 1e6
    np.testing.assert_array_equal(
        ESTIMATORS[name](np.concatenate([r, always_there], axis=-1), [1.0, 0.5, 0.0]),
        ESTIMATORS[name](r, WEIGHTS),
    )


@ALL
def test_a_missing_reward_counts_as_average_and_not_as_zero(name):
    """Everyone got 1 where it applies: whom it does not apply to is no worse."""
    r = np.array([[[1.0, np.nan], [1, 1], [1, 1], [1, 1]]])
    assert np.count_nonzero(ESTIMATORS[name](r, [1.0, 1.0])) == 0


@ALL
@given(r=rewards, size=st.sampled_from([1.0, 1e9, 1e16]))
def test_a_constant_reward_however_large_takes_nothing_from_the_others(name, r, size):
    constant = np.full((3, 5, 1), size)
    np.testing.assert_array_equal(
        ESTIMATORS[name](np.concatenate([r, constant], axis=-1), [1.0, 0.5, 1.0]),
        ESTIMATORS[name](r, WEIGHTS),
    )


@ALL
def test_a_group_of_one_gets_zero(name):
    r = np.random.default_rng(0).random((3, 1, 2))
    assert np.count_nonzero(ESTIMATORS[name](r, WEIGHTS)) == 0


@ALL
@given(r=rewards)
def test_float32_is_as_good_as_float64_to_five_digits(name, r):
    exact = ESTIMATORS[name](r + 1000, WEIGHTS)
    single = ESTIMATORS[name](torch.tensor(r + 1000, dtype=torch.float32), torch.tensor(WEIGHTS))
    assert single.dtype == torch.float32
    scale = np.abs(exact).max() + 1e-12
    np.testing.assert_allclose(single.numpy() / scale, exact / scale, atol=1e-5)


@ALL
def test_numpy_computes_in_float64_whatever_comes_in(name):
    r = np.random.default_rng(0).random((16, 8, 2)).astype(np.float32)
    exact = ESTIMATORS[name](r.astype(np.float64), WEIGHTS)
    np.testing.assert_array_equal(ESTIMATORS[name](r, WEIGHTS), exact.astype(np.float32))


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rewards_keep_their_signal(name, dtype):
    r = torch.tensor([[[0.9], [1.0]], [[0.5], [0.5]]], dtype=dtype)
    a = ESTIMATORS[name](r, torch.ones(1))
    assert a.dtype == dtype
    assert a[0, 0] < 0 < a[0, 1]
    assert torch.count_nonzero(a[1]) == 0


@ALL
def test_the_result_is_the_callers_kind_of_array(name):
    r = np.random.default_rng(0).random((4, 4, 2))
    expected = ESTIMATORS[name](r, WEIGHTS)
    single = ESTIMATORS[name](r.astype(np.float32), WEIGHTS)
    strict = ESTIMATORS[name](array_api_strict.asarray(r), array_api_strict.asarray(WEIGHTS))
    tensor = ESTIMATORS[name](torch.tensor(r), torch.tensor(WEIGHTS))
    assert single.dtype == np.float32
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float64
    np.testing.assert_allclose(single, expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(strict), expected, rtol=1e-12)
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-12)


@ALL
def test_whole_numbers_are_rewards_too(name):
    r = np.array([[[0, 1], [1, 1]], [[2, 0], [1, 3]]])
    np.testing.assert_array_equal(ESTIMATORS[name](r, [1, 1]), ESTIMATORS[name](r * 1.0, [1, 1]))


@ALL
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_an_infinite_reward_is_an_error_that_names_it_and_its_place(name, bad):
    r = np.zeros((3, 4, 2))
    r[1, 2, 0] = bad
    with pytest.raises(DataError, match=r"reward 0 is -?inf at prompt 1, sample 2"):
        ESTIMATORS[name](r, WEIGHTS)


@ALL
@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], [1.0, np.nan], [np.inf, 1.0]])
def test_weights_that_do_not_fit_are_an_error(name, weights):
    with pytest.raises(ConfigError, match="weight"):
        ESTIMATORS[name](np.zeros((2, 4, 2)), weights)


def test_an_array_of_the_wrong_rank_is_an_error():
    """In a process of its own: under test, the annotations are checked first."""
    code = "import numpy as np, gdpo; gdpo.gdpo(np.zeros((8, 2)), [1.0, 1.0])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "DataError: rewards must have the axes [prompt, sample, reward]" in result.stderr


def test_gdpo_has_unit_scale_however_many_rewards_there_are():
    rng = np.random.default_rng(0)
    for k in (1, 2, 5, 20):
        a = gdpo(rng.random((64, 8, k)), np.ones(k))
        assert abs(a.mean()) < 1e-12
        assert abs(a.std(ddof=1) - 1) < 1e-12


def test_gdpo_tells_apart_what_grpo_does_not():
    """The paper's Figure 2: two samples, two binary rewards, sums (0, 1) and (0, 2)."""
    r = np.array([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]])
    assert np.ptp(np.abs(grpo(r, [1, 1]))) < 1e-12
    a = gdpo(r, [1, 1])
    np.testing.assert_allclose(a[1], 2 * a[0], rtol=1e-12)


def test_weights_act_on_normalized_rewards_in_gdpo_and_on_raw_ones_in_grpo():
    rng = np.random.default_rng(0)
    r = rng.random((32, 8, 2)) * [1, 100]

    def shares(a):
        return [
            np.corrcoef(a.ravel(), (r - r.mean(1, keepdims=True))[..., k].ravel())[0, 1]
            for k in (0, 1)
        ]

    small, large = shares(grpo(r, [1, 1]))
    assert small < 0.2 < 0.95 < large
    first, second = shares(gdpo(r, [1, 1]))
    assert abs(first - second) < 0.1


@pytest.mark.parametrize("shape", [(0, 4, 2), (3, 0, 2), (3, 4, 0)])
@ALL
def test_an_empty_array_is_an_error(name, shape):
    with pytest.raises(DataError, match="nothing to compare"):
        ESTIMATORS[name](np.zeros(shape), [1.0] * shape[2])
