"""What the columns of a file mean, and where a name with dots leads to.

What nobody said of them is inferred in `_inference`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

MEANINGS = (
    *("step", "group", "prompt", "completion", "advantage", "num_tokens", "finish_reason"),
    "total",
)
"""What a column may be said to mean."""
NO_REWARD = "; no reward: "
"""What stands before the numbers that are taken for none."""


class Inner(str):
    """The path of what stands in an object or a struct; names at the top may have dots as well."""

    __slots__ = ()


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
        return frozenset(v for name in MEANINGS if (v := getattr(self, name)) is not None)


GDPO = Layout(
    "step", "group_id", "prompt", "completion", "advantage", "num_tokens", "finish_reason"
)
TRL = Layout("step", None, "prompt", "completion", "advantage")


def listed(names: Collection[str]) -> str:
    """Some names for a message: a file may have thousands, and as hostile as any text."""
    shown = ", ".join(repr(str(name)[:40]) for name in list(names)[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def passed_over(names: Sequence[str]) -> str:
    """What is told of columns of numbers that are taken for no rewards."""
    return f"{NO_REWARD}{listed(names)}" if names else ""


def is_number(kind: Any) -> bool:
    """Whether columns of this type hold numbers or truth values."""
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)


def number_paths(fields: Iterable[Any], above: str = "", *, empty: bool = False) -> Iterator[str]:
    """The columns that hold numbers; those of a struct with its name and a dot before them.

    Args:
        fields: The columns.
        above: What their paths begin with.
        empty: Whether columns are among them that hold nothing at all.
    """
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from number_paths(field.type, f"{above}{field.name}.", empty=empty)
        elif is_number(field.type) or (empty and pa.types.is_null(field.type)):
            yield Inner(above + field.name) if above else field.name


def at(record: Any, path: str | None) -> Any:
    """The value at a name, or where its dots lead to; None: there is none."""
    if path is None or not isinstance(record, Mapping):
        return None
    if path in record:
        return cast("Mapping[str, Any]", record)[path]
    name, dot, rest = path.partition(".")
    while dot:
        if name in record and (found := at(record[name], rest)) is not None:
            return found
        more, dot, rest = rest.partition(".")
        name = f"{name}.{more}"
    return None
