"""Reads the files of runs into one table per step, and reports what was read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from gdpo._shapes import Int
from gdpo._text import options_of
from gdpo.errors import ConfigError, DataError
from gdpo.rollouts.arrow import pq
from gdpo.rollouts.readers.batches import open_file
from gdpo.rollouts.readers.columns import (
    LARGEST,
    Column,
    Columns,
    Lines,
    Part,
    Rescore,
    RolloutText,
    Rows,
    column_of,
    turns_of,
)
from gdpo.rollouts.readers.files import ENDINGS, KINDS_READ, RolloutFile, find_files, without_twins
from gdpo.rollouts.readers.formats import ReaderOptions, recognized
from gdpo.rollouts.readers.keys import GroupReader, mostly_shared, pair
from gdpo.rollouts.readers.names import listed
from gdpo.rollouts.readers.propose import Given, InTotal, Proposal
from gdpo.rollouts.readers.report import FileReport, Oddity, ReadProblem, ReadReport
from gdpo.rollouts.readers.rewards import Run
from gdpo.rollouts.readers.sources import LoadPt, unreadable
from gdpo.rollouts.table import (
    BY_BOTH,
    BY_IDS,
    BY_PROMPT,
    FOUND,
    NO_KEY,
    RECORDED,
    ByReward,
    RolloutTable,
    Values,
    fits,
    joined,
    weights_in_total,
    whole_rollouts,
)

_REPEATS = frozenset({"trl", "ms-swift"})
"""Formats whose writers save the current rollouts whenever they log, new or not."""
_LONGEST = 1000
"""Maximum number of characters of a library's error message to keep."""


