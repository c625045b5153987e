"""All files of a run as tables of one step each, and the report of what was read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gdpo.errors import ConfigError
from gdpo.rollouts.readers._file import read_file
from gdpo.rollouts.readers._finding import find_files, without_twins
from gdpo.rollouts.readers._open import Wanted, is_record
from gdpo.rollouts.readers._piece import Piece
from gdpo.rollouts.readers._report import ReadReport
from gdpo.rollouts.readers._rescoring import Rescore
from gdpo.rollouts.readers._sources import LoadPt
from gdpo.rollouts.readers._table import RolloutTable, joined

_REPEATS = frozenset({"trl", "ms-swift"})
"""Their writers dump what they hold at every log, new or not."""


class RolloutReading(Iterator[RolloutTable]):
    """The tables of a run, one step after the other; its `report` is whole when they end."""

    def __init__(self, paths: Sequence[Path], wanted: Wanted, group_size: int | None) -> None:
        self.report = ReadReport(tuple(paths))
        self._group_size = group_size
        self._last: RolloutTable | None = None
        files = find_files(paths, self.report.left_out)
        if wanted.format is None and wanted.columns is None:
            files = without_twins(files, is_record, self.report.left_out)
        pieces = (piece for file in files for piece in read_file(file, wanted, self.report))
        self._tables = self._finished(_by_step(pieces, self.report))

    def __iter__(self) -> "RolloutReading":
        return self

    def __next__(self) -> RolloutTable:
        return next(self._tables)

    def _finished(self, steps: Iterator[Piece]) -> Iterator[RolloutTable]:
        for piece in steps:
            table = piece.table
            if self._repeated(table):
                continue
            self.report.torn_steps[table.run, int(table.steps[0])] += 1
            groups = self._groups(piece)
            self._count(groups, piece.grouped_by)
            yield replace(table, groups=groups)

    def _groups(self, piece: Piece) -> np.ndarray:
        """As the dump has them; else blocks of the size that was said; else by prompt."""
        groups, size = piece.table.groups, self._group_size
        if piece.grouped_by == "ids in the dump":
            self.report.size_unused += len(groups) if size is not None else 0
            return groups
        if size is None:
            return groups if piece.grouped_by == "repeated prompts" else np.arange(len(groups))
        blocks = np.arange(len(groups)) // size
        starts = np.arange(0, len(groups), size)
        low, high = (f.reduceat(groups, starts) for f in (np.minimum, np.maximum))
        self.report.mixed_blocks += int(np.sum(low != high))
        return blocks

    def _count(self, groups: np.ndarray, how: str) -> None:
        _, sizes = np.unique(groups, return_counts=True)
        by = f"group_size={self._group_size}" if self._group_size else how
        self.report.grouped_by[how if how == "ids in the dump" else by] += len(groups)
        self.report.groups += len(sizes)
        for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
            self.report.group_sizes[int(size)] += int(count)

    def _repeated(self, table: RolloutTable) -> bool:
        """Whether it is the step before once more: one generation may serve several."""
        last, self._last = self._last, table
        if last is None or table.format not in _REPEATS or not _same(last, table):
            return False
        for index, path in enumerate(table.files):
            rows = np.flatnonzero(table.file == index)
            file = next(f for f in reversed(self.report.files) if f.path == path)
            file.read -= len(rows)
            what = "the rollouts of the step before once more"
            row = int(table.row[rows[0]]) if table.format == "trl" else None  # else no line of it
            self.report.lose(file, row, what, rows=len(rows))
        return True


def read_rollout_files(
    path: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    rewards: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    group_size: int | None = None,
    load_pt: LoadPt | None = None,
    rescore: Rescore | None = None,
) -> RolloutReading:
    """Read the rollouts that a training run left behind, whichever framework wrote them.

    No text is kept: prompts are hashed where they are needed to tell the groups. Memory is that of
    the numbers of one step.

    Args:
        path: A file, or a folder with files of one or several runs, at any depth; or several of
            these, whose runs are told apart by the folders in which they differ.
        format: One of `FORMATS`; left out: each file's is recognized by its fields.
        rewards: The columns that are rewards, by name; a dot enters an object. Left out: those of
            the format, or every number that has no other meaning.
        columns: Which column is the `step`, `group`, `prompt`, `completion`, `advantage`,
            `num_tokens`, `finish_reason` or `total`, for files of no known format.
        group_size: Rollouts per prompt, which follow each other, where the dump has no ids of
            groups. Left out: equal prompts of a step are a group.
        load_pt: Reads `.pt` files: `load_dump` of `gdpo.integrations.slime`, which needs torch.
            Left out: they are not read, and the report says so.
        rescore: Gives the rewards of rollouts by their texts, instead of those of the files. Texts
            are read for it, and not kept.

    Returns:
        An iterator of `RolloutTable`, one per step, with the `report` of what was read.

    Raises:
        DataError: There is no such path.
        ConfigError: An unknown format or meaning of a column, a group size below 1, or no path.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    if not paths:
        raise ConfigError("name a file or folder with rollouts")
    if group_size is not None and group_size < 1:
        raise ConfigError(f"group_size must be at least 1, got {group_size}")
    asked = None if rewards is None else tuple(rewards)
    wanted = Wanted(format, asked, columns, load_pt, rescore)
    return RolloutReading(paths, wanted, group_size)


def _by_step(pieces: Iterator[Piece], report: ReadReport) -> Iterator[Piece]:
    """Pieces of files, each of one step, joined so that each is a step whole."""
    held: list[Piece] = []
    for piece in pieces:
        if not len(piece.table):
            continue
        if held and _key(held[0]) != _key(piece):
            yield _join(held, report)
            held = []
        held.append(piece)
    if held:
        yield _join(held, report)


def _key(piece: Piece) -> tuple[str, str, str, int]:
    return piece.table.run, piece.table.format, piece.grouped_by, int(piece.table.steps[0])


def _join(pieces: list[Piece], report: ReadReport) -> Piece:
    table = joined([piece.table for piece in pieces])
    if table.weights is None and any(piece.table.weights for piece in pieces):
        what = "its weights are not those of the other files of the step: 1 is, for each reward"
        report.note(pieces[-1].table.files[0], None, what)
    return Piece(table, pieces[0].grouped_by)


def _same(a: RolloutTable, b: RolloutTable) -> bool:
    return (
        (a.run, a.names, len(a)) == (b.run, b.names, len(b))
        and np.array_equal(a.groups, b.groups)
        and np.array_equal(a.advantages, b.advantages, equal_nan=True)
        and np.array_equal(a.rewards, b.rewards, equal_nan=True)
    )
