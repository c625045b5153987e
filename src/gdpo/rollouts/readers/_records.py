"""What the fields of every framework's record mean: a record in, its rollouts out.

A record is a line of JSON, or a row of a parquet file whose columns hold JSON. The fields are those
that the frameworks' writers have; the tests hold one file of each. Verifiers is in `_traces`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, TypeAlias, cast

from gdpo.errors import DataError
from gdpo.rollouts.readers._rows import Row, doubtful, is_number, number, numbers_in

Record: TypeAlias = Mapping[str, Any]

_VERL = frozenset(
    {
        "input",
        "output",
        "gts",
        "score",
        "reward",
        "step",
        "uid",
        "request_id",
        "num_turns",
        "num_tokens",
    }
)
_VERL_PADDING = re.compile(r"pad[0-9a-f]{32}_")
_VERL_KEY = re.compile(r"((.+)_[0-9]+)_([0-9]{1,18})", re.DOTALL)
"""Of V1: `<prompt>_<rollout>_<output>`."""
_STOP = "stop/"
"""Of tinker-cookbook."""
_SWIFT = frozenset(
    {"step", "gen_step", "prompt", "completion", "advantages", "advantage", "request_id", "entropy"}
)


def verl(record: Record) -> Iterator[Row]:
    """The legacy trainer's lines have every reward by name, those of V1 the total and a uid."""
    uid = record.get("uid")
    if uid is not None and _VERL_PADDING.match(str(uid)):
        raise DataError("it fills verl's batch up, and is no rollout (its uid begins with pad)")
    key = _VERL_KEY.fullmatch(str(uid))
    yield Row(
        step=record.get("step"),
        group=None if uid is None else key[2] if key else str(uid),
        output=(key[1], int(key[3])) if key else None,
        prompt=record["input"],
        completion=record["output"],
        rewards=numbers_in(record, but=_VERL),
        total=record["score"],
        total_name="score",
        truth=record.get("gts"),
        extras=record,
    )


def nemo_rl(record: Record) -> Iterator[Row]:
    """Lines of one sample each: the reward is the total, the prompt is what has no loss.

    With dynamic sampling `rewards` are those of all samples, and only `filtered_rewards` belong to
    the tokens of the same line. Its logger writes all values but `idx` as lists of one.
    """
    record = {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in record.items()}
    tokens, mask = record.get("token_ids"), record.get("token_loss_mask")
    reward = record["filtered_rewards"] if "filtered_rewards" in record else record["rewards"]
    prompt, completion = _content(record["content"])
    kept: list[float] = mask if isinstance(mask, list) else []
    if tokens is not None and kept:
        prompt = tokens[: len(list(takewhile(lambda m: not m, kept)))]
    credit = record.get("advantages")
    if isinstance(credit, list):
        credited = [a for a, m in zip(cast("list[Any]", credit), kept, strict=False) if m]
        credit = credited[-1] if credited else None
    weight = record.get("sample_loss_mask")
    yield Row(
        prompt=prompt,
        completion=completion,
        total=reward,
        total_name="rewards",
        advantage=credit,
        num_tokens=sum(map(bool, kept)) if kept else None,
        extras=record,
        trained=weight is None or bool(number(weight)),
    )


def swift(record: Record) -> Iterator[Row]:
    """A line is a table: every column a list of one value per rollout."""
    columns = {
        name: cast("list[Any]", value) for name, value in record.items() if isinstance(value, list)
    }
    size = len(columns["prompt"])
    for name, values in columns.items():
        if len(values) != size:
            raise DataError(f"column {name[:40]!r} is not as long as 'prompt'")
    rewards = [
        name
        for name, values in columns.items()
        if name not in _SWIFT
        and all(v is None or is_number(v) or isinstance(v, str) for v in values)
    ]
    others = {name: values for name, values in columns.items() if name not in _SWIFT}
    steps = columns.get("step", columns.get("gen_step"))
    credit = columns.get("advantages", columns.get("advantage"))
    for i in range(size):
        yield Row(
            step=steps[i] if steps else record.get("step", record.get("gen_step")),
            prompt=columns["prompt"][i],
            completion=columns["completion"][i],
            rewards={name: doubtful(columns[name][i]) for name in rewards},
            advantage=credit[i] if credit else None,
            extras={name: values[i] for name, values in others.items()},
        )


