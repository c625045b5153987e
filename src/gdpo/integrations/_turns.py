"""Finds the turns of rollouts in token masks, and maps the values of turns to rows and tokens.

A turn is a run of tokens that the model generated: a run of ones in the mask, which is 0 for the
tokens of a tool or a user.
"""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from math import inf, isinf, isnan, nan
from typing import Any, TypeAlias

import numpy as np

from gdpo._shapes import Int
from gdpo.advantages.stages import namespace
from gdpo.errors import DataError


def turn_of_tokens(mask: Any) -> Any:
    """Return the index of the turn of each token, `[row, token]`, where the mask is 1."""
    xp = namespace(mask)
    written = mask != 0
    before = xp.concat([xp.zeros_like(written[:, :1]), written[:, :-1]], axis=1)
    return xp.cumulative_sum(xp.astype(written & ~before, xp.int64), axis=1) - 1


Spans: TypeAlias = list[range]
"""Places of the tokens of each turn in a completion."""


def spans_of(mask: Sequence[int]) -> Spans:
    spans: Spans = []
    place = 0
    for written, run in groupby(mask, key=bool):
        length = sum(1 for _ in run)
        if written:
            spans.append(range(place, place + length))
        place += length
    return spans


def messages_of(
    ids: Sequence[int], spans: Spans, decode: Callable[[Sequence[int]], str]
) -> list[dict[str, str]]:
    """Return the messages in the tokens of a completion, with one of the model for each turn.

    Tokens that the model did not generate get the role `user`. `decode` returns the text of tokens.
    """
    ends = [0, *(end for span in spans for end in (span.start, span.stop)), len(ids)]
    return [
        {"role": "assistant" if number % 2 else "user", "content": decode(list(ids[start:stop]))}
        for number, (start, stop) in enumerate(pairwise(ends))
        if start < stop
    ]


def on_tokens(advantages: Any, mask: Any) -> Any:
    """Return the advantage of the turn of each token, `[row, token]`, and 0 outside the turns.

    `advantages` is `[row, turn]`, with at least as many turns as the mask.
    """
    xp, written = namespace(advantages), mask != 0
    turn = turn_of_tokens(mask)
    turn = xp.where(written, turn, xp.zeros_like(turn))
    values = xp.take_along_axis(advantages, turn, axis=1)
    return xp.where(written, values, xp.zeros_like(values))


def of_rollouts(advantages: Any, turns: Any) -> Any:
    """Return the advantage of each rollout: the mean over its turns, if each has its own.

    Beyond the last turn, all are 0.
    """
    if advantages.ndim == 2:
        return advantages
    xp = namespace(advantages)
    return xp.sum(advantages, axis=-1) / xp.astype(xp.where(turns > 1, turns, 1), advantages.dtype)


def tokens_of_turns(mask: Int[np.ndarray, "row token"]) -> Int[np.ndarray, "row turn"]:
    """Return the number of tokens of each turn of each row, and 0 beyond the last turn."""
    rows, tokens = np.nonzero(mask)
    turns = turn_of_tokens(mask)[rows, tokens]
    longest = int(turns.max(initial=-1)) + 1
    found = np.bincount(rows * longest + turns, minlength=len(mask) * longest)
    return found.reshape(len(mask), longest)


def is_per_turn(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def summed(column: Sequence[Any]) -> Sequence[Any]:
    """Return a column of rewards with turn rewards replaced by their totals.

    A total is None if the reward of a turn is None or NaN.
    """
    if not any(map(is_per_turn, column)):
        return column
    return [_total(value) if is_per_turn(value) else value for value in column]


def _total(values: Any) -> Any:
    odd = next((value for value in values if not is_number(value)), None)
    if odd is not None:
        return odd  # whoever reads the column reports the value
    try:
        numbers = [nan if value is None else float(value) for value in values]
    except OverflowError:  # a large integer
        return inf
    if any(map(isinf, numbers)):
        return inf
    return None if any(map(isnan, numbers)) else sum(numbers, 0.0)


def is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float | np.number | np.bool_)


def check_count(
    name: str, value: Any, count: int, *, rollout: str, error: type[Exception] = DataError
) -> None:
    """Raise an error that names `rollout` if there is not one number per turn."""
    if is_per_turn(value) and len(value) != count:
        raise error(
            f"reward {name!r} has {len(value)} numbers for {rollout}, which has {count} turns. A "
            "turn is a message of the model, even without a tool call. Return one number (or None) "
            "for each turn, with 0 where a turn earns nothing, or a single number for the whole "
            "rollout"
        )
