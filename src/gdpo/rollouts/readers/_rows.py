"""A rollout as a framework's record has it, and many of them as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from typing import Any

import numpy as np
from jaxtyping import Float

from gdpo.rollouts.readers._keys import NO_KEY, key_of
from gdpo.rollouts.readers._report import FileReport, ReadReport

CUT = frozenset(
    {"length", "max_tokens", "max_length", "truncated", "context_length", "max_sampled_tokens"}
)
_NUMBERS = frozenset({int, float, bool, type(None)})
LONGEST = 40
"""Characters of a text that may be a number."""
ENDED = frozenset({"stop", "completed", "eos", "stop_sequence", "tool_calls", "end_turn"})
LARGEST = 1e60
"""A number beyond it is not used: squares of weighted rewards, and their sums, must stay finite."""
NO_NUMBER = "no number, and counts as missing"
TEXT_ALONE = "holds text, not numbers, and is not read as a reward"
NOT_A_NUMBER = "NaN"
INFINITE = "infinite, and counts as missing"
TOO_LARGE = f"beyond {LARGEST:g}, and counts as missing"


class Doubtful(str):
    """A text in a field that is a reward only if other rows have a number there."""

    __slots__ = ()


TOO_LONG = Doubtful("...")


@dataclass(slots=True)
class Row:
    """What a format knows of one rollout; what it does not know stays as it is here."""

    step: Any = None
    group: Any = None
    """What the dump says of the group; None: nothing, and the prompt tells."""
    output: tuple[str, int] | None = None
    """The rollout that it is an output of, and its number among them; None: it is all of it."""
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
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of a tensor of several
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
            found[name] = Doubtful(value) if len(value) <= LONGEST else TOO_LONG
    return found


def doubtful(value: Any) -> Any:
    """A text as one of which other rows decide, and nothing of one that is too long for it."""
    if not isinstance(value, str):
        return value
    return Doubtful(value) if len(value) <= LONGEST else TOO_LONG


def plain(value: Any) -> Any:
    """A number, nothing or a short text as it is: what is kept is never large.

    Of anything else its number, or a text that is none.
    """
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST else TOO_LONG
    found = number(value)
    return TOO_LONG if isnan(found) else found


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
    """The number of a step; None: it is none, as a truth value is."""
    if isinstance(value, bool):
        return None
    step = number(value)
    return int(step) if isfinite(step) and step == int(step) and abs(step) < 2**62 else None


def reward_array(
    rows: Sequence[Row],
    names: Sequence[str],
    lines: Sequence[int],
    file: FileReport,
    report: ReadReport,
) -> Float[np.ndarray, "rollout reward"]:
    """Rewards as numbers, one column for each name."""
    values = np.full((len(rows), len(names)), nan)
    for n, name in enumerate(names):
        given = [
            row.rewards.get(name, row.total if name == row.total_name else None) for row in rows
        ]
        values[:, n] = usable(given, f"reward {name!r}", lines, file, report)
    return values


def usable(
    given: Sequence[Any], what: str, lines: Sequence[int], file: FileReport, report: ReadReport
) -> Float[np.ndarray, " rollout"]:
    """Numbers; what is none, or not between -1e60 and 1e60, is NaN and noted with its line."""
    column = _numbers(given)
    kinds = set(map(type, given))
    if kinds == {type(None)}:
        return column
    good = np.abs(column) <= LARGEST
    for r in np.flatnonzero(~good).tolist():
        if given[r] is not None:
            report.note(file.path, lines[r], f"{what} is {_kind(given[r], column[r])}")
    for r in np.flatnonzero(good).tolist() if Doubtful in kinds else ():
        if type(given[r]) is Doubtful:
            report.note(file.path, lines[r], f"{what} is the text of a number, and counts as it")
    return np.where(good, column, nan)


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
    if isfinite(value):
        return TOO_LARGE
    if isinstance(given, float):
        return NOT_A_NUMBER if isnan(value) else INFINITE
    return NO_NUMBER


def row_columns(
    rows: Sequence[Row], lines: Sequence[int], file: FileReport, report: ReadReport
) -> dict[str, np.ndarray]:
    """All columns but the rewards, the steps and those of the file."""

    def numbers(values: Sequence[Any], what: str) -> Float[np.ndarray, " rollout"]:
        return usable(values, what, lines, file, report)

    return {
        "groups": np.array([_group(row) for row in rows], np.int64),
        "total": numbers([row.total for row in rows], "total"),
        "advantages": numbers([row.advantage for row in rows], "advantage"),
        "num_tokens": numbers([row.num_tokens for row in rows], "num_tokens"),
        "cut": np.array([cut_of(row.finish_reason) for row in rows]),
        "trained": np.array([row.trained for row in rows], np.bool_),
    }


def grouping(rows: Sequence[Row]) -> str:
    """By what the rollouts of a file are put into groups: a few may lack it."""
    if any(row.group is not None for row in rows):
        return "ids in the dump"
    return "repeated prompts" if any(row.prompt is not None for row in rows) else "nothing"


def _group(row: Row) -> int:
    if row.group is not None and row.group == row.group:
        return key_of(row.group)
    return NO_KEY if row.prompt is None else key_of(row.prompt)
