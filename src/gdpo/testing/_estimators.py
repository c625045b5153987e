"""Checks an estimator against the contract of `gdpo.advantages`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from gdpo._naming import refuse_unknown
from gdpo.errors import ConfigError, DataError

Unit = Literal["each", "all", "kept", "mixed"]
"""Describes how the advantages change when the rewards are rescaled."""

Options: TypeAlias = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
"""Keyword options of the estimator, or a function that computes the options from the rewards."""

Oracle: TypeAlias = Callable[..., Any]
"""A second, simpler implementation of an estimator, `(rewards, weights, **options)`, on lists."""

ToArray = Callable[[Any], Any]
"""Converts a NumPy array to the array type of a library, with the same dtype."""

LIBRARIES = ("numpy", "torch", "array_api_strict", "jax")
"""Array libraries that are tested. A library that is not installed is skipped."""

_EXACT = 1e-9
"""Tolerance if the same numbers are computed in a different order."""

_SHIFTED = 1e-5
"""Tolerance in single precision, and for shifts and scale factors that cause rounding errors."""

_AT_ONCE = 40
"""Number of random batches that are checked before hypothesis searches for failing batches."""

_WEIGHTS = (1.0, 0.5, 2.0, 0.0, -1.0)
_PRECISIONS = (np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class Claims:
    """Stores the properties that an estimator has beyond the contract.

    Args:
        unit: Effect of scaling. `each`: scaling any single reward has no effect. `all`: scaling all
            rewards by one factor has no effect. `kept`: it scales the advantages by the same
            factor. `mixed`: no claim.
        shift: Whether adding a constant to a reward has no effect.
        zero_variance_groups: Whether a group without signal always gets exactly 0, even if others
            have signal.
        constant_rewards: Whether an additional reward that never varies has no effect.
        local: Whether the advantages of a group are independent of other groups.
        signed: Whether negative weights are allowed.
        prompt_weights: Whether weights per prompt, `[prompt, 1, reward]`, are allowed.
        pooled: Whether a statistic of one reward covers several prompts, such as its mean over the
            batch. If not, weights per prompt equal separate rewards for each prompt. Only used with
            `prompt_weights`.
    """

    unit: Unit = "mixed"
    shift: bool = True
    zero_variance_groups: bool = True
    constant_rewards: bool = True
    local: bool = False
    signed: bool = True
    prompt_weights: bool = False
    pooled: bool = False

    def __post_init__(self) -> None:
        refuse_unknown([self.unit], get_args(Unit), "unknown unit")


def check_estimator(
    estimator: Callable[..., Any],
    *,
    options: Options | None = None,
    oracle: Oracle | None = None,
    claims: Claims | None = None,
    examples: int = 200,
    libraries: tuple[str, ...] = LIBRARIES,
) -> None:
    """Check that an estimator satisfies the contract of `gdpo.advantages`.

    It uses fixed and random batches with missing values, ties, zero-variance groups and groups of
    one, and hypothesis if installed. The estimator must have these properties:

    - The advantages agree with the oracle.
    - Missing values change no other advantages. Padding and absent groups get 0.
    - Batches without signal, batches with only rounding noise, and groups of one get exactly 0.
    - The order of prompts, samples and rewards, and rewards with weight 0, have no effect.
    - Shifting and scaling rewards and adding constant rewards have the claimed effect.
    - Rewards from 1e-30 to 1e30 and integer rewards work. float32 agrees with float64.
    - Arrays of every installed array library work.
    - If claimed, each prompt gets the advantages of its own weights.
    - Infinite rewards, empty arrays and invalid weights raise an error.

    Args:
        estimator: A function `(rewards[prompt, sample, reward], weights[reward], **options)` that
            returns advantages `[prompt, sample]`.
        options: Keyword options, or a function that computes them from NumPy rewards.
        oracle: A simpler implementation on nested lists. With the claims `prompt_weights` and
            `pooled`, it also gets weights `[prompt][reward]`. None: no comparison.
        claims: Properties beyond the contract. None: `Claims()`.
        examples: Number of random batches.
        libraries: Array libraries to test. NumPy is always tested.

    Raises:
        AssertionError: If the contract is broken.
        ConfigError: If a library or a claim is unknown.

    Examples:
        >>> from gdpo import gdpo
        >>> check_estimator(gdpo, claims=Claims(unit="each"), examples=5, libraries=("numpy",))
    """
    subject = _Subject(estimator, options or {}, claims or Claims())
    for library in libraries:
        _check_fixed(subject, library)
    # A few batches find most mistakes within a second. Hypothesis looks for the shortest example.
    searches = find_spec("hypothesis")  # optional here
    for case in _drawn(subject, min(examples, _AT_ONCE) if searches else examples):
        _check(subject, oracle, *case)
    if searches:
        _search(subject, oracle, examples)


def _check_fixed(subject: "_Subject", library: str) -> None:
    refuse_unknown([library], LIBRARIES, "unknown library")
    if find_spec(library) is None:
        return
    module = import_module(library if library != "jax" else "jax.numpy")
    try:
        for check in _ON_FIXED_BATCHES:
            check(replace(subject, to_array=module.asarray))
    except AssertionError as error:
        raise AssertionError(f"with {library}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Subject:
    estimator: Callable[..., Any]
    options: Options
    claims: Claims
    to_array: ToArray = np.asarray

    def __call__(self, rewards: Any, weights: Any, *, like: Any = None) -> Any:
        """Return the advantages, and check that the estimator did not change its arguments.

        The options are those for the rewards `like`, if given.
        """
        given = self.to_array(rewards), weights
        before = [np.asarray(each).copy() for each in given]
        advantages = self.estimator(*given, **self.options_for(rewards if like is None else like))
        for each, copy in zip(given, before, strict=True):
            same = np.array_equal(np.asarray(each), copy, equal_nan=True)
            assert same, "the estimator changes its arguments: copy the arrays first"
        return advantages

    def in_numpy(self, rewards: Any, weights: Any) -> Any:
        return replace(self, to_array=np.asarray)(rewards, weights)

    def options_for(self, rewards: Any) -> Mapping[str, Any]:
        return self.options(rewards) if callable(self.options) else self.options


def _same(got: Any, wanted: Any, *, of: Any, what: str, atol: float = _EXACT) -> None:
    got, wanted = np.asarray(got, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    size = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    assert got.shape == wanted.shape, f"{what}: shape {got.shape} instead of {wanted.shape}"
    difference = np.abs(got - wanted).max(initial=0.0)
    assert difference <= atol * size, (  # also false for NaN
        f"{what}: the advantages differ by {difference:.3g}\n{got}\ninstead of\n{wanted}\n"
        f"for the rewards\n{np.asarray(of)!r}"
    )


def _zero(got: Any, *, of: Any, what: str) -> None:
    values = np.asarray(got)
    assert np.count_nonzero(values) == 0, (
        f"{what}: expected exactly 0, got\n{values}\nfor the rewards\n{np.asarray(of)!r}"
    )


def _drawn(subject: _Subject, count: int) -> Iterator[tuple[Any, Any, int]]:
    """Yield rewards (multiples of 1/8, so that sums are exact), weights, and a seed."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        shape = (*rng.integers(1, (4, 6), endpoint=True), rng.integers(1, 3, endpoint=True))
        values = rng.integers(-72, 72, shape, endpoint=True) / 8
        coarse = rng.random() < 0.5  # ties and zero-variance groups
        gaps = rng.random(shape) < rng.choice([0.0, 0.2])
        rewards = np.where(gaps, np.nan, np.sign(values) if coarse else values)
        yield rewards, rng.choice(_allowed_weights(subject), shape[2]), seed


