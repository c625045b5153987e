"""Options, limits and relations of single estimators."""

import inspect
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from tests.advantages.claims import SUBJECTS, options_of
from tests.checkout import python
from tests.refusals import config_error, data_error

from gdpo.advantages import arrays as edge
from gdpo.advantages import (
    constrained_grpo,
    corr_grpo,
    dara_symmetric,
    dvao,
    gd2po_hard,
    gd2po_snr,
    gdpo,
    gdpo_decorrelated,
    gdpo_leave_one_out,
    grpo,
    grpo_batch_norm,
    grpo_batch_std,
    grpo_no_std,
    mo_grpo,
    per_reward_batch_std,
    rloo,
    rvpo,
    sa_mrpo,
    saw,
)
from gdpo.advantages.stages import SAMPLES, centre, spread_of_others

ALL = pytest.mark.parametrize("name", sorted(SUBJECTS))
WEIGHTS = np.array([1.0, 0.5])

# Eighths are exact in binary, so a shift or a scale by a power of two loses nothing.
eighths = st.integers(-72, 72).map(lambda i: i / 8)
rewards = arrays(np.float64, (3, 5, 2), elements=eighths)


def run(name, r, w, **more):
    return SUBJECTS[name][0](r, w, **(options_of(name, np.asarray(r)) | more))


# Precision, and what comes in


@ALL
def test_numpy_computes_in_float64_whatever_comes_in(name):
    r = default_rng(0).random((16, 8, 2)).astype(np.float32)
    exact = run(name, r.astype(np.float64), WEIGHTS)
    assert_array_equal(run(name, r, WEIGHTS), exact.astype(np.float32))


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rewards_keep_their_signal(name, dtype):
    r = torch.tensor([[[0.9], [1.0]], [[0.5], [0.5]]], dtype=dtype)
    options = options_of(name, np.zeros((2, 2, 1)))  # NumPy has no bfloat16
    a = SUBJECTS[name][0](r, torch.ones(1), **options)
    assert a.dtype == dtype
    assert a[0, 0] < a[0, 1]


WRONG_SHAPES = {
    "gdpo(zeros((8, 2)), [1.0, 1.0])": ("DataError", "(8, 2)", "[prompt, sample, reward]"),
    "gdpo(zeros((3, 5, 1)), [1.0], token_counts=ones((5, 3)))": (
        *("ConfigError", "token_counts", "(3, 5) [prompt, sample]", "(5, 3)"),
    ),
    "turn_gdpo(zeros((8, 2, 1)), [1.0], turns=ones((8, 2)))": ("DataError", "(8, 2, 1)", "turn"),
    "turn_gdpo(zeros((8, 2, 0, 1)), [1.0], turns=ones((8, 2)))": ("DataError", "(8, 2, 0, 1)"),
    "turn_gdpo(zeros((8, 2, 3, 1)), [1.0], turns=ones((2, 8)))": (
        *("ConfigError", "turns", "(8, 2)"),
    ),
}


def test_an_array_of_the_wrong_shape_is_an_error():
    """Runs in a new process, because under pytest the annotations are checked first."""
    code = f"""
from numpy import ones, zeros
from gdpo.advantages import gdpo, turn_gdpo
for call in {list(WRONG_SHAPES)}:
    try:
        eval(call)
    except Exception as error:
        print(type(error).__name__, error)
"""
    result = python("-c", code)
    for named, error in zip(WRONG_SHAPES.values(), result.stdout.splitlines(), strict=True):
        assert all(word in error for word in named), error


FIRST = np.array([[0.1, 0.4, 0.8, 0.35], [0.2, 0.9, 0.3, 0.15]])
NORMALIZED = [grpo, grpo_batch_std, grpo_batch_norm, gdpo, dara_symmetric, gdpo_decorrelated]


