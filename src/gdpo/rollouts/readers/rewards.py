"""Determines what a file is read with: requested, known from its format, or proposed.

It is determined before any row is read, from the first rows of a run, and stands for options.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from math import isfinite, nan
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from gdpo.errors import DataError
from gdpo.rewards.gates import described_ranges
from gdpo.rollouts.arrow import pa
from gdpo.rollouts.readers.columns import (
    LARGEST,
    Columns,
    column_in,
    entered,
    holds_numbers,
    names_in,
    numeric,
    of_records,
    of_table,
    paths_in,
    paths_of,
    spread_column,
)
from gdpo.rollouts.readers.files import RolloutFile
from gdpo.rollouts.readers.formats import Format, ReaderOptions, format_of_table
from gdpo.rollouts.readers.keys import Key, grouping, pair
from gdpo.rollouts.readers.names import (
    NAME_LISTS,
    NEVER,
    NUMERIC,
    Inner,
    Kind,
    Layout,
    by_name,
    container_of,
    fits_reward,
    is_all_rewards,
    is_container,
    is_named_as_reward,
    may_be_text,
    unlikelihood,
)
from gdpo.rollouts.readers.propose import (
    GUESSED,
    LOOKED_AT,
    MOST,
    Given,
    Numbers,
    Proposal,
    Reason,
    contradicting,
    found_in_total,
    named_totals,
    propose,
)
from gdpo.rollouts.readers.records import (
    LONGEST,
    TOO_LONG,
    DoubtfulText,
    ParsedRollout,
    Record,
    as_object,
    is_number,
    number,
)
from gdpo.rollouts.readers.report import NAMED, FileReport, ReadProblem
from gdpo.rollouts.readers.sources import (
    csv_batches,
    open_parquet,
    parts,
    unreadable,
    wandb_table,
)
from gdpo.rollouts.record import read_declared
from gdpo.rollouts.table import BY_BOTH, BY_PROMPT, NO_KEY

_SIBLINGS = 64
"""Maximum number of further files of a run whose values are used to infer its rewards."""
_MANY_FIELDS = {"most": MOST}
_MOST_LOOKED_AT = 256
"""Maximum number of numeric fields to examine in a file in an unrecognized format."""
_LONGEST_NAME = 200
"""Maximum length of a reward's name, in characters."""
STATE = "trainer_state.json"
_LOGGED = re.compile(r"(?:eval_)?rewards/(.+)/mean")
_LARGEST_LOG = 32 * 2**20
"""Maximum size of a log to read, in bytes. Parsing takes 30 times its size in memory."""


@dataclass(frozen=True, slots=True)
class Run:
    """Keeps what was proposed for the files of a run, so that it is proposed once."""

    files: Sequence[RolloutFile] = ()
    proposals: dict[tuple[str, ...], Proposal] = field(default_factory=dict)
    counted: dict[str, dict[str, str]] = field(default_factory=dict)
    """Path of each reward by name that files of each format have named so far."""
    weights: dict[str, float] = field(default_factory=dict)
    """Last recorded weight of each reward."""

    def after(self, file: FileReport) -> list[RolloutFile]:
        """Return the next files, whose rows are looked at if a file has few."""
        place = next((i for i, each in enumerate(self.files) if each.path == file.path), 0)
        return [f for f in self.files[place + 1 :] if f.kind == file.kind][:_SIBLINGS]

    def proposed(
        self, form: str, numbers: Sequence[str], propose: Callable[[], Proposal]
    ) -> Proposal:
        """Return the proposal for a format. A refusal holds for files with the same numbers."""
        keys = (form,), (form, *numbers)
        found = next((self.proposals[key] for key in keys if key in self.proposals), None)
        if found is None:
            found = propose()
            self.proposals[keys[bool(found.refused)]] = found
        return found


def narrow(row: ParsedRollout, asked: ReaderOptions, form: Format, file: FileReport) -> None:
    """Drop fields of a rollout with more fields than the maximum number of rewards."""
    if len(row.rewards) <= MOST:
        return
    names, proposed = list(row.rewards), form.rewards != "format"
    if proposed:
        names.sort(key=unlikelihood)
    if asked.rewards is None and not (proposed and unlikelihood(names[MOST]) == NEVER):
        file.note_once(ReadProblem.MANY, _MANY_FIELDS)
    kept = {*names[:MOST], *(asked.rewards or ())}
    row.rewards = {name: value for name, value in row.rewards.items() if name in kept}
    if row.weights:
        row.weights = {name: w for name, w in row.weights.items() if name in kept}
    row.turns = row.turns.only({*kept, form.known.total or ""})


