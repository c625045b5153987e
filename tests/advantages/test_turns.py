"""Advantages per turn: the formulas as loops, the contracts, and what they are at one turn.

tests/testing/test_turn_estimators.py compares their mean gradient with the true one.
"""

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from tests.oracles import turns as by_hand
from tests.refusals import config_error, data_error

from gdpo.advantages import TURN_ESTIMATORS, turn_broadcast, turn_gdpo
from gdpo.advantages import arrays as edge

ALL = pytest.mark.parametrize("estimator", list(TURN_ESTIMATORS.values()))
W = [1.0, 0.5]


def agree(a, b, atol=1e-12):
    assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12, atol=atol)


def drawn(seed, shape=(3, 4, 5, 2), gaps=0.0):
    """Rewards in eighths, which have no rounding error, and numbers of turns."""
    rng = default_rng(seed)
    r = rng.integers(-16, 16, shape, endpoint=True) / 8
    r[rng.random(shape) < gaps] = np.nan
    return r, rng.integers(0 if gaps else 1, shape[2], shape[:2], endpoint=True)


@st.composite
def batches(draw):
    shape = tuple(draw(st.integers(1, most)) for most in (3, 5, 5, 3))
    r, turns = drawn(draw(st.integers(0, 2**16)), shape, draw(st.sampled_from([0.0, 0.1])))
    if draw(st.booleans()):
        r = np.sign(r)  # ties and turns without signal
    weights = draw(st.lists(st.sampled_from([1.0, 0.5, 0.0, -1.0]), min_size=shape[3]))
    return r, turns, weights[: shape[3]]


# The formula


@ALL
@given(batch=batches(), fixed=st.booleans(), data=st.data())
def test_the_advantages_are_those_of_the_loops(estimator, batch, fixed, data):
    r, turns, w = batch
    options = {}
    if fixed:
        options["scales"] = data.draw(
            st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=len(w), max_size=len(w))
        )
    elif data.draw(st.booleans()):
        options["noise_floor"] = [0.7] * len(w)
    if estimator is not turn_broadcast:
        options["outcome"] = data.draw(
            st.lists(st.booleans(), min_size=len(w), max_size=len(w)) | st.none()
        )
    got = estimator(r, w, turns=turns, **options)
    wanted = getattr(by_hand, estimator.__name__)(r.tolist(), w, turns=turns.tolist(), **options)
    agree(got, wanted, atol=1e-9)


@ALL
def test_weights_per_prompt_are_those_of_the_loops(estimator):
    r, turns = drawn(0, gaps=0.05)
    w = [[1.0, 2.0], [0.5, np.nan], [0.0, 1.0]]
    wanted = getattr(by_hand, estimator.__name__)(r.tolist(), w, turns=turns.tolist())
    agree(estimator(r, np.array(w), turns=turns), wanted, atol=1e-9)


# No signal


def silent():
    """Batches in which nobody differs, in numbers that are not exact in binary."""
    rng = default_rng(0)
    for dtype in (np.float32, np.float64):
        same = np.repeat(rng.random((4, 1, 5, 2)), 6, axis=1).astype(dtype)
        yield "the same at each turn, all go equally far", same, np.full((4, 6), 5)
        first = np.zeros((4, 6, 5, 2), dtype)
        first[:, :, 0] = [0.1, 0.7]
        yield "everybody is paid at the first turn", first, rng.integers(1, 6, (4, 6))
        jitter = np.full((4, 6, 5, 2), 0.3, dtype)
        jitter[:, ::2] = np.nextafter(dtype(0.3), dtype(1))
        yield "only rounding", jitter, np.full((4, 6), 5)
        last, turns = np.zeros((4, 6, 5, 2), dtype), rng.integers(1, 6, (4, 6))
        np.put_along_axis(last, turns[:, :, None, None] - 1, dtype(0.1), axis=2)
        yield "the same outcome for all", last, turns
        orders = np.array([rng.permutation([0.1, 0.2, 0.3, 0.7]) for _ in range(24)])
        yield "one total", orders.reshape(4, 6, 4, 1).astype(dtype), np.full((4, 6), 4)