@pytest.mark.parametrize(
    ("estimator", "dtype"),
    [(e, dtype) for e in NORMALIZED for dtype in (np.float32, np.float64)]
    + [(e, np.float64) for e in (grpo_no_std, rloo, mo_grpo, per_reward_batch_std, dvao)],
)
def test_rewards_that_cancel_give_exactly_zero(estimator, dtype):
    """Two rewards with a constant sum pull apart with equal force."""
    first = FIRST.astype(dtype)
    r = torch.tensor(np.stack([first, 1 - first], axis=-1))
    assert torch.count_nonzero(estimator(r, [1.0, 1.0])) == 0


@pytest.mark.parametrize("estimator", [grpo, grpo_batch_norm, gdpo])
def test_rewards_that_cancel_up_to_their_own_rounding_give_exactly_zero(estimator):
    """At 1000, float32 has steps of 6e-5: the sum of the two varies by as much, for nothing."""
    r = np.stack([1000 + FIRST, 300 - FIRST], axis=-1).astype(np.float32)
    assert np.ptp(r.astype(float).sum(axis=-1)) > 1e-5
    assert torch.count_nonzero(estimator(torch.tensor(r), [1.0, 1.0])) == 0


@pytest.mark.parametrize("estimator", [gdpo, rvpo, gdpo_decorrelated, grpo_batch_norm])
@pytest.mark.parametrize("weights", [[1, 1], [1, 5]])
def test_jitter_at_the_edge_of_rounding_does_not_silence_a_clean_reward(estimator, weights):
    rng = default_rng(0)
    clean = rng.integers(0, 2, (16, 8)).astype(float)
    sign = rng.choice([-1.0, 1.0], (16, 8))
    for jitter in np.geomspace(1e-7, 1e-4, 30):
        r = torch.tensor(np.stack([clean, 1 + jitter * sign], axis=-1), dtype=torch.float32)
        assert torch.max(torch.abs(estimator(r, weights))) > 0.5, jitter


def test_the_order_of_samples_does_not_decide_what_is_rounding():
    first = np.array([0, 1000.1, 1000.4, 1000.8, 1000.35], np.float32)
    r = np.stack([first, np.float32(0.7) - first], axis=-1)[None]
    padded = np.concatenate([r, np.full((1, 1, 2), np.nan, np.float32)], axis=1)
    for batch in (r, r[:, ::-1], padded):
        assert np.count_nonzero(grpo(batch, [1, 1])) == 0


def test_a_reward_of_weight_zero_lends_no_rounding_error():
    rng = default_rng(0)
    jitter = 1 + 40 * 2.2e-16 * rng.choice([-1.0, 1.0], (4, 8, 1))
    r = np.concatenate([rng.random((4, 8, 1)), jitter], axis=-1)
    assert_array_equal(rvpo(r, [1, 0]), rvpo(r[..., :1], [1]))


def test_rewards_or_advantages_out_of_range_are_an_error():
    with data_error(r"range of torch\.float16"):
        grpo_no_std(torch.tensor([[[6e4], [-6e4]]], dtype=torch.float16), [2])
    with data_error("too large"):
        gdpo(torch.tensor([[[3e38], [-3e38]]], dtype=torch.float32).repeat(9000, 1, 1), [1])
    assert gdpo(torch.tensor([[[3e38], [-3e38]]], dtype=torch.float32), [1])[0, 0] > 0


# Leave-one-out


def spreads_of_others(r):
    return np.asarray(spread_of_others(centre(edge.rounded(r), over=SAMPLES)))


@pytest.mark.parametrize("size", [3, 4, 5, 8, 9, 37])
@pytest.mark.parametrize("odd", [0.7, 1e6, -1e12])
def test_leave_one_out_takes_no_rounding_noise_for_the_spread_of_others(size, odd):
    """The std of equal samples is exactly 0, wherever the different sample is."""
    r = np.full((size + 2, size, 1), 0.3)
    r[:, 1::2] = 0.1 + 0.2  # the next number
    r[range(size), range(size), 0] = odd
    r[size] = 1e20
    spreads = spreads_of_others(r)[..., 0]
    assert not np.diagonal(spreads).any()
    assert not spreads[size:].any()
    assert (spreads[:size] > 0).sum() == size * (size - 1)