def swift_row(record: Record) -> Iterator[Row]:
    """A line of its Ray trainer is one rollout with the total."""
    yield Row(
        step=record["gen_step"],
        prompt=record["prompt"],
        completion=record["completion"],
        total=record["reward"],
        extras=record,
    )


def tinker(record: Record) -> Iterator[Row]:
    """Rewards by name are metrics of the trajectory, or of its steps: then their mean.

    A metric `stop/<reason>` says why the episode ended, and is none.
    """
    found: dict[str, list[float]] = {}
    ended = None
    steps = cast("list[Record]", record["steps"])
    for step in steps:
        for name, value in (step.get("metrics") or {}).items():
            if name.startswith(_STOP):
                ended = name.removeprefix(_STOP)
            elif is_number(value):
                found.setdefault(name, []).append(float(value))
    parts = {name: sum(values) / len(values) for name, values in found.items()}
    parts |= numbers_in(record.get("trajectory_metrics") or {}, but=frozenset())
    yield Row(
        step=record["iteration"],
        group=record["group_idx"],
        rewards=parts,
        total=record["total_reward"],
        total_name="total_reward",
        num_tokens=sum(int(step["ac_len"]) for step in steps),
        finish_reason=ended,
    )


def art(record: Record) -> Iterator[Row]:
    """A trajectory with its messages; rewards by name are its metrics."""
    prompt, completion = _content(record.get("messages"))
    measured = numbers_in(as_object(record["metrics"]), but=frozenset())
    yield Row(
        group=record["group_index"],
        prompt=prompt,
        completion=completion,
        rewards={n: v for n, v in measured.items() if not n.endswith("duration")},
        total=record["reward"],
        extras=as_object(record.get("metadata")),
    )


def slime(record: Record) -> Iterator[Row]:
    """A sample of slime or miles; its reward is a number, or an object by name."""
    reward = record["reward"]
    parts = numbers_in(reward, but=frozenset()) if isinstance(reward, Mapping) else {}
    mask = record.get("loss_mask")
    length = record.get("response_length")
    yield Row(
        step=record["rollout_id"],
        group=record["group_index"],
        prompt=record.get("prompt"),
        completion=record.get("response"),
        rewards=parts,
        total=None if parts else reward,
        num_tokens=length if length is not None else len(mask) if mask else None,
        finish_reason=record.get("status"),
        truth=record.get("label"),
        extras=as_object(record.get("metadata")),
        trained=not record.get("remove_sample", False),
    )


def skyrl(record: Record) -> Iterator[Row]:
    """An evaluation; its score is a number, or one per token of which the sum counts."""
    score, extras = record["score"], as_object(record.get("env_extras"))
    judged_by = extras.get("reward_spec")
    yield Row(
        prompt=record["input_prompt"],
        completion=record["output_response"],
        total=sum(map(number, score)) if isinstance(score, list) else score,
        total_name="score",
        finish_reason=record.get("stop_reason"),
        truth=judged_by.get("ground_truth") if isinstance(judged_by, Mapping) else None,
        extras=extras,
    )


def open_instruct(record: Record) -> Iterator[Row]:
    """Texts are tokens here."""
    credit = record.get("advantage")
    yield Row(
        step=record["step"],
        group=record["prompt_idx"],
        prompt=record.get("prompt_tokens"),
        completion=record["response_tokens"],
        total=record["reward"],
        advantage=credit,
        num_tokens=len(record["response_tokens"]),
        finish_reason=record.get("finish_reason"),
        truth=record.get("ground_truth"),
    )


def as_object(value: Any) -> Record:
    """An object that may be written as JSON; anything else is empty."""
    if isinstance(value, str):
        value = json.loads(value)
    return cast("Record", value) if isinstance(value, Mapping) else {}


def _content(content: Any) -> tuple[Any, Any]:
    """Prompt and completion of a conversation: what stands before the first answer, and the rest.

    A list of texts is a conversation without roles: its first is the prompt, and if there are more
    than two, its last is what the environment said in the end.
    """
    if not isinstance(content, list):
        return content, None
    turns = cast("list[Any]", content)
    if not all(isinstance(turn, Mapping) for turn in turns):
        return turns[:1], turns[1:-1] if len(turns) > 2 else turns[1:]
    prompt = list(takewhile(lambda turn: turn.get("role") != "assistant", turns))
    return prompt, turns[len(prompt) :]