@pytest.mark.parametrize("to_array", [np.asarray, torch.from_numpy, array_api_strict.asarray])
def test_without_signal_every_advantage_is_exactly_zero(to_array):
    for what, r, turns in silent():
        w = [1.0, 0.5][: r.shape[3]]
        if what == "one total":
            a = turn_broadcast(to_array(r), w, turns=to_array(turns))
        else:
            a = turn_gdpo(to_array(r), w, turns=to_array(turns))
        assert np.count_nonzero(np.asarray(a)) == 0, what
        if what == "the same outcome for all":
            a = turn_gdpo(to_array(r), w, turns=to_array(turns), outcome=[True, False])
            assert np.count_nonzero(np.asarray(a)) == 0, what


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_and_late_differences_count(dtype):
    r = np.zeros((2, 3, 2, 1), dtype)
    r[:, :, 0] = 1000.1
    r[0, 0, 1], r[1, 1, 1] = 1e-9, 1e-30
    a = turn_gdpo(r, [1], turns=np.full((2, 3), 2))
    if dtype is np.float32:  # too coarse for the totals to differ
        assert np.all(a[:, :, 0] == 0)
    assert a[0, 0, 1] > a[0, 1, 1]
    assert a[1, 1, 1] > a[1, 0, 1]


@ALL
def test_a_group_without_signal_gets_zero_beside_others(estimator):
    r, turns = drawn(3)
    r[1], turns[1] = 0.0, 3
    r[1, :, 0] = 0.3
    a = estimator(r, W, turns=turns)
    assert np.any(a[0])
    assert not np.any(a[1])


@ALL
def test_a_group_of_one_gets_zero(estimator):
    r, _ = drawn(0, (3, 1, 4, 2))
    assert not np.any(estimator(r, W, turns=[[4], [2], [1]]))
    two = np.concatenate([r, r + 1], axis=1)  # one of the two is padding
    assert not np.any(estimator(two, W, turns=[[4, 0], [2, 0], [0, 1]]))


# Shift, scale, order


@ALL
@given(seed=st.integers(0, 2**16))
def test_the_unit_of_a_reward_and_the_order_of_rollouts_have_no_effect(estimator, seed):
    r, turns = drawn(seed, gaps=0.05)
    a = estimator(r, W, turns=turns)
    agree(estimator(r * [1e3, 2.0**-20], W, turns=turns), a, atol=1e-9)
    agree(estimator(r[..., ::-1], W[::-1], turns=turns), a, atol=1e-9)
    rng = default_rng(seed)
    p, s = rng.permutation(3), rng.permutation(4)
    moved = estimator(r[p][:, s], W, turns=turns[p][:, s])
    agree(moved, a[p][:, s], atol=1e-9)


# Ragged, missing


@ALL
@given(seed=st.integers(0, 2**16))
def test_what_lies_beyond_the_last_turn_is_ignored(estimator, seed):
    r, turns = drawn(seed, gaps=0.05)
    a = estimator(r, W, turns=turns)
    beyond = np.arange(5) >= turns[:, :, None]
    assert not np.any(a[beyond])
    for junk in (np.nan, np.inf, -1e300):
        filled = np.where(beyond[..., None], junk, r)
        assert_array_equal(estimator(filled, W, turns=turns), a)
    wider = np.pad(r, ((0, 1), (0, 2), (0, 3), (0, 0)), constant_values=np.inf)
    counts = np.pad(turns, ((0, 1), (0, 2)))
    got = estimator(wider, W, turns=counts)
    agree(got[:-1, :-2, :-3], a, atol=1e-9)
    assert np.count_nonzero(got) == np.count_nonzero(a)


@ALL
@given(seed=st.integers(0, 2**16), turn=st.integers(0, 4))
def test_a_missing_reward_leaves_out_the_whole_rollout(estimator, seed, turn):
    r, turns = drawn(seed)
    turns[0, 1] = 5
    r[0, 1, turn, 0] = np.nan
    alone = estimator(r[..., :1], [1], turns=turns)
    assert not np.any(alone[0, 1])
    without = turns.copy()
    without[0, 1] = 0
    agree(alone, estimator(r[..., :1], [1], turns=without), atol=1e-9)
    other = estimator(r[..., 1:], [1], turns=turns)
    agree(estimator(r, [0, 1], turns=turns), other)


# Array libraries and precision


