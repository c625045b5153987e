"""Converts each framework's records into rollouts.

A record is a line of JSON, or a row of a parquet file whose columns contain JSON.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from math import isnan, nan
from typing import Any, TypeAlias, cast

from gdpo.rollouts.readers.names import (
    WEIGHTS,
    Inner,
    is_container,
    is_per_completion,
    listed_names,
    spread,
)
from gdpo.rollouts.readers.report import FileReport, ReadProblem

Record: TypeAlias = Mapping[str, Any]

_NUMBERS = frozenset({int, float, bool, type(None)})
LONGEST = 40
"""Maximum length, in characters, of a text that may be a number."""
_SPREAD = frozenset({list, str})
"""Types of values that may contain all rewards in a form other than an object."""
_DEEPEST = 8
"""Maximum depth of nested objects that are searched."""


class DoubtfulText(str):
    """Marks a text in a field that is a reward only if other rows have a number there."""

    __slots__ = ()


TOO_LONG = DoubtfulText("...")


@dataclass(frozen=True, slots=True, eq=False)
class RowTurns:
    """Stores the turns of one rollout."""

    count: int
    """Number of turns, or 0 if they are unknown."""
    rewards: Mapping[str, Mapping[int, float]]
    """Rewards by name, and by turn from 0. A turn that lacks a reward of another turn earned 0."""
    num_tokens: Sequence[float]

    def only(self, names: Collection[str]) -> "RowTurns":
        """Return the turns with some of their rewards."""
        kept = {name: values for name, values in self.rewards.items() if name in names}
        return self if len(kept) == len(self.rewards) else replace(self, rewards=kept)


UNKNOWN_TURNS = RowTurns(0, {}, ())
"""Turns of a rollout whose turns are unknown."""
ONE_TURN = RowTurns(1, {}, ())
"""Turns of a rollout of one turn, which has the rewards and the tokens of the rollout."""


@dataclass(slots=True)
class ParsedRollout:
    """Stores what is known about one rollout. A default value means unknown."""

    step: Any = None
    rollout: Any = None
    """Id of the rollout, if the record is a turn."""
    turn: Any = None
    group: Any = None
    """Group id. None if unknown, in which case rollouts with identical prompts form a group."""
    output: tuple[str, int] | None = None
    """Key of the rollout and number of the output, or None if this is the only output."""
    prompt: Any = None
    completion: Any = None
    rewards: Mapping[str, Any] = field(default_factory=dict)
    total: Any = None
    weights: Mapping[str, float] | None = None
    advantage: Any = None
    num_tokens: Any = None
    finish_reason: Any = None
    trained: bool = True
    truth: Any = None
    """Reference that was used to score the completion."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the record, which rescoring may need."""
    turns: RowTurns = UNKNOWN_TURNS
    mixed: bool = False
    """Whether the completion is one text that also contains tool results."""


Rollouts: TypeAlias = Iterator[ParsedRollout]
"""The rollouts in a record."""


TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


def number(value: Any) -> float:
    """Return a number, a boolean or the text of either as a float, otherwise NaN."""
    if isinstance(value, str) and len(value) <= LONGEST:  # a word of truth is not longer
        value = TRUTHS.get(value.strip().lower(), value)
    try:
        return nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: tensors
        return nan


def is_number(value: Any) -> bool:
    """Return whether a value is a number or boolean, not the text of one."""
    return isinstance(value, (int, float))


def numbers_in(record: Mapping[str, Any], *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields that may be rewards: those with a number, text or null."""
    found: dict[str, Any] = {}
    for name, value in record.items():  # runs for every record, so it avoids calls
        kind = type(value)
        if name in but:
            continue
        if kind in _NUMBERS:
            found[name] = value
        elif kind is str:
            found[name] = DoubtfulText(value) if len(value) <= LONGEST else TOO_LONG
    return found


def plain(value: Any) -> Any:
    """Return numbers, None and short texts unchanged, so that kept values are never large.

    Any other value becomes a number, or else a short placeholder.
    """
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST else TOO_LONG
    found = number(value)
    return TOO_LONG if isnan(found) else found


def as_object(value: Any) -> Record:
    """Return an object, or the object in a JSON text, otherwise an empty object."""
    if isinstance(value, str):
        value = json.loads(value)
    return cast("Record", value) if isinstance(value, Mapping) else {}


def numbers_by_path(record: Record, *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the numbers in a record and in its nested objects, by path.

    Texts at the top level and in objects of rewards are included, because a text may be a number.
    """
    found = numbers_in(record, but=but)

    def enter(inner: Mapping[Any, Any], above: str, *, rewarded: bool, depth: int) -> None:
        for name, value in numbers_in(inner).items() if above else ():
            path = Inner(above + name)
            if path not in but and (rewarded or isinstance(value, (int, float))):
                found[path] = value
        for name, value in inner.items() if depth < _DEEPEST else ():
            kind, path = type(value), f"{above}{name}"
            if kind in _NUMBERS or path in but:
                continue
            contains = is_container(str(name))
            if kind in _SPREAD and (contains or name in WEIGHTS):
                value = _opened(value, path, inner, found)
            if isinstance(value, dict):
                enter(value, f"{path}.", rewarded=rewarded or contains, depth=depth + 1)

    enter(record, "", rewarded=False, depth=0)
    return found


def _opened(value: Any, path: str, record: Record, found: dict[str, Any]) -> Any:
    """Return the rewards in a list or JSON text as an object, or None. Update what was found."""
    each = is_per_completion(value, record)
    inner = None if each else spread(value, listed_names(record))
    if inner is not None:
        found.pop(path, None)
        if "0" in inner:  # a list without names, which may have a value for each turn
            found[path] = sum(number(each) for each in inner.values() if each is not None)
    elif isinstance(value, list):
        found[path] = TOO_LONG if value else 0.0
    return inner


def at(record: Any, path: str) -> Any:
    """Return the value at a name or dotted path, or None."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return cast("Record", record)[path]
    name, dot, rest = path.partition(".")
    while dot:
        if name in record and (found := at(record[name], rest)) is not None:
            return found
        more, dot, rest = rest.partition(".")
        name = f"{name}.{more}"
    return None


def one_per_rollout(
    rows: Iterator[tuple[int, ParsedRollout]], file: FileReport
) -> Iterator[tuple[int, ParsedRollout]]:
    """Yield the last output of each rollout, with its line, and report other outputs as skipped.

    Like verl's GRPO, it uses only the last outputs. verl writes the outputs of a rollout one after
    another; of outputs that are not consecutive, only the first sequence is used. Each row without
    an output number counts as one rollout.
    """
    step: Any = None
    of_step = set[str]()

    def later(
        one: tuple[int, ParsedRollout], other: tuple[int, ParsedRollout]
    ) -> tuple[int, ParsedRollout]:
        first, last = sorted((one, other), key=lambda row: row[1].output or ("", 0))
        file.lose(first[0], ReadProblem.OTHER)
        return last

    for rollout, outputs in groupby(rows, lambda row: row[1].output and row[1].output[0]):
        if rollout is None:
            yield from outputs
            continue
        last = reduce(later, outputs)
        if last[1].step != step:
            step, of_step = last[1].step, set()
        if rollout in of_step:
            file.lose(last[0], ReadProblem.APART)
        else:
            of_step.add(rollout)
            yield last