def given_by_records(
    asked: ReaderOptions,
    form: Format,
    file: FileReport,
    rows: Sequence[ParsedRollout],
    more: Callable[[int], Sequence[ParsedRollout]],
    run: Run,
) -> Given:
    """Return what a file of records is read with. `more` returns rows of later files."""
    known, first = form.known, rows[:LOOKED_AT]
    there = {*paths_of(first), known.total}
    if form.rewards == "format":
        found = _of_format(asked, first, str(known.total))
        file.numbers = tuple({**found.names, str(known.total): ""})
    else:

        def proposed() -> Proposal:
            looked = [*first, *more(LOOKED_AT - len(first))]
            numbers, texts = _looked_at(looked, known)
            file.numbers = tuple([path for path in numbers if path in there][:MOST])

            def columns(paths: Sequence[str]) -> list[Columns]:
                given = Given(known, known.total, names={path: path for path in paths})
                scratch = FileReport(file.path, number=file.number)
                return [of_records(looked, np.arange(len(looked)), given, scratch)]

            taken = [path for meaning, path in known.places().items() if meaning in NUMERIC]
            meant = by_name(sorted(paths_of(looked)), [*numbers, *taken])
            return _proposed(asked, file, form, columns, meant, numbers, texts)

        found = run.proposed(form.name, file.numbers, proposed)
    if asked.rewards is None:
        found = replace(found, names=_bounded(found.names, file))
    here = {name: path for name, path in found.names.items() if path in there}
    names = _counting(found, here, file, run) or found.names
    return Given(_with_total(known, found), known.total, found, names)


def _with_total(known: Layout, found: Proposal) -> Layout:
    if found.total is None and known.total not in found.texts:
        return known
    return replace(known, total=found.total)


def _of_format(asked: ReaderOptions, rows: Sequence[ParsedRollout], total: str) -> Proposal:
    """Return the components that a format defines as rewards, or else its scalar reward."""
    if asked.rewards is not None:
        return Proposal("asked", {name: name for name in asked.rewards})
    names = _later(Proposal("format"), {}, rows)
    if names:
        return Proposal("weighted" if any(row.weights for row in rows) else "format", names)
    scored = any(row.total is not None for row in rows)
    return Proposal("scalar", {total: total} if scored else {})


def with_later(
    given: Given, rows: Sequence[ParsedRollout], file: FileReport, run: Run
) -> tuple[Given, int]:
    """Return what is given with the rewards that first occur in these rows, and where they do."""
    later = _later(given.rewards, given.names, rows)
    names = _counting(given.rewards, {**given.names, **later}, file, run) if later else {}
    paths = {*names.values()} - {*given.names.values()}
    if not paths:
        return given, 0
    first = next(place for place, row in enumerate(rows) if not paths.isdisjoint(row.rewards))
    return replace(given, names=names), first


def _later(
    found: Proposal, names: Mapping[str, str], rows: Sequence[ParsedRollout]
) -> dict[str, str]:
    """Return the rewards in rows that are not among `names`, but fit what was found."""
    unknown = paths_of(rows) - {*names.values()}
    fitting = {path: name for path in unknown if (name := found.name_of(path)) is not None}
    if not fitting:
        return {}
    may_be_null, known = found.kind not in GUESSED, {*found.names.values()}
    return {
        fitting[path]: path
        for row in rows
        for path, value in row.rewards.items()
        if path in fitting
        if path in known or (type(value) is not DoubtfulText and (value is not None or may_be_null))
    }


def _counting(
    found: Proposal, here: Mapping[str, str], file: FileReport, run: Run
) -> Mapping[str, str]:
    """Return the rewards of a file that names those in `here`: also those of earlier files.

    They are in the order of the proposal. Where the format defines them, each file has its own.
    """
    if found.kind in ("format", "weighted", "scalar"):
        return _bounded(here, file)
    counted = {**run.counted.get(file.format, {}), **here}
    names = {name: path for name, path in {**found.names, **counted}.items() if name in counted}
    if found.kind not in ("asked", "record"):
        names = _bounded(names, file)
    run.counted[file.format] = names
    return names