class RolloutReading(Iterator[RolloutTable]):
    """Iterates over the tables of the runs, one per step. At the end, `report` is complete."""

    def __init__(self, paths: Sequence[Path], asked: ReaderOptions, group_size: int | None) -> None:
        self.report = ReadReport(tuple(paths))
        self.progress: Callable[[RolloutTable], None] | None = None
        """Called with each step that was read."""
        self._group_size = group_size
        self._previous: RolloutTable | None = None
        files = find_files(paths, self.report.left_out)
        if asked.format is None and asked.columns is None:
            files = without_twins(files, _is_record, self.report.left_out)
        runs = {name: Run([f for f in files if f.run == name]) for name in {f.run for f in files}}
        parts = (
            part for file in files for part in _read_file(file, asked, self.report, runs[file.run])
        )
        self._tables = self._finished(_whole_steps(parts, self.report))

    def __next__(self) -> RolloutTable:
        table = next(self._tables)
        if self.progress is not None:
            self.progress(table)
        return table

    def _finished(self, steps: Iterator[RolloutTable]) -> Iterator[RolloutTable]:
        for table in steps:
            if self._repeated(table):
                continue
            self.report.torn_steps[table.run, int(table.steps[0])] += 1
            table = self._one_row_each(table)
            table = replace(table, groups=self._groups(table))
            several = table.by_turn.counts.max() > 1
            # gdpo's own files have turns only if the rewards were given for each turn.
            yield table if several or table.format == "gdpo" else replace(table, turns=None)

    def _one_row_each(self, table: RolloutTable) -> RolloutTable:
        """Return the table with one row per rollout, and report rows that are earlier turns."""
        whole = whole_rollouts(table)
        rows = np.flatnonzero(~np.isin(table.row, whole.row) | (table.file != table.file[0]))
        for index, path in enumerate(table.files) if len(whole) < len(table) else ():
            lost = int(np.sum(table.file == index)) - int(np.sum(whole.file == index))
            if lost:
                row = int(table.row[rows[0]]) if len(rows) else None
                self.report.file_of(path).give_back(row, ReadProblem.TURN_ROWS, rows=lost)
        return whole

    def _groups(self, table: RolloutTable) -> np.ndarray:
        groups, size, report, how = table.groups, self._group_size, self.report, table.grouped_by
        if how in (BY_IDS, BY_BOTH):
            report.size_unused += len(groups) if size is not None else 0
        elif size is not None:
            blocks, starts = np.arange(len(groups)) // size, np.arange(0, len(groups), size)
            mixed = np.minimum.reduceat(groups, starts) != np.maximum.reduceat(groups, starts)
            report.mixed_blocks += int(np.sum(mixed))
            # Prompts with text of a single rollout (a path) do not tell which rows belong together.
            if mixed.any() and mostly_shared(groups):
                report.mixed_runs.add(table.run)
            groups, how = blocks, f"group_size={size}"
        elif how != BY_PROMPT:
            groups = np.arange(len(groups))
        _, sizes = np.unique(groups, return_counts=True)
        report.grouped_by[how] += len(groups)
        report.groups += len(sizes)
        report.group_sizes.update(np.sort(sizes).tolist())
        return groups

    def _repeated(self, table: RolloutTable) -> bool:
        last, self._previous = self._previous, table
        if last is None or table.format not in _REPEATS:
            return False
        if (last.run, last.names, len(last)) != (table.run, table.names, len(table)):
            return False
        for name in ("groups", "advantages", "rewards"):
            if not np.array_equal(getattr(last, name), getattr(table, name), equal_nan=True):
                return False
        for index, path in enumerate(table.files):
            rows = np.flatnonzero(table.file == index)
            row = int(table.row[rows[0]]) if table.format == "trl" else None
            self.report.file_of(path).give_back(row, ReadProblem.REPEATED_STEP, rows=len(rows))
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
    """Read rollout files from one or more training runs, written by any framework.

    Texts are not kept in memory. Prompts are hashed if they are needed to form groups. Only the
    numbers of one step are in memory at a time.

    Args:
        path: A file, a folder, or a sequence of them. A folder may contain the files of several
            runs at any depth, which are named after the folders in which their paths differ.
        format: One of `FORMATS`. Default: detected for each file from its fields.
        rewards: Names of the reward columns. Use a dot for a field inside an object. Default: those
            of the format, or else inferred ones.
        columns: Column for each meaning, for files in an unrecognized format: `step`, `group`,
            `prompt`, `completion`, `advantage`, `num_tokens`, `finish_reason`, `total`, `rollout`
            or `turn`. Default: inferred.
        group_size: Number of rollouts per prompt, for files without group ids in which the rollouts
            of a prompt are consecutive. Default: rollouts with identical prompts form a group.
        load_pt: Function that reads `.pt` files: `load_dump` from `gdpo.integrations.torch_files`,
            which needs torch. Default: `.pt` files are not read.
        rescore: Function that computes rewards from the texts. Default: use the rewards in the
            files.

    Returns:
        An iterator over `RolloutTable` objects, one per step, with a `report` of what was read.

    Raises:
        DataError: If a path does not exist.
        ConfigError: If the format or a meaning is unknown, `group_size` is below 1, or no path is
            given.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    if not paths:
        raise ConfigError("path is empty: pass a file or folder with rollouts")
    if group_size is not None and group_size < 1:
        raise ConfigError(f"group_size must be at least 1, got {group_size}")
    named = None if rewards is None else tuple(rewards)
    asked = ReaderOptions(format, named, columns, load_pt, rescore, rescore is not None)
    reading = RolloutReading(paths, asked, group_size)
    meant = {"format": format, "group_size": group_size, **(columns or {})}
    meant = {name: value for name, value in meant.items() if value}
    reading.report.given = options_of(rewards or (), meant, {})
    return reading


def _read_file(
    found: RolloutFile,
    asked: ReaderOptions,
    report: ReadReport,
    run: Run,
) -> Iterator[RolloutTable]:
    """Yield a file's tables, and report what cannot be read."""
    if found.kind not in KINDS_READ:
        why = (
            "its extension is none of"
            if found.kind
            else "it contains no metrics, and rollouts end in"
        )
        report.left_out[found.path] = f"{why} {', '.join(ENDINGS)}"
        return
    file = FileReport(found.path, report, run=found.run, number=found.step)
    try:
        yield from _tables(asked, file, run)
    except unreadable() as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        told = isinstance(error, DataError)
        file.end(Oddity(error.what[:_LONGEST], error.remedy) if told else Oddity(why[:_LONGEST]))
    is_listed = any(each is file for each in report.files)
    assert not is_listed or file.rows == file.read + file.skipped, f"{found.path}: {file}"


