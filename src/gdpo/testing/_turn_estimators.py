"""Checks an estimator for turns: its contract, and that its policy gradient is unbiased."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from gdpo.errors import ConfigError
from gdpo.testing._credit import (
    TurnOptions,
    TurnSubject,
    measure_credit,
    with_options,
)

_PROMPTS, _SAMPLES, _TURNS = 3, 4, 4
_WEIGHTS = np.array([1.0, 0.5])


def check_turn_estimator(
    estimator: Callable[..., Any],
    *,
    options: TurnOptions | None = None,
    sizes: tuple[int, ...] = (2, 3),
    batch: int | None = None,
    any_factor: bool = False,
    bias: float = 0.0,
) -> None:
    """Check that an estimator for turns is unbiased and satisfies the contract for turns.

    The estimator must have these properties:

    - It returns finite advantages `[prompt, sample, turn]`, and does not change its arguments.
    - Values beyond the last turn of a rollout have no effect, even NaN, and get the advantage 0.
    - The order of prompts and samples, and padding with more turns, have no effect.
    - The mean policy gradient is the true gradient of each reward. All groups of a small agent are
      listed, so that the mean is exact (see `measure_credit`). One of the rewards is an outcome
      plus a constant, which must not change the gradient.
    - Groups whose rollouts earn the same at every turn that they share get 0, and so do groups
      whose rollouts have the same outcome.

    Args:
        estimator: A function `(rewards[prompt, sample, turn, reward], weights[reward], *,
            turns[prompt, sample], **options)` that returns advantages `[prompt, sample, turn]`, for
            NumPy arrays.
        options: Keyword options of the estimator, or a function of the number of rewards that
            returns them. None: `scales=[1.0, ...]` if the estimator has the option `scales` and
            `batch` is None, otherwise no options.
        sizes: Numbers of rollouts per group, at least 2.
        batch: Number of groups per call, for estimators whose advantages depend on the whole
            batch. The direction of the gradient is then measured on drawn batches, with noise.
            None: the mean is exact.
        any_factor: Whether to compare only the directions of gradients, for each reward kind.
        bias: Accepted bias, as a share of the length of the true gradient. 0: only rounding (1e-9).
            Pass 1e-5 for advantages in single precision.

    Raises:
        AssertionError: If a property does not hold. For a bias, the message names the reward, the
            turn, the size of the bias and the likely reason.
        ConfigError: If an argument has an invalid value, the advantages of a group depend on other
            groups and `batch` is None, or the estimator changes its arguments.
        DataError: If the advantages have the wrong shape, or are not finite.

    Examples:
        >>> from gdpo.advantages import turn_gdpo
        >>> check_turn_estimator(turn_gdpo)
    """
    if not sizes or not 0 <= bias < inf:
        raise ConfigError(
            f"sizes {sizes}, bias {bias}: pass at least one size, and a finite bias from 0"
        )
    subject = with_options(estimator, options, batch)
    _check_contract(subject)
    for size in sizes:
        credit = measure_credit(
            estimator, options=options, size=size, batch=batch, any_factor=any_factor, bias=bias
        )
        assert credit.unbiased, credit.verdict
        assert not credit.notes, f"{credit.notes[0]} (groups of {size})"


def _check_contract(subject: TurnSubject) -> None:
    """Check the properties that do not need a policy, on drawn rewards."""
    rng = np.random.default_rng(0)
    r = rng.integers(-16, 16, (_PROMPTS, _SAMPLES, _TURNS, 2), endpoint=True) / 8
    turns = rng.integers(1, _TURNS, (_PROMPTS, _SAMPLES), endpoint=True)
    turns[0, 0], turns[0, 1] = 1, _TURNS
    a = subject(r, _WEIGHTS, turns=turns)
    beyond = np.arange(_TURNS) >= turns[:, :, None]
    assert not np.any(a[beyond]), (
        "turns that a rollout did not take get advantages that are not 0: mask the result with "
        "the number of turns"
    )
    for junk in (1e6, np.nan):
        filled = np.where(beyond[..., None], junk, r)
        _same(subject(filled, _WEIGHTS, turns=turns), a, f"rewards {junk} beyond the last turn")
    p, s = rng.permutation(_PROMPTS), rng.permutation(_SAMPLES)
    moved = subject(r[p][:, s], _WEIGHTS, turns=turns[p][:, s])
    _same(moved, a[p][:, s], "prompts and samples in another order")
    wider = np.pad(r, ((0, 0), (0, 0), (0, 2), (0, 0)))
    padded = subject(wider, _WEIGHTS, turns=turns)
    _same(padded[:, :, :_TURNS], a, "two more turns of padding")


def _same(got: Any, wanted: Any, what: str) -> None:
    difference = float(np.abs(got - wanted).max())
    assert difference <= 1e-6 * max(1.0, float(np.abs(wanted).max())), (
        f"{what} must have no effect: the advantages differ by {difference:.3g}"
    )
