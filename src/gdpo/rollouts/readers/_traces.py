"""What verifiers and prime-rl write: episodes with traces, results, and the platform's rows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from gdpo.rollouts.readers._records import Record, as_object
from gdpo.rollouts.readers._rows import Row, number, numbers_in, plain

_CUT = ("max_input_tokens", "max_output_tokens", "max_total_tokens")
_METRICS = frozenset({"num_turns", "reward"})


def episodes(record: Record) -> Iterator[Row]:
    """An episode of one or more agents: a rollout for each trace. A bare trace is one, too."""
    if "traces" not in record:
        yield _trace(record, record, several=False)
        return
    traces = cast("list[Record]", record["traces"])
    agents = {_agent(trace) for trace in traces}
    for trace in traces:
        yield _trace(trace, record, several=len(agents) > 1)


def results(record: Record) -> Iterator[Row]:
    """A line of `results.jsonl`: the rewards are among the metrics."""
    yield Row(
        group=record["example_id"],
        prompt=record.get("prompt"),
        completion=record.get("completion"),
        rewards=numbers_in(as_object(record.get("metrics")), but=_METRICS),
        total=record["reward"],
        num_tokens=(record.get("token_usage") or {}).get("output_tokens"),
        finish_reason=record.get("is_truncated"),
        truth=record.get("answer"),
        extras=record,
    )


def platform(record: Record) -> Iterator[Row]:
    """A row of the parquet that the platform's monitor uploads; its `info` has the trace.

    Without one the rewards are among the metrics.
    """
    info = as_object(record.get("info"))
    episode = as_object(info.get("native_wrapper"))
    if traces := cast("list[Record]", episode.get("traces") or []):
        row = _trace(traces[info.get("native_trace_index") or 0], episode, several=False)
    else:
        row = Row(
            prompt=_messages(record.get("prompt")),
            completion=_messages(record.get("completion")),
            rewards=numbers_in(as_object(record.get("metrics")), but=_METRICS),
            truth=record.get("answer"),
            extras=info,
        )
    yield replace(
        row,
        step=record["step"],
        group=record["problem_id"],
        total=record["reward"],
        advantage=record.get("advantage"),
        num_tokens=record.get("num_output_tokens"),
    )


def _messages(value: Any) -> Any:
    """Messages that are written as JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return cast("list[Any]", found) if isinstance(found, list) else value


def _trace(trace: Record, episode: Record, *, several: bool) -> Row:
    rewards = cast("Mapping[str, Any]", trace["rewards"])
    nodes = cast("list[Record]", trace.get("nodes") or [])
    first = next((i for i, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    sampled = [node for node in nodes if node.get("sampled")]
    messages = [node.get("message") for node in nodes]
    group = (episode.get("group") or {}).get("id")
    work = ((episode.get("run") or {}).get("work")) or {}
    # The same prompt is another problem to another agent.
    key = group if group is None or not several else f"{group}/{_agent(trace)}"
    return Row(
        step=work.get("step"),
        group=key if key is not None else (trace.get("task") or {}).get("hash"),
        prompt=messages[:first],
        completion=messages[first:],
        rewards={name: plain(_part(value, "score")) for name, value in rewards.items()},
        total=_total(rewards),
        weights={name: _weight(value) for name, value in rewards.items() if value is not None},
        advantage=_advantage(trace, sampled),
        num_tokens=sum(_count(node) for node in sampled) if sampled else None,
        finish_reason=_reason(trace),
        trained=bool((trace.get("agent") or {}).get("trainable", True)),
        extras=as_object((trace.get("task") or {}).get("data")),
    )


def _total(rewards: Mapping[str, Any]) -> float | None:
    """The weighted sum of those that were scored."""
    scored = [value for value in rewards.values() if value is not None]
    return sum(number(_part(v, "score")) * _weight(v) for v in scored) if scored else None


def _agent(trace: Record) -> str:
    return str((trace.get("agent") or {}).get("name", "agent"))


def _part(value: Any, name: str) -> Any:
    return cast("Record", value).get(name) if isinstance(value, Mapping) else value


def _weight(value: Any) -> float:
    weight = _part(value, "weight") if isinstance(value, Mapping) else None
    return 1.0 if weight is None else number(weight)


def _count(node: Record) -> int:
    """Tokens that the model sampled: those of the node that its mask marks."""
    mask = node.get("mask")
    return sum(map(bool, mask)) if mask else len(node.get("token_ids") or [])


def _advantage(trace: Record, sampled: list[Record]) -> Any:
    info = as_object(trace.get("info"))
    if "advantage" in info:
        return info["advantage"]
    credit = next((node["advantages"] for node in sampled[::-1] if node.get("advantages")), None)
    return credit[-1] if credit else None


def _reason(trace: Record) -> str | None:
    """A limit of tokens stopped it, or its last call ran into one."""
    condition = trace.get("stop_condition")
    last = (trace.get("calls") or [{}])[-1].get("finish_reason")
    if condition is None and last is None:
        return None
    return "length" if condition in _CUT or last == "length" else "stop"