def _tables(asked: ReaderOptions, file: FileReport, run: Run) -> Iterator[RolloutTable]:
    opened = open_file(asked, file, run)
    if opened is None:
        if file.skipped:
            file.format = "unknown"
            file.report.files.append(file)
        else:
            file.report.left_out[file.path] = "the file is empty"
        return
    given, parts = opened
    groups = GroupReader(given.rewards.groups)
    for part in parts:
        if asked.rescore is None:
            columns = part.columns()
        else:
            scored = _rescored(part, asked.rescore, file)
            columns = replace(part.columns(), rewards=scored, weights={}, turns=None)
            names = {**file.given.names, **dict.fromkeys(scored, "")}
            file.given = Given(given.known, rewards=Proposal("rescored"), names=names)
        checked = _checked(columns, given, groups, file)
        for rows in _by_step(columns.steps):
            of_step = {name: column[rows] for name, column in checked.items()}
            table = _table_of(columns, rows, of_step, given, groups, file, run)
            if table.steps[0] < 0:
                file.lose(int(columns.lines[rows][0]), ReadProblem.NO_STEP, rows=len(table))
            else:
                file.read += len(table)
                yield table
        file.numbered += len(part.lines)


def _rescored(part: Part, rescore: Rescore, file: FileReport) -> dict[str, Column]:
    found = rescore(part.texts(range(len(part.lines))))
    for what, places_of in found.problems.items():
        line = int(part.lines[places_of[0]])
        file.note(line, ReadProblem.TOLD, {"why": what}, count=len(places_of))
    return {name: column_of(values) for name, values in found.rewards.items()}


def _checked(
    columns: Columns, given: Given, groups: GroupReader, file: FileReport
) -> dict[str, np.ndarray]:
    """Return the columns of a `RolloutTable` that no reward is needed for, and report problems."""
    turns = np.nan_to_num(np.clip(columns.turn, -1, 2**53), nan=-1).astype(np.int64)
    found = groups.of(columns.steps, columns.ids, columns.prompts, columns.rollouts, turns)
    if groups.how == BY_PROMPT:
        file.note(None, ReadProblem.ALONE)
    if found.split:
        file.note(None, ReadProblem.SPLIT, count=max(found.differing, 1))
    lines = columns.lines
    checked = {
        "steps": columns.steps,
        "groups": found.keys,
        "cut": columns.cut,
        "trained": columns.trained,
        "row": file.numbered + np.arange(len(lines)),
        "total": columns.total.usable("total", lines, file),
        "advantages": columns.advantage.usable("advantage", lines, file),
        "num_tokens": columns.num_tokens.usable("num_tokens", lines, file),
    }
    if given.known.of_turns:
        of = pair(pair(found.keys, columns.steps), columns.rollouts)
        of = np.where(columns.rollouts == NO_KEY, NO_KEY, of)
        checked["parts"] = np.stack([of, turns], axis=-1)
    return checked


