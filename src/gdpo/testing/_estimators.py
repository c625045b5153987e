"""Checks an estimator against the contract that every estimator of gdpo keeps."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError

Unit = Literal["each", "all", "kept", "mixed"]
"""What a change of the rewards' units does to the advantages."""


Options: TypeAlias = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Keyword options of the estimator, or a function that makes them from the NumPy rewards."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What an estimator promises beyond the contract that all of them keep.

    Args:
        unit: What a change of the rewards' units does. `each`: nothing, even of one reward alone;
            `all`: nothing, if all change together; `kept`: the advantages change with them;
            `mixed`: no claim.
        shift: Adding a constant to a reward changes nothing.
        dead_groups: A group in which nothing varies gets exactly 0, whatever the others do.
        constant_rewards: A reward that never varies changes nothing.
        local: A group's advantages depend on no other group.
        signed: Takes negative weights.
    """

    unit: Unit = "mixed"
    shift: bool = True
    dead_groups: bool = True
    constant_rewards: bool = True
    local: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ConfigError(f"unit {self.unit!r}: {did_you_mean(self.unit, get_args(Unit))}")


@dataclass(frozen=True, slots=True)
class Subject:
    """An estimator with its options and its claims."""

    estimator: Callable[..., Any]
    options: Options
    claims: Claims

    def __call__(self, rewards: Any, weights: Any, *, like: Any = None) -> Any:
        """Advantages, with options made from `like`: the same rewards as a NumPy array.

        What it is given is looked at again afterwards: an estimator changes none of it.
        """
        before = np.asarray(rewards).copy(), np.asarray(weights).copy()
        advantages = self.estimator(rewards, weights, **self.options_for(rewards, like))
        for given, copy in zip((rewards, weights), before, strict=True):
            same = np.array_equal(np.asarray(given), copy, equal_nan=copy.dtype.kind == "f")
            assert same, "the estimator changes the arrays that it is given"
        return advantages

    def options_for(self, rewards: Any, like: Any = None) -> Mapping[str, Any]:
        """The options that go with these rewards."""
        if callable(self.options):
            return self.options(rewards if like is None else like)
        return self.options


def check_same(got: Any, wanted: Any, *, atol: float, of: Any, what: str) -> None:
    """Raise an AssertionError unless two sets of advantages agree, relative to the largest."""
    got, wanted = np.asarray(got, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    size = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    assert got.shape == wanted.shape, f"{what}: shape {got.shape} instead of {wanted.shape}"
    difference = np.abs(got - wanted).max(initial=0.0)
    assert difference <= atol * size, (  # also false for NaN
        f"{what}: the advantages differ by {difference:.3g}\n{got}\ninstead of\n{wanted}\n"
        f"for the rewards\n{np.asarray(of)!r}"
    )


def check_zero(got: Any, *, of: Any, what: str) -> None:
    """Raise an AssertionError unless every advantage is exactly 0."""
    values = np.asarray(got)
    assert np.count_nonzero(values) == 0, (
        f"{what}: exactly 0 is wanted, got\n{values}\nfor the rewards\n{np.asarray(of)!r}"
    )


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


LIBRARIES = ("numpy", "torch", "array_api_strict", "jax")
"""The array libraries that are tried, each if it is installed."""


def check_estimator(
    estimator: Callable[..., Any],
    *,
    options: Options | None = None,
    oracle: Oracle | None = None,
    claims: Claims | None = None,
    examples: int = 200,
    libraries: tuple[str, ...] = LIBRARIES,
) -> None:
    """Raise an AssertionError if an estimator breaks the contract of `gdpo.advantages`.

    Checked on fixed batches, and on random ones with gaps, ties, dead groups and groups of one,
    from hypothesis where it is installed: the oracle; NaN stays where it is; no signal and rounding
    noise give exactly 0; a group of one, padding, a group that is not there; the order of prompts,
    samples and rewards, and so how a batch is gathered from several ranks; rewards of weight 0; a
    constant reward, however large; shift and scale as claimed; rewards from 1e-30 to 1e30; float32
    against float64; whole numbers; every array library that is installed; and that infinite
    rewards, empty arrays and wrong weights are refused.

    Args:
        estimator: `(rewards[prompt, sample, reward], weights[reward], **options)` to advantages.
        options: Its keyword options, or a function of the rewards (as a NumPy array) that gives
            them: for options whose shape follows the rewards.
        oracle: The same formula written in another, plainer way, on nested lists.
        claims: What the estimator promises beyond that; left out: the defaults of `Claims`.
        examples: How many random batches to draw.
        libraries: Names of the array libraries to try; NumPy arrays are used in any case.

    Raises:
        AssertionError: The contract is broken; the message says which part, and on what.
        ConfigError: A library or a claim that there is not.

    Example:
        >>> from gdpo import gdpo
        >>> check_estimator(gdpo, claims=Claims(unit="each"), examples=5, libraries=("numpy",))
    """
    subject = Subject(estimator, options or {}, claims or Claims())
    for library in libraries:
        if library not in LIBRARIES:
            raise ConfigError(f"unknown library {library!r}: {did_you_mean(library, LIBRARIES)}")
        if find_spec(library) is not None:
            try:
                check_fixed_batches(subject, _to_array(library))
            except AssertionError as error:
                raise AssertionError(f"with {library}: {error}") from error
    check_random_batches(subject, oracle, examples)


def _to_array(library: str) -> ToArray:
    module = import_module(library if library != "jax" else "jax.numpy")
    if library == "torch":
        return lambda values: module.from_numpy(np.array(values))
    return module.asarray
