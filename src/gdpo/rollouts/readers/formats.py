"""Defines the formats and detects the format of a file."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.rollouts.readers import records
from gdpo.rollouts.readers.columns import Rescore
from gdpo.rollouts.readers.inference import (
    GDPO,
    TRL,
    Kind,
    Layout,
    kinds_in,
    layout,
    listed,
    looks_rewarded,
)
from gdpo.rollouts.readers.records import Record, Row
from gdpo.rollouts.readers.sources import LoadPt


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Stores the options of the caller. None: detect or infer."""

    format: str | None = None
    rewards: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None
    load_pt: LoadPt | None = None
    rescore: Rescore | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """Describes one format of rollout files."""

    name: str
    kind: str
    """`parquet`, `jsonl` or `pt`. Empty: any file with columns."""
    fields: frozenset[str]
    """Fields that a file must have to be detected."""
    rows: Callable[[Record], Iterator[Row]] | None = None
    """Function from a record to its rollouts. None: the columns are read directly."""
    lists: bool | None = None
    """Whether `prompt` must hold a list of values. None: it does not matter."""
    numbers: tuple[str, ...] = ()
    """Columns of a parquet file of records that are always read."""
    texts: tuple[str, ...] = ()
    """Columns that are also read if texts are needed."""
    wordless: bool = False
    """Whether the files contain no texts, so that they cannot be rescored."""
    known: Layout | None = None
    """Meanings of the fields, for records in an unrecognized format. None: the format defines
    them."""


def _format(name: str, kind: str, fields: str, **more: Any) -> Format:
    return Format(name, kind, frozenset(fields.split()), **more)


FORMATS = (
    _format("gdpo", "parquet", "step group_id sample_id rewards weights advantage"),
    _format(
        "art",
        "parquet",
        "group_index reward metrics messages",
        rows=records.art,
        numbers=("group_index", "reward", "metrics"),
        texts=("messages", "metadata"),
    ),
    _format(
        "prime-rl",
        "parquet",
        "step problem_id sample_id trajectory reward",
        rows=records.platform,
        numbers=(
            *("step", "problem_id", "reward", "metrics", "advantage", "num_output_tokens"),
            "info",  # the trace, whose rewards stand nowhere else
        ),
        texts=("prompt", "completion", "answer"),
    ),
    _format("trl", "parquet", "step prompt completion advantage"),
    _format("verifiers", "jsonl", "task traces", rows=records.episodes),
    _format("verifiers", "jsonl", "task nodes rewards", rows=records.episodes),
    _format("verifiers-results", "jsonl", "example_id reward", rows=records.results),
    _format(
        "tinker",
        "jsonl",
        "group_idx traj_idx total_reward steps",
        rows=records.tinker,
        wordless=True,
    ),
    _format(
        "open-instruct",
        "jsonl",
        "step prompt_idx response_tokens reward",
        rows=records.open_instruct,
        wordless=True,
    ),
    _format("nemo-rl", "jsonl", "content rewards idx", rows=records.nemo_rl),
    _format("skyrl", "jsonl", "input_prompt output_response score", rows=records.skyrl),
    _format("verl", "jsonl", "input output score step", rows=records.verl),
    _format("ms-swift", "jsonl", "prompt completion", rows=records.swift, lists=True),
    _format(
        "ms-swift-ray",
        "jsonl",
        "gen_step prompt completion reward",
        rows=records.swift_row,
        lists=False,
    ),
    _format("slime", "pt", "rollout_id group_index reward", rows=records.slime),
    Format("columns", "", frozenset()),
)
"""The formats, in the order in which they are tried."""

NAMES = tuple(dict.fromkeys(f.name for f in FORMATS))
WORDLESS = frozenset(f.name for f in FORMATS if f.wordless)


def recognized(kind: str, fields: Collection[str], record: Record | None) -> Format | None:
    """Return the first format, other than `columns`, whose fields all exist. None: none."""
    lists = isinstance(record.get("prompt"), list) if record else False
    lists = lists and record is not None and isinstance(record.get("completion"), list)
    # Chat messages are a list too, but then the step is not.
    steps = (record or {}).get("step", (record or {}).get("gen_step"))
    lists = lists and isinstance(steps, list)
    for known in FORMATS:
        if known.kind == kind and known.fields <= set(fields) and known.lists in (None, lists):
            return known
    return None


def named(name: str, kind: str, fields: Collection[str]) -> Format | None:
    """Return the format of that name for this kind of file. None: it uses another kind."""
    if name not in NAMES:
        raise ConfigError(f"unknown format {name!r}: {did_you_mean(name, NAMES)}")
    fitting = [f for f in FORMATS if f.name == name and f.kind in ("", kind)]
    return next((f for f in fitting if f.fields <= set(fields)), fitting[0] if fitting else None)


def format_of(
    kind: str,
    asked: ReaderOptions,
    fields: Collection[str],
    numbers: Iterable[str],
    record: Record | None = None,
) -> tuple[Format, str]:
    """Return the format of a file, and a phrase on how it was determined.

    Args:
        kind: Kind of the file, such as `parquet` or `jsonl`.
        asked: Options of the caller.
        fields: Names of the fields.
        numbers: Paths of the numbers.
        record: First record, for a file of records. Default: None.

    Raises:
        DataError: If the format is unknown.
        ConfigError: If `asked` names a format that does not exist.
    """
    if asked.format is not None:
        form = named(asked.format, kind, fields)
        if form is None:
            raise DataError(
                f"format {asked.format} is not stored in {kind} files: correct the name (format)"
            )
        return form, "as given"
    form = recognized(kind, fields, record) if asked.columns is None else None
    if form is not None:
        return form, f"detected from the fields {', '.join(sorted(form.fields))}"
    by_columns = asked.columns is not None or asked.rewards is not None
    if by_columns or looks_rewarded(fields, numbers):
        form = named("columns", kind, fields)
        assert form is not None
        return form, "read by column names"
    raise DataError(
        f"unknown format, with the fields {listed(fields)}: name the format (format), the meaning "
        "of the columns (columns) or the rewards (rewards)"
    )


def format_of_records(kind: str, asked: ReaderOptions, record: Record) -> tuple[Format, str]:
    """Return the format of a file of records, and a phrase on how it was determined.

    Raises:
        DataError: If the format is unknown (see `format_of`), or if its files contain no texts
            although they are to be rescored.
    """
    fields = kinds_in(record)
    numbers = records.numbers_by_path(record, but=frozenset())
    form, how = format_of(kind, asked, fields, numbers, record)
    if form.wordless and asked.rescore is not None:
        raise DataError(
            f"files of {form.name} contain no texts that could be rescored: remove --rescore to "
            "read the rewards in the files"
        )
    if form.rows is None:
        known = layout(asked.columns, fields)
        form = Format(form.name, "", form.fields, records.rows_by(known), known=known)
    return form, how


def layout_of(form: str, asked: ReaderOptions, fields: Mapping[str, Kind]) -> Layout:
    """Return the meanings of the columns of a file of this format."""
    known = {"gdpo": GDPO, "trl": TRL}.get(form)
    return known or layout(asked.columns, fields)