def _table_of(
    columns: Columns,
    rows: Rows,
    of_step: Mapping[str, Any],
    given: Given,
    groups: GroupReader,
    file: FileReport,
    run: Run,
) -> RolloutTable:
    """Return the rollouts of a step as a table."""
    lines, names = columns.lines[rows], tuple(map(str, columns.rewards))
    _report_groups(columns, rows, file)
    if columns.there:
        _report_absent(columns, rows, given, file)
    values = np.full((len(lines), len(names)), nan)
    for place, (name, column) in enumerate(columns.rewards.items()):
        values[:, place] = column.take(rows).usable(f"reward {name!r}", lines, file)
    weights = _recorded_weights(columns, rows, values, of_step["groups"], file, run)
    found, weights_from = given.rewards.in_total, RECORDED
    used = None if found is None else weights_in_total(names, found.weights, weights)
    if found is not None and used is not None:
        if weights is not None:
            shown = ", ".join(f"{name}={weight:g}" for name, weight in found.weights.items())
            details = {"total": found.total, "weights": shown}
            file.note_once(ReadProblem.RECORDED_APART, details)
        weights, weights_from = np.broadcast_to(used, values.shape), FOUND
        file.weights = found.weights
        values = _as_in_total(found, names, values, weights, of_step["total"], lines, file)
    file.recorded |= weights is not None and weights_from == RECORDED
    turns = None
    if columns.turns is not None:
        flat = columns.turns.take(rows)
        turns = turns_of(flat, names, lines, values, of_step["num_tokens"], file)
    return RolloutTable(
        run=file.run,
        format=file.format,
        names=names,
        weights=weights,
        weights_from=weights_from,
        files=(file.path,),
        rewards=values,
        file=np.zeros(len(lines), np.int64),
        ranges=given.ranges,
        grouped_by=groups.grouped_by(columns.grouped[rows], columns.prompted[rows]),
        turns=turns,
        **of_step,
    )


def _report_absent(columns: Columns, rows: Rows, given: Given, file: FileReport) -> None:
    """Report the rewards of the run that no rollout of a step has.

    Of those that the user named, remember which are in some file.
    """
    report, line = file.report, int(columns.lines[rows][0])
    for name in {**given.rewards.names, **columns.there}:
        there = columns.there.get(name)
        is_there = there is not None and bool(there[rows].any())
        if given.rewards.kind == "asked":
            report.sought[name] = is_there or report.sought.get(name, False)
        if not is_there:
            file.note(line, ReadProblem.NO_REWARD, {"name": name, "fields": listed(file.numbers)})
            report.offered |= dict.fromkeys(file.numbers)


def _by_step(steps: Int[np.ndarray, " rollout"]) -> Iterator[Rows]:
    order = np.argsort(steps, kind="stable")
    starts = np.flatnonzero(np.diff(steps[order])) + 1
    if len(starts):
        yield from np.split(order, starts)
    elif len(steps):
        yield slice(None)


def _recorded_weights(
    columns: Columns,
    rows: Rows,
    rewards: ByReward,
    groups: Int[np.ndarray, " rollout"],
    file: FileReport,
    run: Run,
) -> ByReward | None:
    """Return the recorded weights of a step, or None if a reward with values has none.

    A reward with neither values nor weights in the step keeps its last weight, or has weight 1.
    """
    lines, weights = columns.lines[rows], np.full(rewards.shape, nan)
    there = np.array([column is not None for column in columns.weights.values()], np.bool_)
    lacking = np.isnan(rewards)
    missing = lacking.all(axis=0)
    if not there.any() or not np.all(there | missing):
        return None
    for place, column in enumerate(columns.weights.values()):
        weights[:, place] = nan if column is None else column[rows]
    last = [run.weights.get(name, 1.0) for name in columns.rewards]
    weights = np.where(missing & np.isnan(weights).all(axis=0), last, weights)
    known = ~np.isnan(weights)
    first = weights[np.argmax(known, axis=0), np.arange(len(there))]
    weights = np.where(known | lacking, weights, first)
    if np.any(np.isnan(first)) or np.any(np.abs(weights) > LARGEST):
        file.note(int(lines[0]), ReadProblem.NO_WEIGHTS)
        return None
    run.weights.update(zip(columns.rewards, first.tolist(), strict=True))
    _, first_rows, group = np.unique(groups, return_index=True, return_inverse=True)
    # NaN is not larger than anything.
    differ = np.any(np.abs(weights - weights[first_rows][group]) > 0, axis=-1)
    file.note_where(differ, lines, ReadProblem.WEIGHTS_DIFFER)
    return weights


