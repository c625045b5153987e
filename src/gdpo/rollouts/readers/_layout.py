"""Which column of a file means what, and which are rewards: told by their names and types."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError
from gdpo.rollouts.readers._records import Record
from gdpo.rollouts.readers._report import TOTAL_ALONE
from gdpo.rollouts.readers._rows import Row, numbers_in

_GUESSES = {
    "step": ("step", "global_step", "gen_step", "iteration"),
    "group": ("group_id", "group", "group_index", "prompt_id", "problem_id", "uid"),
    "prompt": ("prompt", "input", "question", "messages"),
    "completion": ("completion", "output", "response", "answer"),
    "advantage": ("advantage", "advantages"),
    "num_tokens": ("num_tokens", "completion_length", "response_length", "completion_tokens"),
    "finish_reason": ("finish_reason", "stop_reason"),
    "total": ("reward", "score", "total_reward"),
}
_NO_REWARDS = frozenset(
    {"id", "idx", "index", "sample_id", "sample_idx", "run_id", "seed", "epoch", "rank"}
    | {"time", "timestamp", "created_at"}
)
"""Names of numbers that are no rewards."""
_TRUTHS = frozenset(
    {"reference", "ground_truth", "gts", "gold", "label", "target", "answer", "solution"}
)
"""Names of what a completion is judged against."""
_REWARD = re.compile(r"(?:^|[_.\- ])(?:rewards?|scores?)(?:$|[_.\- ])")
NO_REWARD = "; no reward: "
"""What stands before the numbers that are taken for none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column of a file means what; None: none does."""

    step: str | None = None
    group: str | None = None
    prompt: str | None = None
    completion: str | None = None
    advantage: str | None = None
    num_tokens: str | None = None
    finish_reason: str | None = None
    total: str | None = None

    def taken(self) -> frozenset[str]:
        """The columns that mean something, and so are no parts of a reward."""
        return frozenset(v for name in _GUESSES if (v := getattr(self, name)) is not None)


GDPO = Layout(
    "step", "group_id", "prompt", "completion", "advantage", "num_tokens", "finish_reason"
)
TRL = Layout("step", None, "prompt", "completion", "advantage")


def layout(columns: Mapping[str, str] | None, fields: Collection[str]) -> Layout:
    """What was said of the columns, and for the rest what their names say.

    Raises:
        ConfigError: A meaning that there is not.
        DataError: A column that is not in the file.
    """
    said = columns or {}
    for meaning, column in said.items():
        if meaning not in _GUESSES:
            raise ConfigError(
                f"columns: nothing is called {meaning!r}: {did_you_mean(meaning, _GUESSES)}"
            )
        if column.partition(".")[0] not in fields:
            raise DataError(f"no column {column!r} for the {meaning}; it has {listed(fields)}")
    guessed = {
        meaning: next((name for name in names if name in fields), None)
        for meaning, names in _GUESSES.items()
    }
    return Layout(**{**guessed, **said})


def looks_rewarded(fields: Collection[str]) -> bool:
    """Whether rollouts may be meant: a `reward` or `score`, or a prompt or group and parts of one.

    Logs of training have numbers of such names as well, and no prompts.
    """
    if {"reward", "score"} & set(fields):
        return True
    known = layout(None, fields)
    grouped = known.prompt is not None or known.group is not None
    return grouped and any(_REWARD.search(name) for name in fields)


def listed(names: Collection[str]) -> str:
    """Some names for a message: a file may have thousands, and as hostile as any text."""
    shown = ", ".join(repr(str(name)[:40]) for name in list(names)[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def reward_columns(
    schema: Any, known: Layout, asked: Sequence[str] | None, *, floating: bool
) -> tuple[dict[str, str], str]:
    """The reward columns by name, and how they were told. A dot enters a struct.

    Args:
        schema: The columns.
        known: What some of them mean.
        asked: The rewards, if they are named.
        floating: Whether rewards are always floating-point numbers where this format is written.
    """
    record = "rewards" in schema.names and pa.types.is_struct(schema.field("rewards").type)
    parts = [field.name for field in schema.field("rewards").type] if record else []
    own = {name: f"rewards.{name}" for name in parts}
    if asked is not None:
        return {name: own.get(name, name) for name in asked}, "as asked for"
    if record:
        return own, "those of the record"
    free = [f for f in schema if f.name not in known.taken() | _NO_REWARDS and _may_count(f.type)]
    fit = pa.types.is_floating if floating else is_number
    found = {f.name: f.name for f in free if fit(f.type) and (floating or f.name not in _TRUTHS)}
    passed = [f.name for f in free if f.name not in found]
    if not found and known.total is not None:
        found, how = {known.total: known.total}, f"{TOTAL_ALONE}: the file has no parts"
    else:
        what = "floating-point numbers" if floating else "numbers"
        how = f"every other column of {what}; name them if some are none"
    return found, how + passed_over(passed)


def passed_over(names: Sequence[str]) -> str:
    """What is told of columns of numbers that are taken for no rewards."""
    return f"{NO_REWARD}{listed(names)}" if names else ""


def _may_count(kind: Any) -> bool:
    """Whether columns of this type may be rewards, if they are named."""
    return is_number(kind) or pa.types.is_null(kind)


def is_number(kind: Any) -> bool:
    """Whether columns of this type hold numbers or truth values."""
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)


def number_paths(fields: Iterable[Any], above: str = "") -> Iterator[str]:
    """The columns that hold numbers; those of a struct with its name and a dot before them."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from number_paths(field.type, f"{above}{field.name}.")
        elif is_number(field.type):
            yield f"{above}{field.name}"


def rows_by(known: Layout) -> Any:
    """A format of records for lines of JSON whose fields mean what was said."""

    def rows(record: Record) -> Iterator[Row]:
        yield Row(
            step=at(record, known.step),
            group=at(record, known.group),
            prompt=at(record, known.prompt),
            completion=at(record, known.completion),
            rewards=numbers_in(record, but=known.taken() | _NO_REWARDS | _TRUTHS),
            total=at(record, known.total),
            total_name=known.total or "reward",
            advantage=at(record, known.advantage),
            num_tokens=at(record, known.num_tokens),
            finish_reason=at(record, known.finish_reason),
            extras={k: v for k, v in record.items() if k not in known.taken()},
        )

    return rows


def at(record: Any, path: str | None) -> Any:
    """The value at a name, or where its dots lead to; None: there is none."""
    if path is None:
        return None
    if isinstance(record, Mapping) and path in record:
        return record[path]
    for part in path.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record