@pytest.mark.parametrize("odd", [0.0, 1e9])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 37])
def test_leave_one_out_is_exact_in_groups_of_any_size_and_next_to_a_dominating_sample(size, odd):
    r = default_rng(size).random((3, size, 2))
    r[0, size // 2] += odd
    r[1, ::5, 0] = np.nan
    spreads = spreads_of_others(r)
    for prompt, sample, k in np.ndindex(r.shape):
        others = np.delete(r[prompt, :, k], sample)
        others = others[~np.isnan(others)]
        expected = np.std(others, ddof=1) if len(others) > 1 else 0.0
        assert_allclose(spreads[prompt, sample, k], expected, rtol=1e-5)


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1e-3, 1.0])
def test_leave_one_out_counts_no_rounding_error_where_a_reward_is_missing(unit):
    """The third reward has weight 0; of the others, few samples have both."""
    nan = np.nan
    r = [[1, nan, 0.4], [nan] * 3, [nan] * 3, [nan, 1, nan], [0, nan, nan], [nan] * 3]
    single = np.float32(unit) * np.array([r], dtype=np.float32)
    advantages = gdpo_leave_one_out(single, [0.5, 1, 0])
    assert_allclose(advantages, [[1, 0, 0, 0, -1, 0]], atol=1e-6)


def test_leave_one_out_needs_memory_for_some_copies_of_the_rewards_only():
    r = default_rng(0).random((1, 4000, 3))
    tracemalloc.start()
    gdpo_leave_one_out(r, [1, 1, 1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * r.nbytes


# Options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mo_grpo", {"noise_floor": [0.5, 4.0]}),
        ("gd2po_hard", {"threshold": 0.5}),
        ("gd2po_snr", {"threshold": 1.0}),
        ("dara_symmetric", {"max_boost": 1.1}),
        ("dara_asymmetric", {"max_boost": 1.1}),
        ("sa_mrpo", {"low": [-9, -9], "high": [9, 12], "gamma": 2.0}),
        ("rvpo", {"sharpness": 3.0}),
        ("corr_grpo", {"epsilon": 0.1}),
        ("gdpo_decorrelated", {"shrinkage": 0.5}),
    ],
)
@given(r=rewards)
def test_an_option_does_what_the_formula_says(name, options, r):
    estimator, oracle, *_ = SUBJECTS[name]
    r[0, :, 0] = 1.0  # a boost is for a reward that varies in fewer groups
    wanted = oracle(r.tolist(), WEIGHTS.tolist(), **options)
    assert_allclose(estimator(r, WEIGHTS, **options), wanted, rtol=1e-9, atol=1e-9)


def takes(option):
    """Run a test for each subject that has this option."""
    names = [n for n in SUBJECTS if option in inspect.signature(SUBJECTS[n][0]).parameters]
    return pytest.mark.parametrize("name", names)


@takes("noise_floor")
def test_a_noise_floor_below_every_spread_changes_nothing(name):
    r = default_rng(0).random((6, 8, 2))
    assert_array_equal(run(name, r, WEIGHTS, noise_floor=[0.01, 0.01]), run(name, r, WEIGHTS))


@takes("noise_floor")
def test_a_noise_floor_holds_down_a_reward_that_is_only_noise(name):
    """Return a constant reward with 0.1 % jitter, and a binary one."""
    rng = default_rng(0)
    jitter = 0.5 + 0.001 * rng.random((64, 8))
    r = np.stack([np.round(rng.random((64, 8))), jitter], axis=-1)
    # gd2po_hard counts signs, and even noise has one.
    more = {"threshold": 0.1} if name == "gd2po_hard" else {}

    def influence(a):
        return abs(np.corrcoef(a.ravel(), (jitter - jitter.mean(1, keepdims=True)).ravel())[0, 1])

    without = influence(run(name, r, [1, 1], **more))
    held = influence(run(name, r, [1, 1], noise_floor=[0, 0.05], **more))
    assert held < 0.12
    assert held <= without + 0.01


