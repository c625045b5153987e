"""Calls a user's estimator on made-up batches, so that mistakes show before a model is loaded."""

import random
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from gdpo._naming import last_line
from gdpo.advantages._types import Number, Weights
from gdpo.advantages.registry import check_advantages, check_unchanged
from gdpo.errors import ConfigError, boundary, spelled

_TURNS = 3
"""Largest number of turns in a rollout."""

_SIZES = (
    *((6, 16), (6, 8), (6, 4), (8, 16), (4, 8), (1, 8), (1, 16), (1, 4), (6, 32), (4, 64)),
    *((8, 2), (8, 3), (8, 5), (8, 6), (8, 7), (8, 9), (8, 10), (8, 12), (8, 24)),
)
"""Numbers of prompts, and of samples per prompt. They differ, so that a transposed result has the
wrong shape."""

_FORMS = tuple(product((False, True), _SIZES, (True, False)))
"""Whether each prompt has its own weights, the sizes, and whether rewards are inside their ranges
or at the ends."""

_LIBRARIES = ("torch", "jax.numpy", "numpy")
"""Modules of array libraries that a user's estimator may be written for, if they are loaded."""

ToArray = Callable[[Any], Any]
"""Converts a NumPy array to the array type of a library."""


def try_out(
    compute: Callable[..., Any], name: str, batches: Iterator[tuple[dict[str, Any], ToArray]]
) -> ToArray:
    """Return the array library of the first batch for which an estimator works.

    An estimator may be written for one array library, for rewards of 0 and 1, for one number of
    samples, or for weights that sum to 1. So it is refused only if every batch fails.
    """
    problem: ConfigError | None = None
    for given, to_array in batches:
        before = {key: np.asarray(value).copy() for key, value in given.items()}
        try:
            with (
                _kept_random_states(),
                boundary(
                    ConfigError,
                    lambda error: (
                        f"estimator {name!r} raised {spelled(error)} ({last_line(error)}): correct "
                        "the function, or its options"
                    ),
                ),
            ):
                advantages = compute(**given)
            check_advantages(advantages, given["rewards"], name)
        except ConfigError as error:
            problem = problem or ConfigError(
                f"{error} (called with a made-up batch before training: rewards of shape "
                f"{tuple(given['rewards'].shape)}, {type(given['rewards']).__name__})"
            )
        else:
            check_unchanged(given, before, f"estimator {name!r}")
            return to_array
    assert problem is not None, "there are no batches to try"
    raise problem


@contextmanager
def _kept_random_states() -> Generator[None]:
    numbers, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 (the user's)
    torch = sys.modules.get("torch")
    tensors = None if torch is None else torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)  # noqa: NPY002
        if torch is not None:
            torch.random.set_rng_state(tensors)


def made_up_batches(
    low: Sequence[Number], high: Sequence[Number], *, weights: Weights | None, turns: bool
) -> Iterator[tuple[dict[str, Any], ToArray]]:
    """Yield batches with varied rewards in their declared ranges, for every library in use.

    A batch holds an estimator's arguments by name, and their library. Array weights: only their
    library is used. None: equal weights.
    """
    count = len(low)
    lowest, highest = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
    missing = np.where(np.isnan(highest), 0.0, highest - 1.0)
    lowest = np.where(np.isnan(lowest), missing, lowest)
    highest = np.where(np.isnan(highest), lowest + 1.0, highest)
    given: list[Any] = (
        [weights] if weights is not None else [np.ones(count), np.full(count, 1 / count)]
    )
    loaded: list[Any] = [sys.modules.get(name) for name in _LIBRARIES]
    if is_array_api_obj(weights):
        loaded = [array_namespace(weights)]
    libraries = [library.asarray for library in loaded if library is not None]
    for to_array, form, each in product(libraries, _FORMS, given):
        of_prompts, (prompts, samples), inside = form
        rng = np.random.default_rng(0)
        counts = rng.integers(1, _TURNS, (prompts, samples), endpoint=True)
        axes = (prompts, samples, *((_TURNS,) if turns else ()), count)
        part = rng.random(axes) if inside else rng.integers(0, 1, axes, endpoint=True)
        rewards = lowest * (1 - part) + highest * part
        if turns:
            rewards[np.arange(_TURNS) >= counts[:, :, None]] = 0.0
        tokens = rng.integers(1, 100, counts.shape)
        listed = each.tolist() if hasattr(each, "tolist") else each
        values = np.array(listed, dtype=np.float64)
        values = np.tile(values, (prompts, 1)) if of_prompts else values
        batch = {"rewards": rewards, "weights": values, "token_counts": tokens, "turns": counts}
        yield {name: to_array(each) for name, each in batch.items()}, to_array
