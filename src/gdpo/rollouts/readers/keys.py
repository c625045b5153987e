"""Makes 64-bit keys of group ids and prompts, and infers from them which rollouts form a group."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeAlias, cast

import numpy as np

from gdpo._shapes import Bool, Int64, UInt64
from gdpo.rollouts.arrow import pa
from gdpo.rollouts.table import BY_BOTH, BY_IDS, BY_NOTHING, BY_PROMPT, NO_KEY

Key: TypeAlias = Int64[np.ndarray, " row"]
Rows: TypeAlias = Bool[np.ndarray, " row"]
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Stores which rollouts form a group, and how often prompts contradict the group ids."""

    keys: Key
    """Key of the group of each row. `NO_KEY` if a row has neither a group id nor a prompt."""
    split: bool = False
    """Whether rollouts are grouped by id and prompt, because most ids have several prompts."""
    alone: bool = False
    """Whether each id has one row, although most rows share their prompt with another row."""
    differing: int = 0


def grouping(
    steps: Key, ids: Key, prompts: Key, rollouts: Key, turns: Key, *, split: bool = False
) -> Grouping:
    """Return the groups of some rows, from their ids if the prompts agree with these.

    If most ids have several prompts, rows are grouped by id and prompt. If most such groups would
    have one row, the prompts probably contain rollout-specific text (a path), so the ids are used.
    `split`: earlier rows of the run had ids with several prompts.
    """
    if np.any(rollouts != NO_KEY):  # the prompt of a rollout is that of its first turn
        of = pair(pair(steps, ids), rollouts)
        order = np.lexsort((turns, of))
        starts = np.append(True, np.diff(of[order]) != 0)
        first = np.empty(len(of), np.int64)
        first[order] = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
        prompts = np.where(rollouts == NO_KEY, prompts, prompts[first])
    keys = np.where(ids == NO_KEY, prompts, ids)
    rows = np.flatnonzero((ids != NO_KEY) & (prompts != NO_KEY))
    if not len(rows):
        return Grouping(keys)
    given, asked = pair(steps, ids)[rows], prompts[rows]
    _, first, group, sizes = np.unique(
        given, return_index=True, return_inverse=True, return_counts=True
    )
    apart = np.bincount(group, weights=asked != asked[first][group]) > 0
    compared, differing = int(np.sum(sizes > 1)), int(np.sum(apart))
    split = split or (2 * differing > compared and mostly_shared(pair(given, asked)))
    alone = not (split or compared) and mostly_shared(pair(steps[rows], asked))
    if split:
        keys[rows] = pair(ids[rows], asked)
    return Grouping(keys, split, alone, differing)


@dataclass(slots=True)
class GroupReader:
    """Forms the groups of a file's rows, part by part, and checks its ids against the prompts."""

    how: str
    """How the ids are read: `BY_PROMPT` ignores them, `BY_BOTH` joins them with the prompts."""
    split: bool = False
    """Whether prompts have contradicted the ids, so that rows are grouped by both."""
    _seen: tuple[Key, Key] | None = None

    def of(self, steps: Key, ids: Key, prompts: Key, rollouts: Key, turns: Key) -> Grouping:
        """Return the groups of the next rows."""
        ids = np.full(len(ids), NO_KEY) if self.how == BY_PROMPT else ids
        found = grouping(steps, ids, prompts, rollouts, turns, split=self.how == BY_BOTH)
        if not found.split and np.all(steps == steps[:1]):
            found, self._seen = restarted(found, ids, prompts, self._seen)
        self.split |= found.split
        return found

    def grouped_by(self, grouped: Rows, prompted: Rows) -> str:
        """Return how some rows are grouped. A few may lack the group id."""
        if grouped.any() and self.how != BY_PROMPT:
            return BY_BOTH if self.split else BY_IDS
        return BY_PROMPT if prompted.any() else BY_NOTHING


def mostly_shared(keys: Key) -> bool:
    """Return whether most rows share their key with another row."""
    _, place, alike = np.unique(keys, return_inverse=True, return_counts=True)
    return 2 * int(np.sum(alike[place] > 1)) > len(keys)


