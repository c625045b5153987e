"""The part of an estimator's contract that holds for any batch, checked on batches drawn here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gdpo.testing._subject import Subject, check_same, check_zero

Oracle: TypeAlias = Callable[..., Any]
"""An estimator once more, as plain as can be: `(rewards, weights, **options)`, nested lists."""

_EXACT = 1e-9
"""Tolerance where the same numbers are computed in another order."""

_SHIFTED = 1e-5
"""Tolerance where a shift or an inexact factor costs digits of the rewards."""

_AT_ONCE = 40
"""Batches that are tried before hypothesis searches."""

_WEIGHTS = (1.0, 0.5, 2.0, 0.0, -1.0)


@dataclass(frozen=True, slots=True)
class Case:
    """A drawn batch. Eighths are exact in binary: a sum or a power of two costs no digits."""

    rewards: Any
    """With gaps."""
    weights: Any
    seed: int
    """Of the order, the scale and the shift."""


def check_random_batches(subject: Subject, oracle: Oracle | None, examples: int) -> None:
    """Raise an AssertionError for the first batch on which the estimator breaks its contract.

    A few batches come first that tell of most mistakes within a second; then hypothesis draws, and
    looks for the shortest batch that shows what it has found.
    """
    for case in _drawn(subject, min(examples, _AT_ONCE)):
        _check(subject, oracle, case)
    try:
        _with_hypothesis(lambda case: _check(subject, oracle, case), subject, examples)
    except ImportError:  # it is a convenience here
        for case in _drawn(subject, examples):
            _check(subject, oracle, case)


def _check(subject: Subject, oracle: Oracle | None, case: Case) -> None:
    r, w = case.rewards, case.weights
    a = np.asarray(subject(r, w))
    if oracle is not None:
        options = {
            name: np.asarray(value).tolist() if np.ndim(value) else value
            for name, value in subject.options_for(r).items()
        }
        wanted = oracle(r.tolist(), w.tolist(), **options)
        check_same(a, wanted, atol=_EXACT, of=r, what=f"oracle, weights {w}")
    assert np.all(np.isfinite(a)), f"advantages are not finite: {a}, for the rewards\n{r!r}"
    nothing = np.all(np.isnan(r) | (w == 0), axis=-1)
    check_zero(a[nothing], of=r, what=f"rollouts without a reward, weights {w}")
    rng = np.random.default_rng(case.seed)
    for check in (_order, _padding, _weight_zero, _constant_reward, _units, _other_groups):
        check(subject, r, w, a, rng)


def _order(subject: Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    prompts, samples = rng.permutation(r.shape[0]), rng.permutation(r.shape[1])
    shuffled = r[prompts][:, samples]
    check_same(
        subject(shuffled, w), a[prompts][:, samples], atol=_EXACT, of=r, what="order of rollouts"
    )
    rewards = rng.permutation(r.shape[2])
    options = {k: _reordered(v, rewards, r) for k, v in subject.options_for(r).items()}
    got = subject.estimator(np.ascontiguousarray(r[..., rewards]), w[rewards], **options)
    check_same(got, a, atol=_EXACT, of=r, what="order of rewards")


def _reordered(option: Any, order: Any, r: Any) -> Any:
    """An option with one number per reward follows the rewards."""
    per_reward = np.ndim(option) == 1 and len(option) == r.shape[2]
    return np.asarray(option)[order] if per_reward else option


def _padding(subject: Subject, r: Any, w: Any, a: Any, _rng: Any) -> None:
    samples = np.concatenate([r, np.full((r.shape[0], 2, r.shape[2]), np.nan)], axis=1)
    padded = np.concatenate([samples, np.full((1, *samples.shape[1:]), np.nan)])
    got = np.asarray(subject(padded, w))
    check_same(got[:-1, :-2], a, atol=_EXACT, of=r, what="padding with rollouts that are not there")
    check_zero(got[-1], of=padded, what="a group that is not there")
    check_zero(got[:, -2:], of=padded, what="rollouts that are not there")


def _weight_zero(subject: Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    other = 1e6 * rng.random((*r.shape[:2], 1))
    got = subject(np.concatenate([r, other], axis=-1), np.append(w, 0.0), like=None)
    check_same(got, a, atol=_EXACT, of=r, what="a reward of weight 0 is as good as absent")


def _constant_reward(subject: Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    """Only where it adds no rollout to those that have a reward."""
    if not subject.claims.constant_rewards or np.any(np.all(np.isnan(r) | (w == 0), axis=-1)):
        return
    constant = np.full((*r.shape[:2], 1), rng.choice([1.0, 1e9, 1e16]))
    got = subject(np.concatenate([r, constant], axis=-1), np.append(w, 1.0))
    check_same(got, a, atol=_EXACT, of=r, what="a constant reward, however large, changes nothing")


def _units(subject: Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    scale = rng.choice([1e-3, 2**-10, 1e3]) if subject.claims.unit != "mixed" else 1.0
    shift = rng.choice([-1000.0, 1000.0]) if subject.claims.shift else 0.0
    changed = r.copy()
    where = 0 if subject.claims.unit == "each" else slice(None)
    changed[..., where] = scale * changed[..., where] + shift * scale
    wanted = scale * a if subject.claims.unit == "kept" else a
    what = f"rewards times {scale:g} plus {shift * scale:g}"
    got = subject(changed, w, like=r)
    if subject.claims.unit == "kept":
        got, wanted = np.asarray(got) / scale, wanted / scale
    check_same(got, wanted, atol=_SHIFTED, of=r, what=what)


def _other_groups(subject: Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    if not subject.claims.local or len(r) < 2:
        return
    changed = r.copy()
    changed[0] = np.where(rng.random(r[0].shape) < 0.5, np.nan, 7.0 * rng.random(r[0].shape))
    got = np.asarray(subject(changed, w))
    assert np.array_equal(got[1:], a[1:]), f"another group's rewards matter, for\n{r!r}"


def _drawn(subject: Subject, count: int) -> Iterator[Case]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        shape = (*rng.integers(1, (4, 6), endpoint=True), rng.integers(1, 3, endpoint=True))
        values = rng.integers(-72, 72, shape, endpoint=True) / 8
        coarse = rng.random() < 0.5  # ties and dead groups
        gaps = rng.random(shape) < rng.choice([0.0, 0.2])
        rewards = np.where(gaps, np.nan, np.sign(values) if coarse else values)
        weights = rng.choice(_allowed_weights(subject), shape[2])
        yield Case(rewards, weights, seed)


def _allowed_weights(subject: Subject) -> tuple[float, ...]:
    return _WEIGHTS if subject.claims.signed else tuple(w for w in _WEIGHTS if w >= 0)


def _with_hypothesis(check: Callable[[Case], None], subject: Subject, examples: int) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
    from hypothesis.extra.numpy import arrays

    eighths = st.integers(-72, 72).map(lambda i: i / 8)
    coarse = st.sampled_from([-1.0, 0.0, 1.0])
    gap = st.just(np.nan)
    elements = st.sampled_from([eighths, coarse, eighths | gap, coarse | gap])
    shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))

    @st.composite
    def cases(draw: Any) -> Case:
        shape = draw(shapes)
        rewards = draw(arrays(np.float64, shape, elements=draw(elements)))
        weights = draw(
            arrays(np.float64, shape[2], elements=st.sampled_from(_allowed_weights(subject)))
        )
        return Case(rewards, weights, draw(st.integers(0, 2**16)))

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.nested_given],
        report_multiple_bugs=False,
    )
    @given(cases())
    def run(case: Case) -> None:
        check(case)

    run()
