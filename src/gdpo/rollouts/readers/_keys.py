"""Numbers that are equal where texts are equal: groups are told by them, and no text is kept."""

import json
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import UInt64

Keys = UInt64[np.ndarray, " row"]
_ODD = np.uint64(0x9E3779B97F4A7C15)


def key_of(value: Any) -> int:
    """64 bits of a hash of a JSON-like value; whole numbers are their own key."""
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if not isinstance(value, str):
        value = json.dumps(value, sort_keys=True, default=str)
    return _signed(_digest(value.encode("utf-8", "surrogatepass")))


def keys_of(column: Any) -> Keys:
    """One key per row of an Arrow array of texts, or of anything made of texts.

    Every distinct text is hashed once: a prompt is repeated for each of its samples.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _of_dictionary(column)
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


def _mixed(keys: Keys) -> Keys:
    """Spread every bit over all of them, so that sums of keys are keys as well."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _digest(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _signed(key: int) -> int:
    return key - 2**64 if key >= 2**63 else key
