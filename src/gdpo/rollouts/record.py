"""Reads and writes the rollout record: one parquet file per step.

A file contains completions from any framework with their rewards and advantages. Its metadata
contains the declared ranges and gates of the rewards.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gdpo._files import from_json, to_json, written_whole
from gdpo.errors import DataError
from gdpo.rollouts.arrow import pa, pq
from gdpo.rollouts.table import RewardArrays, RolloutTable, TableTurns, places

Text: TypeAlias = str | Sequence[Mapping[str, Any]]
"""Plain text, or chat messages with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Stores one completion of one prompt."""

    run: str
    step: int
    """Optimizer step in which the rollout is used for training, counted from 1."""
    group_id: int
    """Index of the prompt within the step. All samples of a group have the same index."""
    sample_id: int
    """Index of the sample within its group."""
    prompt: Text
    completion: Text
    rewards: Mapping[str, float | None]
    """Raw rewards by name. None if a reward does not apply or could not be computed."""
    weights: Mapping[str, float]
    """Weights by reward name. They may differ from prompt to prompt. NaN if the reward does not
    apply to the prompt."""
    advantage: float
    num_tokens: int
    """Number of tokens in the completion."""
    finish_reason: str
    """`stop` if the model ended the completion, `length` if the completion was truncated at the
    token limit."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other JSON-like values, such as the reference that was used to score the completion."""
    trained: bool = True
    """False if the rollout was generated and scored, but `filter_groups` removed it from the
    batch."""
    turns: tuple["Turn", ...] | None = None
    """The turns, if the rewards were given for each turn. Then `rewards` are their totals, and
    `advantage` is the mean of their advantages."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Stores one turn of a rollout: the model's text up to the next message of another role."""

    rewards: Mapping[str, float | None]
    """Raw rewards of the turn by name. The reward of a whole rollout is at the last turn. None
    as in `Rollout.rewards`, at every turn."""
    advantage: float
    num_tokens: int
    """Number of tokens that the model generated in the turn."""


def rollout_file(folder: Path, step: int) -> Path:
    """Return the path of the file with the rollouts of a step."""
    return folder / f"step_{step:06d}.parquet"


Declared: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Declarations by reward name: `low`, `high`, and `gate={"on": ..., "at_least": ...}` for a gated
reward. The range of a gated reward includes 0, because the reward is 0 if its gate is closed."""

_DECLARED = b"gdpo.rewards"
"""Key of the declarations in the metadata of the file."""


def write_rollouts(
    path: Path, rollouts: Sequence[Rollout], *, declared: Declared | None = None
) -> None:
    """Write the rollouts of one step to a parquet file, atomically.

    Args:
        path: Path of the file (see `rollout_file`). An existing file is replaced.
        rollouts: Rollouts with the same reward names.
        declared: Ranges and gates of the rewards. Ranges let a reader distinguish a learned reward
            from one that is never earned.

    Raises:
        DataError: If there are no rollouts, or not all rollouts and turns have the same reward and
            weight names in the same order.
    """
    if not rollouts:
        raise DataError(f"{path}: the step has no rollouts to record")
    names = list(rollouts[0].rewards)
    for rollout in rollouts:
        of_turns = (turn.rewards for turn in rollout.turns or ())
        if any(list(each) != names for each in (rollout.rewards, rollout.weights, *of_turns)):
            raise DataError(
                f"{path}: all rollouts and turns of a step need the rewards and weights {names}, "
                f"in this order, but group {rollout.group_id}, sample {rollout.sample_id} has "
                f"{list(rollout.rewards)}"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    table = _table(rollouts, names)
    if declared:
        table = table.replace_schema_metadata({_DECLARED: to_json(declared)})
    with written_whole(path, f"{path.stem}.{os.getpid()}.partial") as partial:
        pq.write_table(table, partial, compression="zstd")


def read_rollouts(path: Path) -> list[Rollout]:
    """Return the rollouts in a file written by `write_rollouts`.

    Raises:
        DataError: If the file does not exist, or is not a rollout record.
    """
    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        for row in rows:
            row["prompt"], row["completion"] = opened(row["prompt"]), opened(row["completion"])
            row["extra"] = json.loads(row["extra"])
            if row.get("turns") is not None:
                row["turns"] = tuple(Turn(**turn) for turn in row["turns"])
        return [Rollout(**row) for row in rows]
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, pa.ArrowInvalid, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a gdpo rollout record: {error}") from error


def read_declared(schema: Any) -> object:
    """Return the declarations in a record's schema, for `described_ranges`, or None."""
    return from_json((schema.metadata or {}).get(_DECLARED, b""))


def _table(rollouts: Sequence[Rollout], names: Sequence[str]) -> Any:
    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    by_name = pa.struct([(name, pa.float64()) for name in names])
    turn = pa.struct(
        [("rewards", by_name), ("advantage", pa.float64()), ("num_tokens", pa.int64())]
    )
    of_turns = [] if all(r.turns is None for r in rollouts) else [("turns", pa.list_(turn))]
    schema = pa.schema(
        [
            ("run", pa.string()),
            ("step", pa.int64()),
            ("group_id", pa.int64()),
            ("sample_id", pa.int64()),
            ("prompt", messages),
            ("completion", messages),
            ("rewards", by_name),
            ("weights", by_name),
            ("advantage", pa.float64()),
            ("num_tokens", pa.int64()),
            ("finish_reason", pa.string()),
            ("extra", pa.string()),
            ("trained", pa.bool_()),
            *of_turns,
        ]
    )
    return pa.Table.from_pylist([_to_row(rollout) for rollout in rollouts], schema=schema)