def _allowed_weights(subject: _Subject) -> tuple[float, ...]:
    return _WEIGHTS if subject.claims.signed else tuple(w for w in _WEIGHTS if w >= 0)


def _search(subject: _Subject, oracle: Oracle | None, examples: int) -> None:
    from hypothesis import strategies as st
    from hypothesis.extra.numpy import arrays

    eighths, coarse = st.integers(-72, 72).map(lambda i: i / 8), st.sampled_from([-1.0, 0.0, 1.0])
    gap = st.just(np.nan)
    elements = st.sampled_from([eighths, coarse, eighths | gap, coarse | gap])
    shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3))
    weight = st.sampled_from(_allowed_weights(subject))

    @st.composite
    def cases(draw: Any) -> tuple[Any, Any, int]:
        shape = draw(shapes)
        rewards = draw(arrays(np.float64, shape, elements=draw(elements)))
        weights = draw(arrays(np.float64, shape[2], elements=weight))
        return rewards, weights, draw(st.integers(0, 2**16))

    search(lambda case: _check(subject, oracle, *case), cases(), examples=examples)


def search(check: Callable[..., None], *strategies: Any, examples: int) -> None:
    """Let hypothesis search for the smallest values on which a check fails."""
    from hypothesis import HealthCheck, given, settings

    quietly = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.nested_given],
        report_multiple_bugs=False,
    )
    quietly(given(*strategies)(check))()