@takes("max_advantage")
def test_a_cap_cuts_what_is_larger_and_nothing_else(name):
    r = default_rng(0).random((6, 8, 2))
    plain = run(name, r, WEIGHTS)
    cap = float(np.median(np.abs(plain)))
    assert_array_equal(run(name, r, WEIGHTS, max_advantage=cap), np.clip(plain, -cap, cap))


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (gdpo, {"noise_floor": [1.0]}, "noise_floor"),
        (gdpo, {"noise_floor": [-1.0, 0.0]}, "noise_floor .*-1"),
        (gdpo, {"noise_floor": [np.inf, 0.0]}, "finite"),
        (gdpo, {"max_advantage": 0}, "max_advantage"),
        (gdpo, {"token_counts": -np.ones((3, 5))}, "token_counts"),
        (gdpo_decorrelated, {"power": 2}, "power"),
        (gdpo_decorrelated, {"shrinkage": 0}, "shrinkage"),
        (corr_grpo, {"epsilon": 0}, "epsilon"),
        (gd2po_hard, {"threshold": -1}, "threshold"),
        (gd2po_snr, {"threshold": 2}, "threshold"),
        (rvpo, {"sharpness": 0}, "sharpness"),
        (rvpo, {"weights": [1, -1]}, "negative"),
        (dara_symmetric, {"max_boost": 0.5}, "max_boost"),
        (sa_mrpo, {"low": [0, np.nan], "high": [1, 1]}, "low .*reward 1"),
        (sa_mrpo, {"low": [0, 1], "high": [1, 1]}, "high .*low"),
        (sa_mrpo, {"low": [0, 0], "high": [1, 1], "gamma": -1}, "gamma"),
        (saw, {"low": None}, "low .*reward 0"),
        (constrained_grpo, {"multipliers": [-1, np.nan]}, "multipliers .*-1"),
    ],
)
def test_an_option_out_of_range_is_an_error_that_names_it(estimator, options, message):
    r = default_rng(0).random((3, 5, 2))
    with config_error(message):
        estimator(r, **{"weights": WEIGHTS, **options})


@pytest.mark.parametrize("low", [0.7, 1 / 3, -0.1])
def test_rewards_at_their_lowest_value_are_not_below_it(low):
    assert np.count_nonzero(saw(np.full((3, 5, 1), low), [1], low=[low])) == 0
    for prompts in (3, 3000):  # computed in float64, and in their own precision
        single = torch.full((prompts, 5, 1), low, dtype=torch.float32)
        assert torch.count_nonzero(saw(single, [1], low=[low])) == 0


def test_a_reward_of_weight_zero_may_lie_below_its_range():
    assert saw(np.array([[[0.0, -5.0], [1.0, -5.0]]]), [1, 0], low=[0, 0])[0, 1] > 0


def test_a_mean_below_the_declared_range_is_an_error():
    with data_error(r"reward 1 .*lowest value 0"):
        saw(np.array([[[0.0, -1.0], [1.0, -2.0]]]), [1, 1], low=[0, 0])


def test_a_small_tensor_gives_what_a_large_one_gives(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    r = torch.rand(16, 8, 3, generator=generator)
    small = gdpo(r, torch.ones(3))
    assert small.dtype == torch.float32
    monkeypatch.setattr(edge, "_SMALL", 0)
    torch.testing.assert_close(gdpo(r, torch.ones(3)), small, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("small", [0, 8192])
def test_tensors_keep_their_dtype_and_advantages_are_constants(small, monkeypatch):
    monkeypatch.setattr(edge, "_SMALL", small)
    r = torch.rand(4, 8, 2, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert gdpo(r.to(dtype), [1, 1]).dtype == dtype
    assert gdpo((10 * r).to(torch.int64), [1, 1]).dtype == torch.float32
    assert not gdpo(r.requires_grad_(), torch.ones(2, requires_grad=True)).requires_grad