def _bounded(names: Mapping[str, str], file: FileReport) -> dict[str, str]:
    """Return as many rewards as may be inferred, and report which are left out."""
    short = {name: path for name, path in names.items() if len(name) <= _LONGEST_NAME}
    if len(short) < len(names):
        file.note_once(ReadProblem.LONG_NAME, {"most": _LONGEST_NAME})
    if len(short) > MOST:
        file.note_once(ReadProblem.MANY, _MANY_FIELDS)
    return dict(islice(short.items(), MOST))


_FirstTable: TypeAlias = tuple[FileReport, Any, Any]
"""A report of its own, the schema and the first batch of a table, which is None for parquet."""
_FirstRows: TypeAlias = tuple[Any, FileReport, list[str]]
"""First rows of a table, their report, and the numbers that the first table of the run lacks."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Stores what the schema and the first rows of a table show."""

    known: Layout
    kinds: Mapping[str, Kind]
    """Kind of each column, also inside lists and JSON texts."""
    numeric: Sequence[str]
    """Columns with texts of numbers."""
    unread: Sequence[str]
    """Columns named as rewards that contain none."""
    batches: Iterable[_FirstRows]

    def of_kind(self, *kinds: Kind) -> list[str]:
        """Return the columns of some kinds."""
        return [path for path, kind in self.kinds.items() if kind in kinds]

    def columns(self, paths: Sequence[str]) -> list[Columns]:
        """Return some columns of the first rows of the run."""
        given = Given(self.known, names={path: path for path in paths})
        return [
            of_table(rows, np.arange(len(rows)), given, report) for rows, report, _ in self.batches
        ]


def given_by_table(
    asked: ReaderOptions,
    file: FileReport,
    form: Format,
    schema: Any,
    first: Any,
    run: Run,
) -> Given:
    """Return what a table is read with. `first` is its first batch, or None if it is parquet."""
    of_record = form.rewards == "record"
    tables = () if of_record else _first_tables(asked, file, form, schema, first, run)
    table = _looked_into(asked, form, schema, tables)
    own = table.of_kind("number", "empty")
    found = Proposal(form.rewards if asked.rewards is None else "asked")
    if form.name == "trl" and asked.rewards is None:
        own = _floats(schema, table.known, file.path)
    if not of_record:
        found = run.proposed(
            form.name, file.numbers, lambda: _proposed_columns(table, asked, form, file, own)
        )
        if asked.rewards is None:
            found = replace(found, names=_bounded(found.names, file))
    if of_record and asked.rewards is not None:
        meant = by_name(own, own)
        names = {name: meant.get(name, name) for name in asked.rewards}
    elif of_record:
        record = schema.field("rewards").type
        inner = [each.name for each in record] if pa.types.is_struct(record) else []
        names = {name: f"rewards.{name}" for name in inner}
    else:
        names = _names_among(found, own, table, file)
    there = [f"{path}." for path in (*table.kinds, *schema.names)]
    # A text or a list may name it in a later row.
    opened = {path for path, kind in paths_in(schema).items() if kind in ("text", "other")}
    here = {
        name: path
        for name, path in names.items()
        if path.partition(".")[0] in opened or any(each.startswith(f"{path}.") for each in there)
    }
    names = _counting(found, here, file, run) or names or found.names
    ranges = described_ranges(read_declared(schema))
    declared = {
        name: each
        for name, path in names.items()
        if (each := ranges.get(path.removeprefix("rewards."))) is not None
    }
    return Given(_with_total(table.known, found), None, found, names, declared)