def _as_in_total(
    found: InTotal,
    names: Iterable[str],
    values: ByReward,
    weights: ByReward,
    total: Values,
    lines: Lines,
    file: FileReport,
) -> ByReward:
    """Return the rewards, 0 where the total adds nothing, and report totals that differ."""
    zeros = np.array([name in found.zeros for name in names], np.bool_)
    values = np.where(np.isnan(values) & zeros & np.isfinite(total)[:, None], 0.0, values)
    parts = np.nan_to_num(values * weights)
    size = np.abs(parts).sum(axis=1) + np.abs(total)
    apart = np.abs(total - parts.sum(axis=1) - found.constant)
    wrong = apart > found.tolerance + 1e-5 * size  # not where the total is NaN
    file.note_where(wrong, lines, ReadProblem.OTHER_WEIGHTS, {"total": found.total})
    return values


def _report_groups(columns: Columns, rows: Rows, file: FileReport) -> None:
    grouped, prompted = columns.grouped[rows], columns.prompted[rows]
    line = int(columns.lines[rows][0])
    bare = int(np.sum(~grouped & ~prompted))
    if 0 < bare < len(grouped):
        file.note(line, ReadProblem.UNGROUPED, count=bare)
    by_prompt = int(np.sum(~grouped & prompted))
    if by_prompt and grouped.any():
        file.note(line, ReadProblem.BY_PROMPT, count=by_prompt)


def _is_record(path: Path) -> bool:
    try:
        form = recognized("parquet", pq.read_schema(path).names, None)
    except unreadable():
        return False
    return form is not None and form.name == "gdpo"


def _whole_steps(parts: Iterator[RolloutTable], report: ReadReport) -> Iterator[RolloutTable]:
    steps = groupby(parts, lambda p: (p.run, p.format, p.grouped_by, int(p.steps[0])))
    for _, of_step in steps:
        tables = _with_few_turns(of_step, report)
        table = joined(tables)
        if table.weights is None and any(part.weights is not None for part in tables):
            report.file_of(tables[-1].files[0]).note(None, ReadProblem.FILES_WITHOUT_WEIGHTS)
        yield table


def _with_few_turns(parts: Iterable[RolloutTable], report: ReadReport) -> list[RolloutTable]:
    """Return the parts of a step, without their turns if these do not fit into memory together."""
    kept, size, longest, names = list[RolloutTable](), 0, 0, 0
    for part in parts:
        size, names = size + len(part), max(names, len(part.names))
        longest = max(longest, 0 if part.turns is None else part.turns.rewards.shape[1])
        kept.append(part if fits(size, longest, names) else replace(part, turns=None))
    if not fits(size, longest, names):
        report.file_of(kept[-1].files[0]).note(None, ReadProblem.MANY_TURNS)
        return [replace(part, turns=None) for part in kept]
    return kept


def read_texts(
    file: Path,
    rows: Sequence[int],
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    load_pt: LoadPt | None = None,
) -> list[RolloutText]:
    """Return the prompts and completions of some rollouts in one file.

    Args:
        file: One of the `files` of a table.
        rows: Values of the `row` column of a table. The texts are in the same order.
        format: As in `read_rollout_files`.
        columns: As in `read_rollout_files`.
        load_pt: As in `read_rollout_files`.

    Raises:
        DataError: If the file cannot be read, or a row does not exist.
    """
    asked = ReaderOptions(format, columns=columns, load_pt=load_pt, texts=True)
    report = FileReport(file)
    left, texts = set(rows), dict[int, RolloutText]()
    try:
        opened = open_file(asked, report, Run())
        for part in opened[1] if opened is not None and left else ():
            first = report.numbered
            report.numbered += len(part.lines)
            inside = sorted(row for row in left if first <= row < report.numbered)
            found = part.texts([row - first for row in inside]) if inside else []
            for row, text in zip(inside, found, strict=True):
                texts[row] = replace(text, row=row)
            left -= {*inside}
            if not left:
                break
    except unreadable() as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if left:
        raise DataError(
            f"{file} has no row {min(left)}: the file has changed since it was analyzed"
        )
    return [texts[row] for row in rows]
