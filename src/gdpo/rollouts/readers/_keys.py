"""Numbers that are equal where texts are equal: groups are told by them, and no text is kept."""

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64, UInt64

Keys = UInt64[np.ndarray, " row"]
_ODD = np.uint64(0x9E3779B97F4A7C15)
NO_KEY = -(2**63)
"""Of what has neither a group nor a prompt; no whole number is given it."""


def key_of(value: Any) -> int:
    """64 bits of a hash of a JSON-like value; whole numbers are their own key."""
    if isinstance(value, int) and NO_KEY < value < 2**63:
        return int(value)
    if not isinstance(value, str):
        value = _text_of(value)
    return _signed(_digest(value.encode("utf-8", "surrogatepass")))


def whole_keys(column: Any) -> Int64[np.ndarray, " row"]:
    """The keys of an Arrow array of whole numbers: themselves, whatever else is in the array."""
    keys = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    keys[keys == NO_KEY] = key_of(NO_KEY)
    return without_nulls(column, keys)


def without_nulls(column: Any, keys: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
    """The keys, and where the array has a null, the one of nothing."""
    return np.where(column.is_null().to_numpy(zero_copy_only=False), NO_KEY, keys)


def keys_of(column: Any) -> Keys:
    """One key per row of an Arrow array of texts, or of anything made of texts.

    Every distinct text is hashed once: a prompt is repeated for each of its samples.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        is_text = pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        return _of_dictionary(column) if is_text else keys_of(column.dictionary_decode())
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_struct(kind):
        return _of_struct(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_list(column)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        column = pc.cast(column, pa.string())
    return _of_dictionary(column.dictionary_encode())


def _of_dictionary(column: Any) -> Keys:
    texts = column.dictionary.to_pylist()
    distinct = np.fromiter(
        (_digest(text.encode()) if text is not None else 0 for text in texts),
        np.uint64,
        len(texts),
    )
    codes = pc.fill_null(column.indices, len(texts)).to_numpy(zero_copy_only=False)
    return np.append(distinct, np.uint64(0))[codes]


def _of_struct(column: Any) -> Keys:
    keys = np.zeros(len(column), np.uint64)
    for field, child in zip(column.type, column.flatten(), strict=True):
        keys += _mixed(keys_of(child) ^ np.uint64(_digest(field.name.encode())))
    return keys


def _of_list(column: Any) -> Keys:
    lengths = pc.call_function("list_value_length", [column])
    counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.cumsum(counts) - counts
    children = keys_of(column.flatten())
    place = np.arange(len(children)) - np.repeat(starts, counts)
    mixed = _mixed(children + place.astype(np.uint64) * _ODD)
    sums = np.append(np.uint64(0), np.cumsum(mixed, dtype=np.uint64))
    return sums[starts + counts] - sums[starts] + counts.astype(np.uint64)


def _text_of(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except (RecursionError, TypeError):  # the latter of keys that are no texts, or of two kinds
        return "".join(_flat(value))


def _flat(value: Any) -> Iterator[str]:
    """What a value holds, however deep: each list and object with its length before it."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield f"{{{len(cast('dict[Any, Any]', item))}"
            left.extend(part for name in sorted(item, key=str) for part in (name, item[name]))
        elif isinstance(item, list):
            yield f"[{len(cast('list[Any]', item))}"
            left.extend(cast("list[Any]", item))
        else:
            yield json.dumps(item, default=str) + ","


def _mixed(keys: Keys) -> Keys:
    """Spread every bit over all of them, so that sums of keys are keys as well."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _digest(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _signed(key: int) -> int:
    return key - 2**64 if key >= 2**63 else key