def _looked_into(
    asked: ReaderOptions, form: Format, schema: Any, tables: Iterable[_FirstTable]
) -> _Table:
    kinds, known = paths_in(schema), form.known
    if form.rewards == "record":  # the rewards are known
        return _Table(known, kinds, (), (), ())
    texts = [path for path, kind in kinds.items() if kind == "text" and may_be_text(path)]
    texts = texts[:_MOST_LOOKED_AT]
    inside = list[str]()
    if form.name == "columns":  # lists and JSON texts may hold all rewards
        some = (path for path, kind in kinds.items() if kind in ("other", "text"))
        inside = [path for path in some if not isinstance(path, Inner) and is_container(path)]
    numbers = [path for path, kind in kinds.items() if kind in ("number", "empty")]
    looked = sorted(numbers, key=unlikelihood)[:_MOST_LOOKED_AT]
    others = [path for path in (known.group, known.prompt, known.step) if path is not None]
    looked += [*inside, *texts, *others]
    # Where lists or JSON text may hold rewards, a later total has parts that are not opened.
    own = None if inside else {*numbers}
    batches = _first_rows(asked, form, tables, looked, own)
    numeric, unread = list[str](), list[str]()
    if inside or texts:
        peeked = list(islice(batches, 1))
        rows, batches = peeked[0][0] if peeked else None, chain(peeked, batches)
        kinds, unread = _opened(kinds, inside, rows)
        texts = [path for path in texts if kinds.get(path) == "text"]
        numeric, named = _named_texts(texts, known, rows)
        unread = [*named, *unread]
    known = known if known.total in kinds else replace(known, total=None)
    return _Table(known, kinds, numeric, unread, batches)


def open_table(file: FileReport) -> tuple[Any, int, Any, Iterator[Any]] | None:
    """Return the schema of a table, its number of rows as far as known, and its batches.

    The first batch is returned apart. It is None for parquet, of which only some columns are read.
    """
    if file.kind == "parquet":
        parquet = open_parquet(file.path)
        return parquet.schema_arrow, parquet.metadata.num_rows, None, iter(())
    blocks = csv_batches(file) if file.kind == "csv" else wandb_table(file)
    first = next(blocks, None)
    return None if first is None else (numeric(first), 0, first, blocks)


def _first_tables(
    asked: ReaderOptions, file: FileReport, form: Format, schema: Any, first: Any, run: Run
) -> Iterator[_FirstTable]:
    """Yield a table, and the later ones of its run and format."""
    yield FileReport(file.path, format="columns", number=0), schema, first
    for place, each in enumerate(run.after(file), 1):
        report = FileReport(each.path, format="columns", number=place)
        with suppress(*unreadable()):  # which is reported when the file is read
            # W&B tables, which are read whole, are not looked at.
            if each.kind != "table" and (table := open_table(report)) is not None:
                fields, _, first, _ = table
                if format_of_table(asked, FileReport(each.path), fields).name == form.name:
                    yield report, fields, first


def _first_rows(
    asked: ReaderOptions,
    form: Format,
    tables: Iterable[_FirstTable],
    paths: Sequence[str],
    own: Collection[str] | None,
) -> Iterator[_FirstRows]:
    """Yield some columns of the first rows of tables, and the numbers that are not `own`.

    `own` is None if no other numbers count.
    """
    left = LOOKED_AT
    wanted = {*paths, *(each.partition(".")[0] for each in paths), *NAME_LISTS}
    for report, schema, batch in tables:
        numbers = [path for path, kind in paths_in(schema).items() if kind == "number"]
        if form.name == "trl" and asked.rewards is None:
            numbers = _floats(schema, form.known, report.path)
        more = [path for path in numbers if own is not None and path not in own]
        more = sorted(more, key=unlikelihood)[:_MOST_LOOKED_AT]
        kept = {*wanted, *more, *(path.partition(".")[0] for path in more)}
        names = [name for name in schema.names if name in kept]
        if batch is None:
            with suppress(*unreadable()):
                parquet = open_parquet(report.path, form.known.prompt)
                batch = next(parts(parquet, left, names), None)
        if batch is not None:
            yield batch.select(names)[:left], report, more
            left -= min(batch.num_rows, left)
        if left <= 0:
            return


def _proposed_columns(
    table: _Table, asked: ReaderOptions, form: Format, file: FileReport, own: Sequence[str]
) -> Proposal:
    """Return the proposal among the numbers, and texts of numbers, in the first rows of a run."""
    known, table = table.known, replace(table, batches=list(table.batches))
    later = chain.from_iterable(more for _, _, more in table.batches)
    total = [known.total] if known.total is not None and known.total not in own else []
    paths = list(dict.fromkeys([*own, *total, *table.numeric, *later]))
    form = replace(form, known=known)
    meant = by_name(table.kinds, paths)
    found = _proposed(asked, file, form, table.columns, meant, paths, table.unread)
    if form.name != "trl":
        return found
    others = [
        path for path in table.of_kind("number") if path not in {*own, *known.places().values()}
    ]
    left_out: dict[str, Reason] = dict.fromkeys(others, "name")
    return replace(found, left_out={**left_out, **found.left_out})