def _to_row(rollout: Rollout) -> dict[str, Any]:
    extra = json.dumps(dict(rollout.extra), ensure_ascii=False, default=str)
    return _fields_of(rollout) | {
        "prompt": _messages(rollout.prompt),
        "completion": _messages(rollout.completion),
        "weights": dict(rollout.weights),
        "extra": _storable(extra),
        "turns": None if rollout.turns is None else list(map(_fields_of, rollout.turns)),
    }


def _fields_of(scored: Rollout | Turn) -> dict[str, Any]:
    columns = {each.name: getattr(scored, each.name) for each in fields(scored)}
    return columns | {"rewards": dict(scored.rewards)}


def _messages(text: Text) -> list[dict[str, str | None]]:
    if isinstance(text, str):
        return [{"role": None, "content": _storable(text)}]
    return [
        {
            "role": None if (role := message.get("role")) is None else _storable(str(role)),
            "content": _storable(_content(message)),
        }
        for message in text
    ]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) and set(message) <= {"role", "content"} and not _fields(content):
        return content
    fields = {k: v for k, v in message.items() if k != "role"}
    if not fields.keys() & {"content", "tool_calls"}:
        fields["content"] = None  # so that `_fields` knows a message
    return json.dumps(fields, ensure_ascii=False, default=str)


def _storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode and a model can generate, with `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def opened(messages: Sequence[Mapping[str, Any]]) -> Text:
    """Return a recorded prompt or completion as it was before it was written."""
    if len(messages) == 1 and messages[0].get("role") is None:
        return messages[0].get("content") or ""
    return [
        {
            "role": each.get("role"),
            **(_fields(each.get("content")) or {"content": each.get("content")}),
        }
        for each in messages
    ]


def _fields(content: Any) -> dict[str, Any] | None:
    if not isinstance(content, str) or not content.startswith("{"):
        return None
    found: dict[str, Any] = from_json(content) or {}
    is_message = ("content" in found or "tool_calls" in found) and "role" not in found
    return found if is_message else None


def recorded(table: RolloutTable) -> list[dict[str, Any]]:
    """Return the numbers of each rollout, as fields of a `Rollout`."""
    (prompt, sample), names = places(table.groups), table.names
    assert table.weights is not None, "a record has weights"
    columns: dict[str, list[Any]] = {
        "group_id": prompt.tolist(),
        "sample_id": sample.tolist(),
        "rewards": [_named(names, each) for each in table.rewards.tolist()],
        "weights": [dict(zip(names, each, strict=True)) for each in table.weights.tolist()],
        "advantage": table.advantages.tolist(),
        "num_tokens": table.num_tokens.astype(np.int64).tolist(),
        "trained": table.trained.tolist(),
        "turns": [None] * len(table) if table.turns is None else _turns(names, table.turns),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _turns(names: Sequence[str], given: TableTurns) -> list[tuple[Turn, ...]]:
    taken = given.taken
    rewards, *numbers = (each[taken].tolist() for each in given.columns)
    turns = (
        Turn(_named(names, earned), advantage, int(tokens))
        for earned, advantage, tokens in zip(rewards, *numbers, strict=True)
    )
    return [tuple(islice(turns, count)) for count in given.counts.tolist()]


def _named(names: Sequence[str], rewards: Sequence[float]) -> dict[str, float | None]:
    return {n: None if v != v else v for n, v in zip(names, rewards, strict=True)}


def reward_arrays(rollouts: Sequence[Rollout]) -> RewardArrays:
    """Return recorded rollouts as arrays, grouped by step and `group_id`.

    Raises:
        DataError: If there are no rollouts, their rewards differ, or the weights differ within a
            group.
    """
    if not rollouts:
        raise DataError("rollouts is empty: pass at least one rollout")
    names, firsts = tuple(rollouts[0].rewards), dict[tuple[int, int], Rollout]()
    for rollout in rollouts:
        first = firsts.setdefault((rollout.step, rollout.group_id), rollout)
        if tuple(rollout.rewards) != names:
            raise DataError(
                f"step {rollout.step} has different rewards from step {rollouts[0].step}: pass "
                "only rollouts with the same rewards"
            )
        weights = [[*each.weights.values()] for each in (rollout, first)]
        if not np.array_equal(*weights, equal_nan=True):
            raise DataError(
                f"step {rollout.step}, group {rollout.group_id}: the weights differ within the "
                "group: pass rollouts of one run"
            )
    order = {key: place for place, key in enumerate(firsts)}
    table = RolloutTable.of(
        names,
        np.array([[each.rewards[name] for name in names] for each in rollouts], np.float64),
        np.array([order[each.step, each.group_id] for each in rollouts]),
        weights=np.array([[*each.weights.values()] for each in rollouts], np.float64),
        advantages=np.array([each.advantage for each in rollouts]),
    )
    return table.grouped()
