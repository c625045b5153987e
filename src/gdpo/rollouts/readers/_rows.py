"""A rollout as a framework's record has it, and many of them as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpo.rollouts.readers._keys import NO_KEY, key_of
from gdpo.rollouts.readers._report import FileReport, ReadReport

CUT = frozenset({"length", "max_tokens", "max_length", "truncated", "context_length"})
_NUMBERS = frozenset({int, float, bool, type(None)})
_LONGEST = 40
"""Characters of a text that may be a number."""
ENDED = frozenset({"stop", "completed", "eos", "stop_sequence", "tool_calls", "end_turn"})


class Doubtful(str):
    """A text in a field that is a reward only if other rows have a number there."""

    __slots__ = ()


_TOO_LONG = Doubtful("...")


@dataclass(slots=True)
class Row:
    """What a format knows of one rollout; what it does not know stays as it is here."""

    step: Any = None
    group: Any = None
    """What the dump says of the group; None: nothing, and the prompt tells."""
    prompt: Any = None
    completion: Any = None
    rewards: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Everything that may be a reward: its parts."""
    total: Any = None
    total_name: str = "reward"
    weights: Mapping[str, float] | None = None
    advantage: Any = None
    num_tokens: Any = None
    finish_reason: Any = None
    trained: bool = True
    truth: Any = None
    """What it was judged against."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of its record; a judge may want them."""


def number(value: Any) -> float:
    """A number, a truth value or the text of a number; NaN: it is none."""
    try:
        return nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return nan


def is_number(value: Any) -> bool:
    """Whether it is a number in its own right; a text of one is not."""
    return isinstance(value, (int, float, bool))


def numbers_in(record: Mapping[str, Any], *, but: frozenset[str]) -> dict[str, Any]:
    """The fields that hold a number or a text, and may be rewards; a null keeps its place."""
    found: dict[str, Any] = {}
    for name, value in record.items():  # of every record: no calls
        kind = type(value)
        if name in but:
            continue
        if kind in _NUMBERS:
            found[name] = value
        elif kind is str:
            found[name] = Doubtful(value) if len(value) <= _LONGEST else _TOO_LONG
    return found


def doubtful(value: Any) -> Any:
    """A text as one of which other rows decide, and nothing of one that is too long for it."""
    if not isinstance(value, str):
        return value
    return Doubtful(value) if len(value) <= _LONGEST else _TOO_LONG


def count_of(tokens: Any) -> float | None:
    """A number of tokens; None: it is none, or not finite."""
    count = number(tokens)
    return count if isfinite(count) else None


def cut_of(reason: Any) -> float:
    """1 for a completion that was cut at its limit, 0 for one that the model ended."""
    if isinstance(reason, bool):
        return float(reason)
    text = reason.lower() if isinstance(reason, str) else ""
    return 1.0 if text in CUT else 0.0 if text in ENDED else nan


def whole(value: Any) -> int | None:
    """The number of a step; None: it is none."""
    step = number(value)
    return int(step) if isfinite(step) and step == int(step) and abs(step) < 2**62 else None


def reward_names(
    rows: Sequence[Row], asked: Sequence[str] | None, known: Sequence[str] = ()
) -> tuple[tuple[str, ...], str]:
    """The rewards of a file, and how they were told.

    Those asked for; else every part that holds a number somewhere, be it among the rows before,
    whose names are known; else the total alone.
    """
    if asked is not None:
        return tuple(asked), "as asked for"
    parts = dict.fromkeys(
        name
        for row in rows
        for name, value in row.rewards.items()
        if value is not None and (type(value) is not Doubtful or name in known)
    )
    if parts:
        return tuple(parts), "every part that is a number"
    totals = dict.fromkeys(row.total_name for row in rows if row.total is not None)
    return tuple(totals), "the total alone: the dump has no parts"


def reward_array(
    rows: Sequence[Row],
    names: Sequence[str],
    lines: Sequence[int],
    file: FileReport,
    report: ReadReport,
) -> Float[np.ndarray, "rollout reward"]:
    """Rewards as numbers; what is none is NaN and noted."""
    values = np.full((len(rows), len(names)), nan)
    for n, name in enumerate(names):
        given = [
            row.rewards.get(name, row.total if name == row.total_name else None) for row in rows
        ]
        values[:, n] = _finite(given, f"reward {name!r}", lines, file, report)
    return values


def _finite(
    given: Sequence[Any], what: str, lines: Sequence[int], file: FileReport, report: ReadReport
) -> Float[np.ndarray, " rollout"]:
    column = _numbers(given)
    kinds = set(map(type, given))
    if kinds == {type(None)}:
        return column
    for r in np.flatnonzero(~np.isfinite(column)).tolist():
        if given[r] is not None:
            report.note(file.path, lines[r], f"{what} is {_kind(given[r], column[r])}")
    for r in np.flatnonzero(np.isfinite(column)).tolist() if Doubtful in kinds else ():
        if type(given[r]) is Doubtful:
            report.note(file.path, lines[r], f"{what} is the text of a number, and counts as it")
    return np.where(np.isinf(column), nan, column)


def _numbers(given: Sequence[Any]) -> Float[np.ndarray, " rollout"]:
    """Numbers at once if they all are, else one by one."""
    kinds = set(map(type, given))
    if kinds <= {float, int, bool, type(None)}:
        try:
            return np.array(given, np.float64)
        except OverflowError:
            pass
    return np.array([number(value) for value in given])


def _kind(given: Any, value: float) -> str:
    if isinstance(given, float):
        return "infinite, and counts as missing" if value in (np.inf, -np.inf) else "NaN"
    return "no number, and counts as missing"


def row_columns(
    rows: Sequence[Row], lines: Sequence[int], file: FileReport, report: ReadReport
) -> dict[str, np.ndarray]:
    """All columns but the rewards, the steps and those of the file."""

    def finite(values: Sequence[Any], what: str) -> Float[np.ndarray, " rollout"]:
        return _finite(values, what, lines, file, report)

    return {
        "groups": np.array([_group(row) for row in rows], np.int64),
        "total": finite([row.total for row in rows], "total"),
        "advantages": finite([row.advantage for row in rows], "advantage"),
        "num_tokens": finite([row.num_tokens for row in rows], "num_tokens"),
        "cut": np.array([cut_of(row.finish_reason) for row in rows]),
        "trained": np.array([row.trained for row in rows], np.bool_),
    }


def grouping(row: Row) -> str:
    """By what the rollouts of a file are put into groups."""
    if row.group is not None:
        return "ids in the dump"
    return "repeated prompts" if row.prompt is not None else "nothing"


def _group(row: Row) -> int:
    if row.group is not None:
        return key_of(row.group)
    return NO_KEY if row.prompt is None else key_of(row.prompt)