def _opened(
    kinds: dict[str, Kind], inside: Sequence[str], rows: Any
) -> tuple[dict[str, Kind], list[str]]:
    """Return the columns, with those inside lists and JSON text, and columns with neither."""
    found, unread = dict(kinds), list[str]()
    for path in inside:
        column = None if rows is None else entered(rows, path)
        inner = {} if column is None else spread_column(column, names_in(rows))
        if inner:
            if "0" in inner:  # a list without names, which may have a value for each turn
                found[path] = "number"
            else:
                del found[path]
            found |= {Inner(f"{path}.{name}"): "number" for name in inner}
        elif kinds[path] == "other" and is_all_rewards(path):
            unread.append(path)
    return found, unread


def _floats(schema: Any, known: Layout, path: Path) -> list[str]:
    """Return the columns that TRL may have written for a reward."""
    logged, taken = logged_rewards(path), known.places().values()
    return [
        each.name
        for each in schema
        if each.name not in taken and (pa.types.is_floating(each.type) or each.name in logged)
    ]


def _named_texts(paths: Sequence[str], known: Layout, rows: Any) -> tuple[list[str], list[str]]:
    """Return the columns with texts of numbers, and those named as rewards with other texts."""
    numeric, texts = list[str](), list[str]()
    for path in () if rows is None else paths:
        array = entered(rows, path)
        column = column_in(array)
        is_total = path == known.total and np.isfinite(column.values).any()
        if is_total or array.null_count == len(array):
            continue
        if holds_numbers(column):
            numeric.append(path)
        elif is_all_rewards(path) or (
            is_named_as_reward(path) and all(len(t or "") <= LONGEST for t in array.to_pylist())
        ):
            texts.append(path)
    return numeric, texts


def _names_among(
    found: Proposal, own: Sequence[str], table: _Table, file: FileReport
) -> dict[str, str]:
    """Return the proposed rewards that a table has, and its other columns that fit them."""
    for name, path in found.names.items():
        if path in table.numeric:
            file.note(None, ReadProblem.TEXT, {"field": f"reward {name!r}", "limit": LARGEST})
    if found.kind == "asked":
        here = by_name(table.kinds, own)
        return {
            name: path if name in found.meant else here.get(name, name)
            for name, path in found.names.items()
        }
    names = {name: path for name, path in found.names.items() if path in table.kinds}
    more = {path: found.name_of(path) for path in (*own, *table.numeric)}
    names |= {name: path for path, name in more.items() if name is not None}
    return _bounded(names, file)


def _proposed(
    asked: ReaderOptions,
    file: FileReport,
    form: Format,
    columns_of: Callable[[Sequence[str]], Sequence[Columns]],
    meant: Mapping[str, str],
    paths: Sequence[str],
    texts: Sequence[str],
) -> Proposal:
    """Return the rewards among the numbers of the first rollouts, and their weights in a total.

    `meant` is the field that each name means, `paths` are the fields with numbers, and `texts`
    those named as rewards that contain text. What the values contradict is reported.
    """
    known = form.known
    kept = {*sorted(paths, key=unlikelihood)[:_MOST_LOOKED_AT], known.total}
    paths = [path for path in paths if path in kept]
    columns = columns_of(paths)
    numbers = {path: _joined([part.rewards[path].values for part in columns]) for path in paths}
    texts = [path for path in texts if not np.isfinite(numbers.get(path, nan)).any()]
    groups, grouped_by = _first_groups(asked, known, columns)
    if asked.rewards is not None:
        names = {name: meant.get(name, name) for name in asked.rewards}
        # The object in which a requested reward is sought that first occurs later.
        prefix = container_of([*names.values()]) or container_of(paths)
        found, texts = Proposal("asked", names, prefix, meant=meant), []
    elif file.format in NAMED and (logged := set(logged_rewards(file.path)) & numbers.keys()):
        names = {name: name for name in numbers if name in logged}
        left_out: dict[str, Reason] = {path: "name" for path in numbers if path not in logged}
        found = Proposal("logged", names, left_out=left_out)
    else:
        known = replace(known, total=None) if known.total in texts else known
        described = asked.columns is not None
        found = propose(
            numbers,
            groups,
            known=known,
            meant=meant,
            texts=texts,
            kind=form.rewards,
            described=described,
        )
    found = replace(found, texts=tuple(texts), groups=grouped_by)
    for path in texts:
        file.note(None, ReadProblem.TEXTS, {"path": path})
    if found.refused:
        file.note(None, ReadProblem.NOT_INFERRED, {"why": found.refused})
    if found.names and found.kind not in ("logged", "total"):
        return _weighed(found, numbers, replace(known, total=found.total or known.total), file)
    return found


