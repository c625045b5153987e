"""Which fields of a file's records are its rewards: told while it is read, if nobody says."""

from collections.abc import Mapping, Sequence
from itertools import islice

from gdpo.rollouts.readers._report import TOTAL_ALONE, FileReport, ReadReport
from gdpo.rollouts.readers._rows import Doubtful, Row

MOST = 64
"""Rewards of a file that are told by being numbers: each is a column of all its rollouts."""
_TEXTS = 1024
"""Fields of texts that are looked after, should they turn out to be rewards."""
_LONGEST_NAME = 200
"""Characters of what may be the name of a reward."""


class Candidates:
    """The rewards of one file: those asked for, or every part that holds a number somewhere."""

    def __init__(self, asked: Sequence[str] | None, file: FileReport, report: ReadReport) -> None:
        self._asked, self._file, self._report = asked, file, report
        self._found: dict[str, None] = {}
        self._texts: dict[str, tuple[int, int]] = {}

    def narrow(self, row: Row, line: int) -> None:
        """Keep no more fields of a rollout than there may be rewards."""
        if len(row.rewards) <= MOST:
            return
        if self._asked is None:
            numbers, texts = _told_apart([row], [line])
            self._take(numbers)
            self._pass_over(texts)
            kept = set(self._found)
        else:
            kept = {*self._asked, *islice(row.rewards, MOST)}
        row.rewards = {name: value for name, value in row.rewards.items() if name in kept}
        if row.weights:
            row.weights = {name: w for name, w in row.weights.items() if name in kept}

    def names(self, rows: Sequence[Row], lines: Sequence[int]) -> tuple[tuple[str, ...], str]:
        """The rewards of some rollouts, which follow those before, and how they were told.

        Those asked for; else every part that is a number in one of them or before; else the total
        alone.
        """
        if self._asked is not None:
            return tuple(self._asked), "as asked for"
        numbers, texts = _told_apart(rows, lines)
        self._take(numbers)
        self._pass_over(texts)
        if self._found:
            weighted = any(row.weights for row in rows)
            told = "the dump's, with their weights" if weighted else "every part that is a number"
            return tuple(self._found), told
        totals = dict.fromkeys(row.total_name for row in rows if row.total is not None)
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


def _told_apart(
    rows: Sequence[Row], lines: Sequence[int]
) -> tuple[dict[str, None], dict[str, tuple[int, int]]]:
    """The fields that hold a number, and those that hold a text: the first line, and how many."""
    numbers: dict[str, None] = {}
    texts: dict[str, tuple[int, int]] = {}
    for row, line in zip(rows, lines, strict=True):
        for name, value in row.rewards.items():
            if type(value) is Doubtful:
                first, count = texts.get(name, (line, 0))
                texts[name] = first, count + 1
            elif value is not None:
                numbers[name] = None
    return numbers, texts
