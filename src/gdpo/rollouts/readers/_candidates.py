"""Which fields of a file's records are its rewards: told while it is read, if nobody says.

A format says which fields may be rewards, and every one that holds a number is one. In records of
no known format they are inferred from the first rollouts, see `_inference`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite, nan
from typing import Any

import numpy as np

from gdpo.rollouts.readers._inference import (
    LOOKED_AT,
    NEVER,
    Inferred,
    Values,
    infer,
    is_all_rewards,
    is_told_of,
    resolved,
    unlikelihood,
)
from gdpo.rollouts.readers._layout import Layout
from gdpo.rollouts.readers._report import TOTAL_ALONE, FileReport, ReadReport
from gdpo.rollouts.readers._rows import TEXT_ALONE, TOO_LONG, Doubtful, Row, is_number, number

MOST = 64
"""Rewards of a file that are told by being numbers: each is a column of all its rollouts."""
MOST_LOOKED_AT = 256
"""Numbers of a file of no known format whose values are looked at."""
_TEXTS = 1024
"""Fields of texts that are looked after, should they turn out to be rewards."""
_LONGEST_NAME = 200
"""Characters of what may be the name of a reward."""


class Candidates:
    """The rewards of one file: those asked for, or every part that holds a number somewhere.

    Args:
        asked: The rewards, if they were named.
        file: The file.
        report: Told of fields that are passed over.
        known: What the fields of records of no known format mean; None: the format says it.
    """

    def __init__(
        self,
        asked: Sequence[str] | None,
        file: FileReport,
        report: ReadReport,
        known: Layout | None = None,
    ) -> None:
        self._asked, self._file, self._report = asked, file, report
        self._known = known
        self._learned = False
        self._no_total = False
        self._inferred: Inferred | None = None
        self._paths: dict[str, str] = {}
        self._found: dict[str, None] = {}
        self._texts: dict[str, tuple[int, int]] = {}

    @property
    def needed(self) -> int:
        """How many of the first rollouts it has to see before it can name rewards."""
        return LOOKED_AT if self._known is not None and not self._learned else 0

    def narrow(self, row: Row, line: int) -> None:
        """Keep no more fields of a rollout than there may be rewards."""
        if len(row.rewards) <= MOST:
            return
        if self._known is not None:
            kept = {*self._likeliest(row), *(self._asked or ())}
        elif self._asked is not None:
            kept = {*self._asked, *islice(row.rewards, MOST)}
        else:
            numbers, texts = _told_apart([row], [line])
            self._take(numbers)
            self._pass_over(texts)
            kept = set(self._found)
        row.rewards = {name: value for name, value in row.rewards.items() if name in kept}
        if row.weights:
            row.weights = {name: w for name, w in row.weights.items() if name in kept}

    def _likeliest(self, row: Row) -> set[str]:
        names = sorted(row.rewards, key=unlikelihood)
        if self._asked is None and unlikelihood(names[MOST]) < NEVER:
            self._tell_once(few_alone("fields of its records"))
        return set(names[:MOST])

    def settle(self, rows: Sequence[Row]) -> None:
        """Keep of records of no known format the rewards alone, by name.

        What they are is inferred when it is called first, with the first rollouts of the file.
        """
        if self._known is None:
            return
        if not self._learned:
            self._learned = True
            self._learn(rows[:LOOKED_AT], self._known)
        for row in rows:
            if self._no_total:
                row.total = None
            row.weights = row.weights or self._weights_of(row)
            if self._inferred is None:
                found = {name: row.rewards.get(path) for name, path in self._paths.items()}
                row.rewards = {k: v for k, v in found.items() if v is not None} | {
                    name: row.rewards[name] for name in self._paths if name in row.rewards
                }
                continue
            if self._known.total is None and self._inferred.total is not None:
                row.total = row.rewards.get(self._inferred.total)
                row.total_name = self._inferred.total
            named = ((self._inferred.name_of(path), v) for path, v in row.rewards.items())
            row.rewards = {name: value for name, value in named if name is not None}

    def _weights_of(self, row: Row) -> dict[str, float] | None:
        """The weights in an object `weights`, or beside the value of each reward; None: none."""
        paths = self._paths if self._inferred is None else self._inferred.names
        weights: dict[str, float] = {}
        for name, path in paths.items():
            places = (f"weights.{name}", f"{path.rpartition('.')[0]}.weight")
            value = next((row.rewards[place] for place in places if place in row.rewards), None)
            if is_number(value):
                weights[name] = number(value)
        return weights or None

    def _learn(self, rows: Sequence[Row], known: Layout) -> None:
        columns = _numbers_of(rows, known)
        self._file.numbers = tuple(islice(columns, MOST))
        if self._asked is not None:
            self._paths = resolved(self._asked, list(columns))
            return
        texts = _texts_of(rows, columns, known)
        for path in texts:
            self._report.note(self._file.path, None, f"{path!r} {TEXT_ALONE}")
        if known.total in texts:
            self._known = known = replace(known, total=None)
            self._no_total = True
        self._inferred = infer(columns, known, texts)
        self._file.guessed, self._file.refused = True, self._inferred.why
        if self._inferred.why:
            why = no_reward_inferred(self._inferred.why)
            self._report.note(self._file.path, None, why)

    def names(self, rows: Sequence[Row], lines: Sequence[int]) -> tuple[tuple[str, ...], str]:
        """The rewards of some rollouts, which follow those before, and how they were told.

        Those asked for; else every part that is a number in one of them or before; else the total
        alone.
        """
        if self._asked is not None:
            return tuple(self._asked), "as asked for"
        if self._inferred is not None and self._inferred.why:
            return (), ""
        inferred = {} if self._inferred is None else self._inferred.names
        numbers, texts = _told_apart(rows, lines, inferred)
        self._take(numbers)
        self._pass_over(texts)
        if self._found:
            weighted = any(row.weights for row in rows)
            told = "the dump's, with their weights" if weighted else "every part that is a number"
            self._file.guessed |= not weighted
            return tuple(self._found), told if self._inferred is None else self._inferred.told
        totals = dict.fromkeys(row.total_name for row in rows if row.total is not None)
        if self._inferred is not None and self._inferred.group == "total":
            return tuple(totals), self._inferred.told
        return tuple(totals), f"{TOTAL_ALONE}: the dump has no parts"

    def _take(self, numbers: Mapping[str, None]) -> None:
        """Fields that hold numbers are rewards; tell of their texts that were passed over."""
        for name in numbers:
            if name in self._found:
                continue
            if len(self._found) >= MOST or len(name) > _LONGEST_NAME:
                self._tell_once(few_alone("fields of its records"))
                continue
            self._found[name] = None
            if name in self._texts:
                line, rows = self._texts.pop(name)
                what = (
                    f"reward {name!r} is text before its first number, and counts as missing "
                    "there: name the rewards (--rewards) to have it read"
                )
                self._report.note(self._file.path, line, what, count=rows)

    def _pass_over(self, texts: Mapping[str, tuple[int, int]]) -> None:
        for name, (line, rows) in texts.items():
            if name in self._found:
                continue
            if name not in self._texts and len(self._texts) >= _TEXTS:
                self._tell_once(
                    f"more than {_TEXTS:,} fields hold texts: name the rewards (--rewards), should "
                    "they be among them"
                )
                return
            first, before = self._texts.get(name, (line, 0))
            self._texts[name] = first, before + rows

    def _tell_once(self, what: str) -> None:
        if (self._file.path, what) not in self._report.notices:
            self._report.note(self._file.path, None, what)


def few_alone(which: str) -> str:
    """What is told of a file that has more numbers than can be rewards."""
    return (
        f"more than {MOST} {which} hold numbers and may be rewards: the first {MOST} are read; "
        "name the rewards (--rewards)"
    )


def no_reward_inferred(why: str) -> str:
    """What is told of a file whose numbers do not say which of them are rewards."""
    return f"no reward can be inferred: {why}; name the rewards (--rewards)"


def _numbers_of(rows: Sequence[Row], known: Layout) -> dict[str, Values]:
    """The numbers of records by path, in their order; of very many the likeliest."""
    found: dict[str, list[tuple[int, float]]] = {}
    for place, row in enumerate(rows):
        if known.total is not None and row.total is not None:
            found.setdefault(known.total, []).append((place, number(row.total)))
        for path, value in row.rewards.items():
            if is_number(value) or (is_text_of_number(value) and is_told_of(path)):
                found.setdefault(path, []).append((place, number(value)))
    kept = set(sorted(found, key=unlikelihood)[:MOST_LOOKED_AT]) | {known.total}
    columns: dict[str, Values] = {}
    for path, numbers in found.items():
        if path in kept:
            columns[path] = np.full(len(rows), nan)
            columns[path][[place for place, _ in numbers]] = [value for _, value in numbers]
    return columns


def is_text_of_number(value: Any) -> bool:
    """Whether it is a text that can be read as a finite number."""
    return type(value) is Doubtful and isfinite(number(value))


def _texts_of(rows: Sequence[Row], numbers: Mapping[str, Values], known: Layout) -> list[str]:
    """The fields that are named as rewards and hold texts alone, of which none is a number.

    A long text beside a reward is its explanation.
    """
    shorts: dict[str, bool] = {}
    for row in rows:
        total = {known.total: row.total} if known.total is not None else {}
        for path, value in (*row.rewards.items(), *total.items()):
            if isinstance(value, str):
                short = value is not TOO_LONG
                shorts[path] = short and shorts.get(path, True)
    rewarded = any(is_told_of(path) for path in numbers)
    return [
        path
        for path, short in shorts.items()
        if not np.isfinite(numbers.get(path, nan)).any()
        and (short or not rewarded)
        and (is_all_rewards(path) or (short and is_told_of(path)))
    ]


def _told_apart(
    rows: Sequence[Row], lines: Sequence[int], inferred: Collection[str] = ()
) -> tuple[dict[str, None], dict[str, tuple[int, int]]]:
    """The fields that hold a number, and those that hold a text: the first line, and how many."""
    numbers: dict[str, None] = {}
    texts: dict[str, tuple[int, int]] = {}
    for row, line in zip(rows, lines, strict=True):
        for name, value in row.rewards.items():
            if name in inferred and is_text_of_number(value):
                numbers[name] = None
            elif type(value) is Doubtful:
                first, count = texts.get(name, (line, 0))
                texts[name] = first, count + 1
            elif value is not None:
                numbers[name] = None
    return numbers, texts
