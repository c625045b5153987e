"""Columns of a file as numbers, keys of groups and texts, once it is known what they mean."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from gdpo.rollouts.readers._keys import keys_of, whole_keys, without_nulls
from gdpo.rollouts.readers._layout import Layout
from gdpo.rollouts.readers._report import FileReport, ReadReport
from gdpo.rollouts.readers._rescoring import Written
from gdpo.rollouts.readers._rows import (
    INFINITE,
    LARGEST,
    NO_NUMBER,
    NOT_A_NUMBER,
    TOO_LARGE,
    count_of,
    cut_of,
    number,
)

_BOOLEAN = {"true": 1.0, "false": 0.0}
_MISSING = frozenset(
    {"", "nan", "-nan", "null", "none", "na", "n/a", "#na", "#n/a", "#n/a n/a"}
    | {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}
)
_LOOKED_AT = 4096
"""Rows of a CSV file by which its columns of numbers are told."""


def numeric(batch: Any) -> Any:
    """The schema of texts, as of a CSV file, with numbers where most of them are."""
    names, columns = batch.schema.names, batch.columns
    kinds = [_kind_of(column[:_LOOKED_AT]) for column in columns]
    return pa.schema([pa.field(*field) for field in zip(names, kinds, strict=True)])


def _kind_of(column: Any) -> Any:
    """Null: there is nothing in it."""
    if column.null_count == len(column):
        return pa.null()
    values, unreadable = _numbers(column)
    numbers = int(np.sum(~np.isnan(values)))
    return pa.float64() if numbers > int(np.sum(unreadable)) else column.type


def table_columns(
    batch: Any, known: Layout, rewards: Mapping[str, str], file: FileReport, report: ReadReport
) -> dict[str, np.ndarray]:
    """The columns of a table but those of its file; a step that is none is -1."""
    first = file.numbered
    size = batch.num_rows

    def floats(path: str | None, what: str) -> Float[np.ndarray, " row"]:
        column = None if path is None else entered(batch, path)
        if column is None:
            return np.full(size, np.nan)
        return _floats(column, what, first, file, report)

    steps = floats(known.step, "step")
    if known.step is not None and (column := entered(batch, known.step)) is not None:
        steps = np.where(_truths(column), np.nan, steps)
    whole_steps = np.isfinite(steps) & (steps == np.floor(steps)) & (np.abs(steps) < 2**62)
    values = [floats(path, f"reward {name!r}") for name, path in rewards.items()]
    return {
        "steps": np.where(whole_steps, steps, -1).astype(np.int64),
        "groups": _groups(batch, known, first, file, report),
        "rewards": np.stack(values, axis=-1) if values else np.zeros((size, 0)),
        "total": floats(known.total, "total"),
        "advantages": floats(known.advantage, "advantage"),
        "num_tokens": floats(known.num_tokens, "num_tokens"),
        "cut": _cut(batch, known.finish_reason),
        "trained": _trained(batch),
        "row": np.arange(first, first + size),
    }


def holds_numbers(column: Any, *, any_of_them: bool = False) -> bool:
    """Whether most of the texts of a column are numbers, or any."""
    values, unreadable = _numbers(column)
    numbers = int(np.sum(~np.isnan(values)))
    return numbers > (0 if any_of_them else int(np.sum(unreadable)))


def is_short(column: Any, most: int) -> bool:
    """Whether no text of a column has more characters."""
    return all(len(text) <= most for text in column.to_pylist() if text is not None)


def numbers_at(batch: Any, paths: Sequence[str]) -> dict[str, Float[np.ndarray, " row"]]:
    """The numbers at some paths; NaN: none stands there."""
    found = {path: entered(batch, path) for path in paths}
    return {path: _numbers(column)[0] for path, column in found.items() if column is not None}


def written(batch: Any, known: Layout) -> list[Written]:
    """The rollouts of a table with their texts, and the columns that mean nothing else."""
    size = batch.num_rows

    def values(path: str | None) -> list[Any]:
        column = None if path is None else entered(batch, path)
        return [None] * size if column is None else column.to_pylist()

    paths = (known.prompt, known.completion, known.num_tokens)
    texts = zip(*map(values, paths), strict=True)
    others = [name for name in batch.schema.names if name not in known.taken()]
    extras = batch.select(others).to_pylist() if others else [{}] * size
    return [
        Written(prompt, completion, None, _opened(extra), count_of(tokens))
        for (prompt, completion, tokens), extra in zip(texts, extras, strict=True)
    ]


def _opened(extras: dict[str, Any]) -> dict[str, Any]:
    """Our own record keeps other fields as JSON in one column."""
    extra = extras.get("extra")
    try:
        inner = json.loads(extra) if isinstance(extra, str) else None
    except (ValueError, RecursionError):
        inner = None
    return extras | inner if isinstance(inner, dict) else extras


def how_grouped(batch: Any, known: Layout) -> str:
    """By what the rollouts of this file are put into groups."""
    if known.group is not None and entered(batch, known.group) is not None:
        return "ids in the dump"
    return "repeated prompts" if known.prompt is not None else "nothing"


def entered(batch: Any, path: str) -> Any:
    """The column of that name, or where there is none, the one that the dots lead to."""
    if path in batch.schema.names:
        return batch.column(path)
    name, dot, rest = path.partition(".")
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    while dot:
        names = [f.name for f in column.type] if pa.types.is_struct(column.type) else []
        if rest in names:
            name, dot, rest = rest, "", ""
        else:
            name, dot, rest = rest.partition(".")
        if name not in names:
            return None
        column = column.flatten()[names.index(name)]
    return column


def _floats(
    column: Any, what: str, first: int, file: FileReport, report: ReadReport
) -> Float[np.ndarray, " row"]:
    """Numbers; what is none, or not between -1e60 and 1e60, is NaN and noted with its row."""
    values, unreadable = _numbers(column)
    for wrong, why in (
        (unreadable, NO_NUMBER),
        (_not_numbers(column, values), NOT_A_NUMBER),
        (np.isinf(values), INFINITE),
        (np.isfinite(values) & (np.abs(values) > LARGEST), TOO_LARGE),
    ):
        if np.any(wrong):
            row = first + int(np.argmax(wrong))
            report.note(file.path, row, f"{what} is {why}", count=int(np.sum(wrong)))
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def _truths(column: Any) -> np.ndarray:
    """Where a column holds true or false, which are numbers as rewards and none as steps."""
    if pa.types.is_boolean(column.type):
        return np.ones(len(column), np.bool_)
    if not pa.types.is_string(column.type):
        return np.zeros(len(column), np.bool_)
    lowered = pc.call_function("utf8_lower", [column])
    found = pc.call_function("is_in", [lowered], pc.SetLookupOptions(pa.array(list(_BOOLEAN))))
    return found.to_numpy(zero_copy_only=False)


def _not_numbers(column: Any, values: Float[np.ndarray, " row"]) -> np.ndarray:
    """Where a column of numbers has a NaN, and no null; texts, as of CSV, have words for both."""
    if not pa.types.is_floating(column.type):
        return np.zeros(len(column), np.bool_)
    return np.isnan(values) & ~column.is_null().to_numpy(zero_copy_only=False)


def _numbers(column: Any) -> tuple[Float[np.ndarray, " row"], np.ndarray]:
    good = np.zeros(len(column), np.bool_)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    try:
        floats = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = column.to_pylist()
        values = np.array([number(_BOOLEAN.get(str(value).lower(), value)) for value in texts])
        missing = [v is None or str(v).strip().lower() in _MISSING for v in texts]
        return values, np.isnan(values) & ~np.array(missing)
    return floats, good


def _groups(
    batch: Any, known: Layout, first: int, file: FileReport, report: ReadReport
) -> np.ndarray:
    path = known.group if known.group is not None else known.prompt
    column = None if path is None else entered(batch, path)
    if column is None:
        return np.zeros(batch.num_rows, np.int64)
    column = _ids(column)
    if column.null_count:
        row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        what = f"no {path}, where others have one: put into one group"
        report.note(file.path, row, what, count=column.null_count)
    if pa.types.is_dictionary(column.type) and pa.types.is_integer(column.type.value_type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return whole_keys(column)
    return without_nulls(column, keys_of(column).view(np.int64))


def _ids(column: Any) -> Any:
    """Ids that were made floating-point, as by a table with gaps, as they were: NaN is none."""
    if not pa.types.is_floating(column.type):
        return column
    is_nan = pc.call_function("is_nan", [column])
    known = pc.call_function("if_else", [is_nan, pa.scalar(None, column.type), column])
    try:
        return pc.cast(known, pa.int64())
    except pa.ArrowInvalid:
        return known


def _cut(batch: Any, path: str | None) -> Float[np.ndarray, " row"]:
    column = None if path is None else entered(batch, path)
    if column is None:
        return np.full(batch.num_rows, np.nan)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    reasons = [cut_of(value) for value in encoded.dictionary.to_pylist()]
    codes = pc.fill_null(encoded.indices, len(reasons)).to_numpy(zero_copy_only=False)
    return np.array([*reasons, np.nan])[codes]


def _trained(batch: Any) -> np.ndarray:
    column = batch.column("trained") if "trained" in batch.schema.names else None
    if column is None or not pa.types.is_boolean(column.type):
        return np.ones(batch.num_rows, np.bool_)
    return pc.fill_null(column, True).to_numpy(zero_copy_only=False)