@ALL
@pytest.mark.parametrize("gaps", [0.0, 0.05])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_library_gives_the_same(estimator, dtype, gaps, monkeypatch):
    r, turns = drawn(0, (6, 5, 4, 3), gaps)
    r = r.astype(dtype)
    w = [1.0, 0.5, 2.0]
    options = {} if estimator is turn_broadcast else {"outcome": [False, True, False]}
    wanted = estimator(r.astype(np.float64), w, turns=turns, **options)
    for small in (edge._SMALL, 0):  # 0: torch computes itself
        monkeypatch.setattr(edge, "_SMALL", small)
        for to_array in (np.asarray, torch.from_numpy, array_api_strict.asarray):
            a = estimator(to_array(r), to_array(np.array(w)), turns=to_array(turns), **options)
            assert type(a) is type(to_array(r))
            assert a.dtype == to_array(r).dtype
            agree(np.asarray(a), wanted, atol=1e-5 if dtype is np.float32 else 1e-12)


def test_numpy_computes_in_float64_and_whole_numbers_are_accepted():
    r, turns = drawn(0)
    single = (r + 1000).astype(np.float32)
    exact = turn_gdpo(single.astype(np.float64), W, turns=turns)
    assert_array_equal(turn_gdpo(single, W, turns=turns), exact.astype(np.float32))
    whole = np.round(r).astype(int)
    wanted = turn_gdpo(whole * 1.0, W, turns=turns)
    agree(turn_gdpo(whole, W, turns=turns), wanted)
    agree(turn_gdpo(torch.from_numpy(whole), W, turns=turns), wanted, atol=1e-6)
    agree(turn_gdpo(array_api_strict.asarray(whole), W, turns=turns), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_turns_are_counted_exactly_beside_rewards_in_half_precision(dtype):
    r = torch.zeros((1, 2, 5000, 1), dtype=dtype)
    r[0, 0, 4098] = 1.0
    a = turn_gdpo(r, [1], turns=[[4099, 4097]])
    assert a.dtype == dtype
    assert a[0, 0, 4098] > 0
    assert torch.count_nonzero(a) == 4099 + 4097


@ALL
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_very_small_and_very_large_rewards_work(estimator, size):
    r, turns = drawn(0)
    agree(estimator(r * size, W, turns=turns), estimator(r, W, turns=turns), atol=1e-9)


@ALL
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1e307), (torch.float32, 1e36)])
def test_rewards_whose_returns_overflow_are_an_error_and_not_zero(estimator, dtype, size):
    r = torch.tensor(default_rng(0).random((30, 8, 40, 1)) * size, dtype=dtype)
    with data_error(rf"too large .*{dtype}|too large .*float64"):
        estimator(r, [1.0], turns=torch.full((30, 8), 40))


def test_the_arguments_stay_as_they_are():
    r, turns = drawn(0, gaps=0.1)
    before = r.copy(), turns.copy()
    turn_gdpo(r, W, turns=turns)
    assert_array_equal(r, before[0])
    assert_array_equal(turns, before[1])


# Refusals


def test_an_infinite_reward_is_an_error_that_names_its_place():
    r, turns = drawn(0)
    turns[1, 2] = 4
    r[1, 2, 3, 0] = -np.inf
    with data_error(r"reward 0 .*-inf .*prompt 1, sample 2, turn 3"):
        turn_gdpo(r, W, turns=turns)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"turns": np.full((3, 4), 1.5)}, r"turns .*0 to 5.* got 1\.5"),
        ({"turns": np.full((3, 4), 6)}, "turns .*0 to 5.* got 6"),
        ({"turns": np.full((3, 4), -1)}, "turns"),
        ({"turns": np.full((3, 4), np.nan)}, "turns"),
        ({"turns": [[1, 2], [3]]}, r"turns .*\[prompt, sample\]"),
        ({"outcome": [True]}, "outcome .*2 rewards"),
        ({"outcome": [True, False, True]}, "outcome .*2 rewards"),
        ({"scales": [1.0]}, "scales"),
        ({"scales": [1.0, 0.0]}, "scales .*above 0"),
        ({"scales": [1.0, np.nan]}, "scales .*above 0"),
        ({"scales": [1, 1], "noise_floor": [1, 1]}, "scales .*noise_floor"),
        ({"noise_floor": [-1, 1]}, "noise_floor"),
        ({"max_advantage": 0}, "max_advantage"),
        ({"weights": [1.0]}, "weights"),
        ({"weights": [1.0, np.nan]}, "weights"),
        ({"weights": [np.inf, 1.0]}, "weights"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(options, named):
    r, turns = drawn(0)
    with config_error(named):
        turn_gdpo(r, **{"weights": W, "turns": turns, **options})