def restarted(
    found: Grouping, ids: Key, prompts: Key, seen: tuple[Key, Key] | None
) -> tuple[Grouping, tuple[Key, Key]]:
    """Return the groups of rows whose ids may have occurred in earlier rows with other prompts.

    `seen` are the sorted ids of earlier rows and their first prompts. They are returned, too.
    """
    rows = np.flatnonzero((ids != NO_KEY) & (prompts != NO_KEY))
    given, first, group = np.unique(ids[rows], return_index=True, return_inverse=True)
    asked = prompts[rows][first]
    if seen is None:
        return found, (given, asked)
    known, here, earlier = np.intersect1d(given, seen[0], assume_unique=True, return_indices=True)
    again = here[seen[1][earlier] != asked[here]]
    other = np.isin(group, again)
    keys = found.keys.copy()
    keys[rows[other]] = pair(given[group[other]], asked[group[other]])
    every, first = np.unique(np.append(seen[0], given), return_index=True)
    split = 2 * len(again) > len(known)
    found = replace(found, keys=keys, split=split, differing=len(again))
    return found, (every, np.append(seen[1], asked)[first])


def pair(one: Key, other: Key) -> Key:
    """Return one key per pair, which is never `NO_KEY`."""
    mixed = one.astype(np.uint64) * _ODD
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (mixed + other.astype(np.uint64)).view(np.int64)
    return np.where(keys == NO_KEY, 0, keys)


Keys = UInt64[np.ndarray, " row"]


def key_of(value: Any) -> int:
    """Return a 64-bit key for a JSON-like value: the integer itself, or a hash."""
    if isinstance(value, int) and NO_KEY < value < 2**63:
        return int(value)
    if not isinstance(value, str):
        try:
            value = json.dumps(value, sort_keys=True, default=str)
        except (RecursionError, TypeError):  # TypeError: keys are not texts, or have mixed types
            value = "".join(_flat(value))
    key = _digest(value.encode("utf-8", "surrogatepass"))
    return key - 2**64 if key >= 2**63 else key


def group_keys(column: Any) -> Int64[np.ndarray, " row"]:
    """Return one key per id in an Arrow array: the integer itself, or a hash."""
    kind = column.type
    if pa.types.is_dictionary(kind) and pa.types.is_integer(kind.value_type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        keys = np.asarray(column.fill_null(0)).astype(np.int64)
        keys[keys == NO_KEY] = key_of(NO_KEY)
    else:
        keys = keys_of(column).view(np.int64)
    return np.where(np.asarray(column.is_null()), NO_KEY, keys)


def keys_of(column: Any) -> Keys:
    """Return one key per row of an Arrow array of texts, or lists or structs of texts.

    Each distinct text is hashed once.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        is_text = pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        return _of_dictionary(column) if is_text else keys_of(column.dictionary_decode())
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_struct(kind):
        keys = np.zeros(len(column), np.uint64)
        for part, child in zip(kind, column.flatten(), strict=True):
            keys += _mixed(keys_of(child) ^ np.uint64(_digest(part.name.encode())))
        return keys
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_list(column)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        column = column.cast(pa.string())
    return _of_dictionary(column.dictionary_encode())


def _of_dictionary(column: Any) -> Keys:
    size = len(column.dictionary)
    codes = np.asarray(column.indices.fill_null(size))
    used = np.flatnonzero(np.bincount(codes, minlength=size + 1)[:size])
    texts = column.dictionary.take(pa.array(used)).to_pylist()
    distinct = np.zeros(size + 1, np.uint64)
    distinct[used] = [0 if text is None else _digest(text.encode()) for text in texts]
    return distinct[codes]


def _of_list(column: Any) -> Keys:
    lengths = column.value_lengths().fill_null(0)
    counts = np.asarray(lengths).astype(np.int64)
    starts = np.cumsum(counts) - counts
    children = keys_of(column.flatten())
    place = np.arange(len(children)) - np.repeat(starts, counts)
    mixed = _mixed(children + place.astype(np.uint64) * _ODD)
    sums = np.append(np.uint64(0), np.cumsum(mixed, dtype=np.uint64))
    return sums[starts + counts] - sums[starts] + counts.astype(np.uint64)


def _flat(value: Any) -> Iterator[str]:
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
    """Return keys with mixed bits, whose sums can be keys too."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _digest(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