def _check(subject: _Subject, oracle: Oracle | None, r: Any, w: Any, seed: int) -> None:
    a = np.asarray(subject(r, w))
    if oracle is not None:
        wanted = oracle(r.tolist(), w.tolist(), **_lists(subject.options_for(r)))
        _same(a, wanted, of=r, what=f"oracle, weights {w}")
    assert np.all(np.isfinite(a)), f"advantages are not finite: {a}, for the rewards\n{r!r}"
    nothing = np.all(np.isnan(r) | (w == 0), axis=-1)
    _zero(a[nothing], of=r, what=f"rollouts without a reward, weights {w}")
    rng = np.random.default_rng(seed)
    for check in (_order, _padding, _weight_zero, _constant_reward, _units, _other_groups):
        check(subject, r, w, a, rng)
    if subject.claims.prompt_weights:
        _weights_per_prompt(subject, oracle, r, w, rng)


def _lists(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: np.asarray(v).tolist() if np.ndim(v) else v for k, v in options.items()}


def _weights_per_prompt(subject: _Subject, oracle: Oracle | None, r: Any, w: Any, rng: Any) -> None:
    prompts, count = r.shape[0], r.shape[2]
    equal = np.asarray(subject(r, np.tile(w, (prompts, 1, 1))))
    _same(equal, subject(r, w), of=r, what="the same weights for each prompt")
    own = rng.choice(_allowed_weights(subject), (prompts, 1, count))
    a = np.asarray(subject(r, own))
    _zero(a[np.all(np.isnan(r) | (own == 0), axis=-1)], of=r, what=f"no reward, weights {own}")
    options = subject.options_for(r)
    if subject.claims.local:
        alone = [subject(r[[p]], own[p, 0], like=r) for p in range(prompts)]
        what = f"each prompt in a batch of its own, weights {own}"
        _same(a, np.concatenate([np.asarray(each) for each in alone]), of=r, what=what)
    if not subject.claims.pooled:
        apart = np.full((*r.shape[:2], prompts * count), np.nan)
        for p in range(prompts):
            apart[p, :, p * count : (p + 1) * count] = r[p]
        spread = {k: np.tile(v, prompts) if np.ndim(v) == 1 else v for k, v in options.items()}
        wanted = subject.estimator(apart, own.reshape(-1), **spread)
        _same(a, wanted, of=r, what=f"separate rewards for each prompt, weights {own}")
    elif oracle is not None:
        wanted = oracle(r.tolist(), own[:, 0].tolist(), **_lists(options))
        _same(a, wanted, of=r, what=f"oracle, weights {own}")


