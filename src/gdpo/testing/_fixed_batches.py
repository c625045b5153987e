"""The part of an estimator's contract that is checked on batches written down here."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gdpo.errors import ConfigError, DataError
from gdpo.testing._subject import Subject, check_same, check_zero

_SIZES = (2, 3, 5, 6, 7, 8, 10, 12, 16)

_MAGNITUDES = (1e-30, 1e-10, 1e10, 1e30)

ToArray = Callable[[Any], Any]
"""Makes a library's array of a NumPy one, of the same dtype."""


def check_fixed_batches(subject: Subject, to_array: ToArray = np.asarray) -> None:
    """Raise an AssertionError if the estimator breaks its contract on one of these batches."""
    for check in (
        _no_signal,
        _rounding_noise,
        _dead_group,
        _group_of_one,
        _missing_is_average,
        _small_spread,
        _magnitudes,
        _whole_numbers,
        _kind_of_array,
        _single_precision,
        _refusals,
    ):
        check(subject, to_array)


def _batch(shape: tuple[int, ...] = (4, 6, 2), seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape)


def _no_signal(subject: Subject, to_array: ToArray) -> None:
    for dtype in (np.float32, np.float64):
        for size in _SIZES:
            for unit in (1e-3, 1.0, 100.0, 1e4):
                per_prompt = (unit * _batch((8, 1, 2))).astype(dtype)
                r = np.ascontiguousarray(np.broadcast_to(per_prompt, (8, size, 2)))
                what = f"a batch without signal, {size} samples, {np.dtype(dtype)}"
                check_zero(subject(to_array(r), [1.0, 1.0], like=r), of=r, what=what)


def _rounding_noise(subject: Subject, to_array: ToArray) -> None:
    """Sums of the same numbers in another order differ in the last digit, and mean nothing."""
    for dtype in (np.float32, np.float64):
        r = np.full((4, 6, 2), 0.3, dtype=dtype)
        r[:, ::2] = np.nextafter(dtype(0.3), dtype(1))
        with_gap = r.copy()
        with_gap[1, 3, 0] = np.nan
        for batch, what in ((r, "rounding noise"), (with_gap, "rounding noise beside a gap")):
            check_zero(subject(to_array(batch), [1.0, 0.5], like=batch), of=batch, what=what)


def _dead_group(subject: Subject, to_array: ToArray) -> None:
    if not subject.claims.dead_groups:
        return
    r = _batch((6, 7, 2))
    r[2] = [0.1, 0.7]
    a = np.asarray(subject(to_array(r), [1.0, 0.5], like=r))
    check_zero(a[2], of=r, what="a group without signal beside others")
    assert np.all(np.any(a[[0, 1, 3, 4, 5]] != 0, axis=1)), "a group with signal gets only 0"


def _group_of_one(subject: Subject, to_array: ToArray) -> None:
    r = _batch((3, 1, 2))
    check_zero(subject(to_array(r), [1.0, 0.5], like=r), of=r, what="groups of one")


def _missing_is_average(subject: Subject, to_array: ToArray) -> None:
    """Everyone got 1 where it applies: whom it does not apply to is no worse."""
    r = np.array([[[1.0, np.nan], [1, 1], [1, 1], [1, 1]]])
    what = "a missing reward counts as average, not as 0"
    check_zero(subject(to_array(r), [1.0, 1.0], like=r), of=r, what=what)


def _small_spread(subject: Subject, to_array: ToArray) -> None:
    r = np.zeros((2, 4, 1))
    r[0, 0], r[1, 1] = 1e-9, 1e-30
    a = np.asarray(subject(to_array(r), [1.0], like=r))
    assert a[0, 0] > a[0, 1], f"a spread of 1e-9 counts, got {a}"
    assert a[1, 1] > a[1, 0], f"a spread of 1e-30 counts, got {a}"


def _magnitudes(subject: Subject, to_array: ToArray) -> None:
    plain = _batch()
    wanted = np.asarray(subject(plain, [1.0, 0.5]))
    for dtype in (np.float32, np.float64):
        for size in _MAGNITUDES:
            r = (size * plain).astype(dtype)
            try:
                a = np.asarray(subject(to_array(r), [1.0, 0.5], like=r), dtype=np.float64)
            except DataError:
                continue  # refused, not silently wrong
            what = f"rewards of size {size:g} in {np.dtype(dtype)}"
            assert np.all(np.isfinite(a)), f"{what}: advantages are not finite: {a}"
            if subject.claims.unit != "mixed":
                a = a / size if subject.claims.unit == "kept" else a
                check_same(a, wanted, atol=1e-5, of=r, what=what)


def _whole_numbers(subject: Subject, to_array: ToArray) -> None:
    r = np.array([[[0, 1], [1, 1]], [[2, 0], [1, 3]]])
    wanted = subject(r * 1.0, [1, 1])
    got = subject(to_array(r), [1, 1], like=r * 1.0)
    check_same(got, wanted, atol=1e-6, of=r, what="whole numbers are rewards")


def _kind_of_array(subject: Subject, to_array: ToArray) -> None:
    for dtype in (np.float32, np.float64):
        r = to_array(_batch().astype(dtype))
        a = subject(r, to_array(np.array([1.0, 0.5])), like=_batch())
        assert type(a) is type(r), f"got a {type(a).__name__} for a {type(r).__name__}"
        assert a.dtype == r.dtype, f"got {a.dtype} for rewards in {r.dtype}"
        wanted = subject(_batch(), [1.0, 0.5])
        check_same(np.asarray(a), wanted, atol=1e-5, of=_batch(), what=f"in {r.dtype}")


def _single_precision(subject: Subject, to_array: ToArray) -> None:
    """Eighths, and their sum with a thousand, are exact in float32."""
    for seed in range(20):
        r = np.round(_batch((4, 6, 3), seed) * 64) / 8 + (1000 if subject.claims.shift else 0)
        single = subject(to_array(r.astype(np.float32)), [1.0, 0.5, 0.25], like=r)
        wanted = subject(r, [1.0, 0.5, 0.25])
        check_same(np.asarray(single), wanted, atol=1e-5, of=r, what="float32 against float64")


def _refusals(subject: Subject, to_array: ToArray) -> None:
    fine = [1.0, 1.0]
    for bad in (np.inf, -np.inf):
        infinite = _batch()
        infinite[1, 2, 0] = bad
        _refused(subject, to_array, infinite, fine, DataError, f"a reward of {bad}")
    for shape in ((0, 4, 2), (3, 0, 2)):
        _refused(subject, to_array, np.zeros(shape), fine, DataError, "no rollouts")
    for weights in ([1.0], [1.0, 1.0, 1.0], [1.0, np.nan], [np.inf, 1.0]):
        _refused(subject, to_array, _batch(), weights, ConfigError, f"the weights {weights}")


def _refused(
    subject: Subject,
    to_array: ToArray,
    rewards: Any,
    weights: Any,
    error: type[Exception],
    what: str,
) -> None:
    finite = np.where(np.isinf(rewards), 0.0, rewards)
    try:
        subject(to_array(rewards), weights, like=finite)
    except error:
        return
    raise AssertionError(f"{what} must raise a {error.__name__}, and was accepted")