def _weighed(found: Proposal, numbers: Numbers, known: Layout, file: FileReport) -> Proposal:
    """Return the proposal with the weights of its rewards in a total, if there is one."""
    totals = named_totals(found.names, numbers, known)
    in_total = found_in_total(found.names, numbers, totals)
    if in_total is not None:
        for name in sorted(in_total.zeros):
            file.note(None, ReadProblem.ZERO, {"name": name, "total": in_total.total})
        return replace(found, total=in_total.total, in_total=in_total)
    if total := contradicting(found.names, numbers, totals):
        file.note(None, ReadProblem.CONTRADICTED, {"total": total})
    return found


def _first_groups(
    asked: ReaderOptions, known: Layout, columns: Sequence[Columns]
) -> tuple[Key, str]:
    """Return the group of each of the first rollouts, and how prompts contradict the ids."""
    names = ("steps", "ids", "prompts")
    steps, ids, prompts = (_joined([getattr(part, name) for part in columns]) for name in names)
    none = np.full(len(ids), NO_KEY)
    groups = grouping(steps, ids, prompts, none, none)
    alone = groups.alone and "group" not in (asked.columns or {})
    how = BY_BOTH if groups.split else BY_PROMPT if alone else ""
    keys = pair(steps, prompts if alone else groups.keys)
    return keys, "" if known.of_turns else how


def _joined(arrays: Sequence[np.ndarray]) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _looked_at(rows: Sequence[ParsedRollout], known: Layout) -> tuple[list[str], list[str]]:
    """Return the fields of records with numbers, and those named as rewards with texts."""
    numbers, shorts = dict[str, None](), dict[str, bool]()
    for row in rows:
        total = {} if known.total is None else {known.total: row.total}
        for path, value in (*total.items(), *row.rewards.items()):
            if isinstance(value, str):
                shorts[path] = value is not TOO_LONG and shorts.get(path, True)
            is_text = type(value) is DoubtfulText and isfinite(number(value)) and may_be_text(path)
            is_text |= value is None and fits_reward(path)
            if is_number(value) or is_text or (path == known.total and value is not None):
                numbers[path] = None
    rewarded = any(is_named_as_reward(path) for path in numbers)
    return list(numbers), [
        path
        for path, short in shorts.items()
        if (short or not rewarded)
        and (is_all_rewards(path) or (short and is_named_as_reward(path)))
    ]


def logged_steps(state: Path, *, most: int) -> list[Record]:
    """Return what a `trainer_state.json` of at most `most` bytes logged, or raise a DataError."""
    if state.stat().st_size > most:
        raise DataError(f"the file is larger than {most:,} bytes")
    try:
        history = as_object(json.loads(state.read_bytes())).get("log_history")
    except (ValueError, RecursionError) as error:
        raise DataError("not a readable JSON file") from error
    steps = cast("list[Any]", history) if isinstance(history, list) else []
    return [step for step in steps if isinstance(step, dict)]


def logged_rewards(file: Path) -> tuple[str, ...]:
    """Return the reward names in the newest log of the run that wrote a completions file.

    TRL logs `rewards/<name>/mean` for each reward, and nothing for other columns, in the
    `trainer_state.json` of every checkpoint.
    """
    run = file.parent.parent if file.parent.name == "completions" else file.parent
    logs = [run / STATE, *run.glob(f"checkpoint-*/{STATE}")]
    try:
        times = {log: log.stat().st_mtime_ns for log in logs if log.is_file()}
    except OSError:  # a checkpoint that is being deleted
        return ()
    newest = max(times, key=times.__getitem__, default=None)
    return () if newest is None else _logged_names(newest, times[newest])


@lru_cache(maxsize=16)
def _logged_names(log: Path, _changed: int) -> tuple[str, ...]:
    try:
        keys = (str(key) for step in logged_steps(log, most=_LARGEST_LOG) for key in step)
    except (OSError, DataError):
        return ()
    return tuple(dict.fromkeys(match[1] for key in keys if (match := _LOGGED.fullmatch(key))))
