"""The formats by name, and how a file tells its own."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError
from gdpo.rollouts.readers import _records as records
from gdpo.rollouts.readers import _traces as traces
from gdpo.rollouts.readers._layout import Layout
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._rows import Row


@dataclass(frozen=True, slots=True)
class Format:
    """One way in which a framework writes rollouts."""

    name: str
    kind: str
    """`parquet`, `jsonl` or `pt`; empty: any that has columns."""
    fields: frozenset[str]
    """Those that a file must have to be recognized."""
    rows: Callable[[Record], Iterator[Row]] | None = None
    """The rollouts of a record; None: its columns are read as they are."""
    lists: bool | None = None
    """Whether `prompt` holds a column of values; None: this is not what tells it."""
    numbers: tuple[str, ...] = ()
    """The columns of a parquet file of records that are read in any case."""
    texts: tuple[str, ...] = ()
    """Those that are read as well where texts are asked for."""
    wordless: bool = False
    """Whether its files hold no texts, so that nothing in them can be scored anew."""
    known: Layout | None = None
    """What the fields mean of records of no known format; None: the format knows it."""


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
        rows=traces.platform,
        numbers=(
            *("step", "problem_id", "reward", "metrics", "advantage", "num_output_tokens"),
            "info",  # the trace, whose rewards stand nowhere else
        ),
        texts=("prompt", "completion", "answer"),
    ),
    _format("trl", "parquet", "step prompt completion advantage"),
    _format("verifiers", "jsonl", "task traces", rows=traces.episodes),
    _format("verifiers", "jsonl", "task nodes rewards", rows=traces.episodes),
    _format("verifiers-results", "jsonl", "example_id reward", rows=traces.results),
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
"""In the order in which they are tried."""

NAMES = tuple(dict.fromkeys(f.name for f in FORMATS))
WORDLESS = frozenset(f.name for f in FORMATS if f.wordless)


def recognized(kind: str, fields: Collection[str], record: Record | None) -> Format | None:
    """The first format whose fields are there, `columns` apart."""
    lists = isinstance(record.get("prompt"), list) if record else False
    lists = lists and record is not None and isinstance(record.get("completion"), list)
    # Chat messages are a list, too, but then the steps are none.
    steps = (record or {}).get("step", (record or {}).get("gen_step"))
    lists = lists and isinstance(steps, list)
    for known in FORMATS:
        if known.kind == kind and known.fields <= set(fields) and known.lists in (None, lists):
            return known
    return None


def named(name: str, kind: str, fields: Collection[str]) -> Format | None:
    """The format of that name for this kind of file; None: it is written in other files."""
    if name not in NAMES:
        raise ConfigError(f"unknown format {name!r}: {did_you_mean(name, NAMES)}")
    fitting = [f for f in FORMATS if f.name == name and f.kind in ("", kind)]
    return next((f for f in fitting if f.fields <= set(fields)), fitting[0] if fitting else None)
