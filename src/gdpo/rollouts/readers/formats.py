"""Defines the known formats, and detects the format of a file."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gdpo._naming import refuse_unknown
from gdpo.errors import DataError
from gdpo.rollouts.readers import records
from gdpo.rollouts.readers.columns import Rescore
from gdpo.rollouts.readers.names import (
    GDPO,
    NOTHING_KNOWN,
    TRL,
    Layout,
    is_container,
    is_named_reward,
    kinds_in,
    listed,
    looks_rewarded,
)
from gdpo.rollouts.readers.records import ParsedRollout, Record
from gdpo.rollouts.readers.sources import LoadPt


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Stores the caller's options. None: the value is inferred if possible."""

    format: str | None = None
    rewards: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None
    load_pt: LoadPt | None = None
    rescore: Rescore | None = None
    texts: bool = False
    """Whether the texts are needed, to rescore or show them. The rewards are then not read."""


@dataclass(frozen=True, slots=True)
class Format:
    """Describes one format of rollout files."""

    name: str
    kind: str
    """`parquet`, `jsonl`, `pt` or `table` (of W&B). Empty: any file with columns."""
    fields: frozenset[str]
    rows: Callable[[Record], Iterator[ParsedRollout]] | None = None
    """Function that converts a record to its rollouts. None if the columns are read directly."""
    lists: bool | None = None
    """Whether `prompt`, `completion` and `step` must be lists. None if both forms are accepted."""
    numbers: tuple[str, ...] = ()
    """Columns that are always read from a parquet file of records."""
    texts: tuple[str, ...] = ()
    """Additional columns that are read if texts are needed."""
    wordless: bool = False
    """Whether the files contain no texts, so that they cannot be rescored."""
    known: Layout | None = None
    """Meanings of the fields. None for a format of records that defines the rewards."""


def _format(name: str, kind: str, fields: str, **more: Any) -> Format:
    return Format(name, kind, frozenset(fields.split()), **more)


FORMATS = (
    _format("gdpo", "parquet", "step group_id sample_id rewards weights advantage", known=GDPO),
    _format(
        "art",
        "parquet",
        "group_index reward metrics messages",
        rows=records.art,
        known=Layout(total="reward"),
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
            "info",  # contains the trace, which has the rewards
        ),
        texts=("prompt", "completion", "answer"),
    ),
    _format("trl", "parquet", "step prompt completion advantage", known=TRL),
    _format("trl", "table", "step prompt completion advantage", known=TRL),
    _format("verifiers", "jsonl", "task traces", rows=records.episodes),
    _format("verifiers", "jsonl", "task nodes rewards", rows=records.episodes),
    _format(
        "verifiers-results",
        "jsonl",
        "example_id reward metrics",
        rows=records.results,
        known=Layout(total="reward"),
    ),
    _format(
        "tinker",
        "jsonl",
        "group_idx traj_idx total_reward steps",
        rows=records.tinker,
        wordless=True,
        known=Layout(total="total_reward"),
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
    _format(
        "verl", "jsonl", "input output score step", rows=records.verl, known=Layout(total="score")
    ),
    _format(
        "ms-swift", "jsonl", "prompt completion", rows=records.swift, lists=True, known=Layout()
    ),
    _format(
        "ms-swift-ray",
        "jsonl",
        "gen_step prompt completion reward",
        rows=records.swift_row,
        lists=False,
    ),
    _format("slime", "pt", "rollout_id group_index reward", rows=records.slime),
    Format("columns", "", frozenset(), known=NOTHING_KNOWN),
)
"""The known formats, in the order in which they are tried."""
_SCALAR = frozenset({"open-instruct", "ms-swift-ray"})
"""Formats with only a scalar reward."""
_FLAT = _SCALAR | {"verl"}
"""Formats without an object of rewards."""

NAMES = tuple(dict.fromkeys(f.name for f in FORMATS))
WORDLESS = frozenset(f.name for f in FORMATS if f.wordless)


def recognized(kind: str, fields: Collection[str], record: Record | None) -> Format | None:
    """Return the first format whose fields all exist, or None."""
    first = record or {}
    # Chat messages are a list too, but in that case the step is not a list.
    columns = first.get("prompt"), first.get("completion"), first.get("step", first.get("gen_step"))
    lists = all(isinstance(each, list) for each in columns)
    # These formats have flat fields, and some a scalar reward alone.
    kinds = kinds_in(first)
    nested = any(kinds[name] == "object" and is_container(name) for name in kinds)
    parts = any(kinds[name] == "number" and is_named_reward(name) for name in kinds)
    tokens = kinds.get("response_tokens", "other")
    for known in FORMATS:
        if (known.name in _FLAT and nested) or (known.name in _SCALAR and parts):
            continue
        if known.name == "open-instruct" and tokens != "other":  # a number of tokens, not a list
            continue
        if known.kind == kind and known.fields <= set(fields) and known.lists in (None, lists):
            return known
    return None


def named(name: str, kind: str, fields: Collection[str]) -> Format | None:
    """Return the format with this name, or None if it uses another kind of file."""
    refuse_unknown([name], NAMES, "unknown format")
    fitting = [f for f in FORMATS if f.name == name and f.kind in ("", kind)]
    return max(fitting, key=lambda form: form.fields <= set(fields), default=None)


def format_of(
    kind: str,
    asked: ReaderOptions,
    fields: Collection[str],
    numbers: Iterable[str],
    record: Record | None,
) -> tuple[Format, str]:
    """Return the format of a file, and a phrase on how it was determined.

    `kind` is the kind of the file, such as `parquet` or `jsonl`, `numbers` the paths of the numeric
    fields, and `record` the first record, if any.
    """
    if asked.format is not None:
        form, how = named(asked.format, kind, fields), "as given"
        if form is None:
            raise DataError(
                f"format {asked.format} is not stored in {kind} files: correct the format name "
                "(--columns format=NAME)"
            )
    elif asked.columns is None and (form := recognized(kind, fields, record)) is not None:
        how = f"detected from the fields {', '.join(sorted(form.fields))}"
    else:
        form, how = FORMATS[-1], "read by column names"
        by_columns = asked.columns is not None or asked.rewards is not None
        if not by_columns and not looks_rewarded(fields, numbers):
            raise DataError(
                f"unknown format, with the fields {listed(fields)}: specify the format (--columns "
                "format=NAME), the meaning of the columns (--columns) or the rewards (--rewards), "
                "or pass --columns format=metrics if each row contains the means of a step"
            )
    if form.wordless and asked.rescore is not None:
        raise DataError(
            f"{form.name} files contain no texts that could be rescored: remove --rescore to "
            "read the rewards in the files"
        )
    return form, how
