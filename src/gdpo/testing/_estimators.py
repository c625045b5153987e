"""Checks an estimator against the contract that every estimator of gdpo keeps."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.testing._fixed_batches import ToArray, check_fixed_batches
from gdpo.testing._properties import Oracle, check_random_batches
from gdpo.testing._subject import Claims, Options, Subject

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