def _order(subject: _Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    prompts, samples = rng.permutation(r.shape[0]), rng.permutation(r.shape[1])
    got = subject(r[prompts][:, samples], w)
    _same(got, a[prompts][:, samples], of=r, what="order of rollouts")
    rewards = rng.permutation(r.shape[2])
    # An option with one number per reward is reordered like the rewards.
    options = {
        name: np.asarray(value)[rewards]
        if np.ndim(value) == 1 and len(value) == r.shape[2]
        else value
        for name, value in subject.options_for(r).items()
    }
    got = subject.estimator(np.ascontiguousarray(r[..., rewards]), w[rewards], **options)
    _same(got, a, of=r, what="order of rewards")


def _padding(subject: _Subject, r: Any, w: Any, a: Any, _rng: Any) -> None:
    padded = np.pad(r, ((0, 1), (0, 2), (0, 0)), constant_values=np.nan)
    got = np.asarray(subject(padded, w))
    _same(got[:-1, :-2], a, of=r, what="padding with missing rollouts")
    _zero(got[-1], of=padded, what="a missing group")
    _zero(got[:, -2:], of=padded, what="missing rollouts")


def _weight_zero(subject: _Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    other = 1e6 * rng.random((*r.shape[:2], 1))
    got = subject(np.concatenate([r, other], axis=-1), np.append(w, 0.0))
    _same(got, a, of=r, what="a reward of weight 0 must change nothing")


def _constant_reward(subject: _Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    if not subject.claims.constant_rewards or np.any(np.all(np.isnan(r) | (w == 0), axis=-1)):
        return
    constant = np.full((*r.shape[:2], 1), rng.choice([1.0, 1e9, 1e16]))
    got = subject(np.concatenate([r, constant], axis=-1), np.append(w, 1.0))
    _same(got, a, of=r, what="a constant reward must change nothing")


def _units(subject: _Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    scale = rng.choice([1e-3, 2**-10, 1e3]) if subject.claims.unit != "mixed" else 1.0
    shift = rng.choice([-1000.0, 1000.0]) if subject.claims.shift else 0.0
    changed = r.copy()
    where = 0 if subject.claims.unit == "each" else slice(None)
    changed[..., where] = scale * changed[..., where] + shift * scale
    got = np.asarray(subject(changed, w, like=r)) / (scale if subject.claims.unit == "kept" else 1)
    what = f"rewards times {scale:g} plus {shift * scale:g}"
    _same(got, a, of=r, what=what, atol=_SHIFTED)


def _other_groups(subject: _Subject, r: Any, w: Any, a: Any, rng: Any) -> None:
    if not subject.claims.local or len(r) < 2:
        return
    changed = r.copy()
    changed[0] = np.where(rng.random(r[0].shape) < 0.5, np.nan, 7.0 * rng.random(r[0].shape))
    got = np.asarray(subject(changed, w))
    assert np.array_equal(got[1:], a[1:]), f"a group depends on another group's rewards, for\n{r!r}"


def _batch(shape: tuple[int, ...] = (4, 6, 2), seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape)


def _without_signal() -> Iterator[tuple[str, Any]]:
    for dtype in _PRECISIONS:
        for size, unit in product((2, 3, 5, 6, 7, 8, 10, 12, 16), (1e-3, 1.0, 100.0, 1e4)):
            r = np.repeat((unit * _batch((8, 1, 2))).astype(dtype), size, axis=1)
            yield f"a batch without signal, {size} samples, {np.dtype(dtype)}", r
        # Sums of the same numbers in a different order differ in the last digit.
        r = np.full((4, 6, 2), 0.3, dtype=dtype)
        r[:, ::2] = np.nextafter(dtype(0.3), dtype(1))
        yield "rounding noise", r.copy()
        r[1, 3, 0] = np.nan
        yield "rounding noise next to a missing value", r
    yield "groups of one", _batch((3, 1, 2))
    # All samples got 1 where the reward applies, so the sample without it is not worse.
    r = np.array([[[1.0, np.nan], [1, 1], [1, 1], [1, 1]]])
    yield "a missing reward counts as average, not as 0", r


def _no_signal(subject: _Subject) -> None:
    for what, r in _without_signal():
        _zero(subject(r, [1.0, 0.5]), of=r, what=what)


def _zero_variance_group(subject: _Subject) -> None:
    if not subject.claims.zero_variance_groups:
        return
    r = _batch((6, 7, 2))
    r[2] = [0.1, 0.7]
    a = np.asarray(subject(r, [1.0, 0.5]))
    _zero(a[2], of=r, what="a zero-variance group in a batch with signal")
    assert np.all(np.any(a[[0, 1, 3, 4, 5]] != 0, axis=1)), "a group with signal gets only 0"


def _small_spread(subject: _Subject) -> None:
    r = np.zeros((2, 4, 1))
    r[0, 0], r[1, 1] = 1e-9, 1e-30
    a = np.asarray(subject(r, [1.0]))
    assert a[0, 0] > a[0, 1], f"a difference of 1e-9 must count, got {a}"
    assert a[1, 1] > a[1, 0], f"a difference of 1e-30 must count, got {a}"


def _magnitudes(subject: _Subject) -> None:
    wanted = subject.in_numpy(_batch(), [1.0, 0.5])
    for dtype, size in product(_PRECISIONS, (1e-30, 1e-10, 1e10, 1e30)):
        r = (size * _batch()).astype(dtype)
        try:
            a = np.asarray(subject(r, [1.0, 0.5]), dtype=np.float64)
        except DataError:
            continue  # an error is allowed, a wrong result is not
        what = f"rewards of size {size:g} in {np.dtype(dtype)}"
        assert np.all(np.isfinite(a)), f"{what}: advantages are not finite: {a}"
        if subject.claims.unit != "mixed":
            a = a / size if subject.claims.unit == "kept" else a
            _same(a, wanted, of=r, what=what, atol=_SHIFTED)


def _whole_numbers(subject: _Subject) -> None:
    r = np.array([[[0, 1], [1, 1]], [[2, 0], [1, 3]]])
    wanted = subject.in_numpy(r * 1.0, [1, 1])
    got = subject(r, [1, 1], like=r * 1.0)
    _same(got, wanted, of=r, what="integers must be accepted", atol=1e-6)


def _kind_of_array(subject: _Subject) -> None:
    batch = _batch()
    batch[1, 2, 0] = np.nan
    wanted = subject.in_numpy(batch, [1.0, 0.5])
    for dtype in _PRECISIONS:
        r = subject.to_array(batch.astype(dtype))
        weights = subject.to_array(np.array([1.0, 0.5]))
        a = subject(batch.astype(dtype), weights, like=batch)
        assert type(a) is type(r), f"got a {type(a).__name__} for a {type(r).__name__}"
        assert a.dtype == r.dtype, f"got {a.dtype} for rewards in {r.dtype}"
        _same(a, wanted, of=batch, what=f"in {r.dtype}", atol=_SHIFTED)


def _single_precision(subject: _Subject) -> None:
    for seed in range(20):
        r = np.round(_batch((4, 6, 3), seed) * 64) / 8 + (1000 if subject.claims.shift else 0)
        single = subject(r.astype(np.float32), [1.0, 0.5, 0.25], like=r)
        wanted = subject.in_numpy(r, [1.0, 0.5, 0.25])
        _same(single, wanted, of=r, what="float32 against float64", atol=_SHIFTED)


def _refusals(subject: _Subject) -> None:
    for bad in (np.inf, -np.inf):
        infinite = _batch()
        infinite[1, 2, 0] = bad
        _refused(subject, infinite, [1.0, 1.0], DataError, f"a reward of {bad}")
    for shape in ((0, 4, 2), (3, 0, 2)):
        _refused(subject, np.zeros(shape), [1.0, 1.0], DataError, "no rollouts")
    for weights in ([1.0], [1.0, 1.0, 1.0], [1.0, np.nan], [np.inf, 1.0]):
        _refused(subject, _batch(), weights, ConfigError, f"the weights {weights}")


def _refused(subject: _Subject, r: Any, weights: Any, error: type[Exception], what: str) -> None:
    try:
        subject(r, weights, like=np.where(np.isinf(r), 0.0, r))
    except error:
        return
    raise AssertionError(
        f"expected a {error.__name__} for {what}, but the estimator accepted the input"
    )


_ON_FIXED_BATCHES = (
    _no_signal,
    _zero_variance_group,
    _small_spread,
    _magnitudes,
    _whole_numbers,
    _kind_of_array,
    _single_precision,
    _refusals,
)
