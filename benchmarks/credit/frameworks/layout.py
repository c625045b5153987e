"""Lays rewards per turn out as the frameworks expect them: one scalar per turn, on tokens.

Each turn is one token of the model followed by one token of the environment. A framework without
decoupled rewards adds the weighted rewards first, so the wrappers do the same.
"""

import numpy as np

STEP = 2
"""Tokens of a turn: one of the model, one of the environment."""


def scalars(rewards, weights):
    """Return the weighted sum of the rewards, `[prompt, sample, turn]`."""
    return np.asarray(rewards, float) @ np.asarray(weights, float)


def taken(turns, longest):
    """Return the mask of the turns that were taken, `[prompt, sample, turn]`."""
    return np.arange(longest) < np.asarray(turns)[..., None]


def on_tokens(values, mask):
    """Return `(values, mask)` as `[rollout, token]` arrays, on the model's token of each turn."""
    prompts, samples, longest = values.shape
    laid = np.zeros((2, prompts * samples, longest * STEP), np.float32)
    for row, each in zip(laid, (np.where(mask, values, 0), mask), strict=True):
        row[:, ::STEP] = each.reshape(prompts * samples, longest)
    return laid[0], laid[1]


def of_turns(advantages, shape):
    """Return the advantages of the model's tokens, `[prompt, sample, turn]`."""
    return np.asarray(advantages)[:, ::STEP].reshape(shape)


def prompt_of_rows(shape):
    """Return the number of the prompt of each rollout."""
    return np.repeat(np.arange(shape[0]), shape[1])
