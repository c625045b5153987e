"""Rewards given anew by the texts of the rollouts. Who gives them is handed in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from gdpo.rollouts.readers._keys import key_of
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rows import Row, count_of, plain, usable
from gdpo.rollouts.readers._table import RolloutTable

RESCORED = "scored anew"
"""How the rewards of a file were told."""
TEXTS = 4096
"""Rollouts at a time whose texts are wanted."""


@dataclass(frozen=True, slots=True)
class Written:
    """One rollout as its file has it; None: the file does not say."""

    prompt: Any
    """Text, chat messages or tokens."""
    completion: Any
    truth: Any
    """What it was judged against."""
    extras: Mapping[str, Any]
    """Other fields of the record."""
    num_tokens: float | None


@dataclass(frozen=True, slots=True)
class Rescored:
    """The rewards of some rollouts by name, in their order, and what could not be scored."""

    rewards: Mapping[str, Sequence[float | None]]
    problems: Mapping[str, Sequence[int]]
    """What was wrong, and with which of the rollouts."""


Rescore: TypeAlias = Callable[[Sequence[Written]], Rescored]


def forget_texts(row: Row) -> None:
    """Keep of the texts only what tells the group, and of other values what is a number."""
    row.completion, row.truth, row.extras = None, None, {}
    row.group = None if row.group is None or row.group != row.group else key_of(row.group)
    row.prompt = None if row.prompt is None or row.group is not None else key_of(row.prompt)
    row.step, row.total, row.advantage = plain(row.step), plain(row.total), plain(row.advantage)
    row.num_tokens, row.finish_reason = plain(row.num_tokens), plain(row.finish_reason)


def rescored(
    rows: Sequence[Row],
    lines: Sequence[int],
    rescore: Rescore,
    file: FileReport,
    report: ReadReport,
) -> tuple[str, ...]:
    """Give the rows their rewards anew, forget their texts, and name the rewards."""
    found = rescore(
        [Written(r.prompt, r.completion, r.truth, r.extras, count_of(r.num_tokens)) for r in rows]
    )
    _tell_problems(found, lines, file, report)
    for i, row in enumerate(rows):
        row.rewards = {name: values[i] for name, values in found.rewards.items()}
        row.weights = None
        forget_texts(row)
    return tuple(found.rewards)


def rescored_table(
    table: RolloutTable,
    written: Sequence[Written],
    rescore: Rescore,
    file: FileReport,
    report: ReadReport,
) -> RolloutTable:
    """A table of the same rollouts with their rewards given anew."""
    found, rows = rescore(written), table.row.tolist()
    _tell_problems(found, rows, file, report)
    file.rewards = tuple(found.rewards)
    columns = [
        usable(values, f"reward {name!r}", rows, file, report)
        for name, values in found.rewards.items()
    ]
    rewards = np.array(columns, np.float64).reshape(len(columns), len(table)).T
    return replace(table, names=tuple(found.rewards), weights=None, rewards=rewards)


def _tell_problems(
    found: Rescored, lines: Sequence[int], file: FileReport, report: ReadReport
) -> None:
    for what, places in found.problems.items():
        report.note(file.path, lines[places[0]], what, count=len(places))
