"""Converts each framework's records into rollouts.

A record is a line of JSON, or a row of a parquet file whose columns contain JSON.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, takewhile
from math import isnan, nan
from typing import Any, TypeAlias, cast

from gdpo._files import from_json
from gdpo.errors import DataError
from gdpo.rollouts.readers.names import (
    MEANINGS,
    WEIGHTS,
    Inner,
    Layout,
    is_container,
    is_per_completion,
    listed_names,
    spread,
)
from gdpo.rollouts.readers.report import FileReport, ReadProblem

Record: TypeAlias = Mapping[str, Any]

_NUMBERS = frozenset({int, float, bool, type(None)})
LONGEST = 40
"""Maximum length, in characters, of a text that may be a number."""
_VERL = frozenset(
    {"input", "output", "gts", "score", "reward", "step", "uid", "request_id", "num_turns"}
    | {"num_tokens"}
)
_VERL_PADDING = re.compile(r"pad[0-9a-f]{32}_")
_VERL_KEY = re.compile(r"((.+)_[0-9]+)_([0-9]{1,18})", re.DOTALL)
"""Format of the uid in verl's V1 trainer: `<prompt>_<rollout>_<output>`."""
ONE_RESPONSE = 2
"""verl's `num_turns` of a rollout with one response: the messages of both sides are counted."""
_STOP = "stop/"
"""Prefix of tinker-cookbook's metrics that contain a stop reason."""
_SWIFT = frozenset(
    {"step", "gen_step", "prompt", "completion", "advantages", "advantage", "request_id", "entropy"}
)
_LIMITS = ("max_input_tokens", "max_output_tokens", "max_total_tokens")
_METRICS = frozenset({"num_turns", "reward"})
_SPREAD = frozenset({list, str})
"""Types of values that may contain all rewards in a form other than an object."""
_SKIPPED = _NUMBERS | _SPREAD
_DEEPEST = 8
"""Maximum depth of nested objects that are searched."""


class DoubtfulText(str):
    """Marks a text in a field that is a reward only if other rows have a number there."""

    __slots__ = ()


TOO_LONG = DoubtfulText("...")


@dataclass(frozen=True, slots=True, eq=False)
class RowTurns:
    """Stores the turns of one rollout."""

    count: int
    rewards: Mapping[str, Mapping[int, float]]
    """Rewards by name, and by turn from 0. A turn that lacks a reward of another turn earned 0."""
    num_tokens: Sequence[float]

    def only(self, names: Collection[str]) -> "RowTurns":
        """Return the turns with some of their rewards."""
        kept = {name: values for name, values in self.rewards.items() if name in names}
        return self if len(kept) == len(self.rewards) else replace(self, rewards=kept)


ONE_TURN = RowTurns(1, {}, ())
"""Turns of a rollout of one turn, which has the rewards and the tokens of the rollout."""


@dataclass(slots=True)
class ParsedRollout:
    """Stores what is known about one rollout. A default value means unknown."""

    step: Any = None
    rollout: Any = None
    """Id of the rollout, if the record is a turn."""
    turn: Any = None
    group: Any = None
    """Group id. None if unknown, in which case rollouts with identical prompts form a group."""
    output: tuple[str, int] | None = None
    """Key of the rollout and number of the output, or None if this is the only output."""
    prompt: Any = None
    completion: Any = None
    rewards: Mapping[str, Any] = field(default_factory=dict)
    total: Any = None
    total_name: str = "reward"
    weights: Mapping[str, float] | None = None
    advantage: Any = None
    num_tokens: Any = None
    finish_reason: Any = None
    trained: bool = True
    truth: Any = None
    """Reference that was used to score the completion."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the record, which rescoring may need."""
    turns: RowTurns | None = None
    mixed: bool = False
    """Whether the completion is one text that also contains tool results."""


TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


def number(value: Any) -> float:
    """Return a number, a boolean or the text of either as a float, otherwise NaN."""
    if isinstance(value, str):
        value = TRUTHS.get(value.strip().lower(), value)
    try:
        return nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: tensors
        return nan


def is_number(value: Any) -> bool:
    """Return whether a value is a number or boolean, not the text of one."""
    return isinstance(value, (int, float))


def numbers_in(record: Mapping[str, Any], *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the fields that may be rewards: those with a number, text or null."""
    found: dict[str, Any] = {}
    for name, value in record.items():  # runs for every record, so it avoids calls
        kind = type(value)
        if name in but:
            continue
        if kind in _NUMBERS:
            found[name] = value
        elif kind is str:
            found[name] = DoubtfulText(value) if len(value) <= LONGEST else TOO_LONG
    return found


def plain(value: Any) -> Any:
    """Return numbers, None and short texts unchanged, so that kept values are never large.

    Any other value becomes a number, or else a short placeholder.
    """
    if type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST else TOO_LONG
    found = number(value)
    return TOO_LONG if isnan(found) else found


def verl(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a line of verl. Its V1 trainer writes a uid, and no rewards."""
    uid = record.get("uid")
    if uid is not None and _VERL_PADDING.match(str(uid)):
        raise DataError("padding in verl's batch, not a rollout (the uid begins with pad)")
    key = _VERL_KEY.fullmatch(str(uid))
    yield ParsedRollout(
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
        mixed=number(record.get("num_turns")) > ONE_RESPONSE,
    )


def nemo_rl(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a line. The prompt is the part excluded from the loss.

    With dynamic sampling, only `filtered_rewards` corresponds to the tokens on that line. The
    logger writes all values except `idx` as one-element lists.
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
    yield ParsedRollout(
        prompt=prompt,
        completion=completion,
        total=reward,
        total_name="rewards",
        advantage=credit,
        num_tokens=sum(map(bool, kept)) if kept else None,
        extras=record,
        trained=weight is None or bool(number(weight)),
    )


def swift(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollouts in a line, whose fields are lists with one value per rollout."""
    columns = {
        name: cast("list[Any]", value) for name, value in record.items() if isinstance(value, list)
    }
    size = len(columns["prompt"])
    for name, values in columns.items():
        if len(values) != size:
            raise DataError(f"column {name[:40]!r} and column 'prompt' have different lengths")
    others = {name: values for name, values in columns.items() if name not in _SWIFT}
    rewards = [
        name
        for name, values in others.items()
        if all(v is None or is_number(v) or isinstance(v, str) for v in values)
    ]
    steps = columns.get("step", columns.get("gen_step"))
    credit = columns.get("advantages", columns.get("advantage"))
    for i in range(size):
        yield ParsedRollout(
            step=steps[i] if steps else record.get("step", record.get("gen_step")),
            prompt=columns["prompt"][i],
            completion=columns["completion"][i],
            rewards=numbers_in({name: columns[name][i] for name in rewards}),
            advantage=credit[i] if credit else None,
            extras={name: values[i] for name, values in others.items()},
        )


def swift_row(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a line of ms-swift's Ray trainer, with a scalar reward."""
    yield ParsedRollout(
        step=record["gen_step"],
        prompt=record["prompt"],
        completion=record["completion"],
        total=record["reward"],
        extras=record,
    )


def tinker(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a line, with metrics as rewards, and with the steps as turns.

    A metric `stop/<reason>` is not a reward, but the reason why the episode ended.
    """
    steps = cast("list[Record]", record["steps"])
    by_turn, ended = dict[str, dict[int, float]](), None
    for turn, step in enumerate(steps):
        for name, value in (step.get("metrics") or {}).items():
            if name.startswith(_STOP):
                ended = name.removeprefix(_STOP)
            elif is_number(value):
                by_turn.setdefault(name, {})[turn] = float(value)
    parts = {name: sum(found.values()) / len(found) for name, found in by_turn.items()}
    parts |= numbers_in(record.get("trajectory_metrics") or {})
    yield ParsedRollout(
        step=record["iteration"],
        group=record["group_idx"],
        rewards=parts,
        total=record["total_reward"],
        total_name="total_reward",
        num_tokens=sum(int(step["ac_len"]) for step in steps),
        finish_reason=ended,
        turns=ONE_TURN if len(steps) == 1 else _tinker_turns(record, by_turn) if steps else None,
    )


def _tinker_turns(record: Record, by_turn: dict[str, dict[int, float]]) -> RowTurns:
    steps = cast("list[Record]", record["steps"])
    last = len(steps) - 1
    scalar = {turn: number(step.get("reward")) for turn, step in enumerate(steps)}
    scalar[last] += number(record.get("final_reward", 0.0))
    whole = as_object(record.get("trajectory_metrics"))
    at_end = {name: {last: float(value)} for name, value in whole.items() if is_number(value)}
    found = {"total_reward": scalar, **by_turn, **at_end}
    return RowTurns(len(steps), found, [int(step["ac_len"]) for step in steps])


def art(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout of a trajectory, whose metrics are the rewards."""
    prompt, completion = _content(record.get("messages"))
    measured = numbers_in(as_object(record["metrics"]))
    yield ParsedRollout(
        group=record["group_index"],
        prompt=prompt,
        completion=completion,
        rewards={n: v for n, v in measured.items() if not n.endswith("duration")},
        total=record["reward"],
        extras=as_object(record.get("metadata")),
    )


def slime(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout of a sample, whose reward is a number or an object of rewards."""
    reward = record["reward"]
    parts = numbers_in(reward) if isinstance(reward, Mapping) else {}
    mask = record.get("loss_mask")
    length = record.get("response_length")
    yield ParsedRollout(
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
        mixed=isinstance(mask, list) and not all(cast("list[Any]", mask)),
    )


def skyrl(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout of an evaluation. A list of scores, one per token, is summed."""
    score, extras = record["score"], as_object(record.get("env_extras"))
    judged_by = extras.get("reward_spec")
    yield ParsedRollout(
        prompt=record["input_prompt"],
        completion=record["output_response"],
        total=sum(map(number, score)) if isinstance(score, list) else score,
        total_name="score",
        finish_reason=record.get("stop_reason"),
        truth=judged_by.get("ground_truth") if isinstance(judged_by, Mapping) else None,
        extras=extras,
    )


def open_instruct(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a line that stores prompt and completion as tokens."""
    yield ParsedRollout(
        step=record["step"],
        group=record["prompt_idx"],
        prompt=record.get("prompt_tokens"),
        completion=record["response_tokens"],
        total=record["reward"],
        advantage=record.get("advantage"),
        num_tokens=len(record["response_tokens"]),
        finish_reason=record.get("finish_reason"),
        truth=record.get("ground_truth"),
    )


def as_object(value: Any) -> Record:
    """Return an object, or the object in a JSON text, otherwise an empty object."""
    if isinstance(value, str):
        value = json.loads(value)
    return cast("Record", value) if isinstance(value, Mapping) else {}


def _content(content: Any) -> tuple[Any, Any]:
    if not isinstance(content, list):
        return content, None
    turns = cast("list[Any]", content)
    if not all(isinstance(turn, Mapping) for turn in turns):
        # Texts without roles: a prompt, then by turns, up to a last message of the environment.
        said = turns[1:-1] if len(turns) > 2 else turns[1:]
        roles = ("environment", "assistant")
        return turns[:1], [
            {"role": roles[(len(said) - i) % 2], "content": text} for i, text in enumerate(said)
        ]
    prompt = list(takewhile(lambda turn: turn.get("role") != "assistant", turns))
    return prompt, turns[len(prompt) :]


def episodes(record: Record) -> Iterator[ParsedRollout]:
    """Yield a rollout for each trace of an episode, or for a trace without an episode."""
    traces = cast("list[Record]", record.get("traces", [record]))
    agents = {_agent(trace) for trace in traces} if "traces" in record else ()
    for trace in traces:
        yield _trace(trace, record, several=len(agents) > 1)


def results(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a line of `results.jsonl`, whose metrics include the rewards."""
    yield ParsedRollout(
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


def platform(record: Record) -> Iterator[ParsedRollout]:
    """Yield the rollout in a row of prime-rl's parquet file, whose `info` may contain a trace.

    The rewards are in the trace, or else among the metrics.
    """
    info = as_object(record.get("info"))
    episode = as_object(info.get("native_wrapper"))
    if traces := cast("list[Record]", episode.get("traces") or []):
        row = _trace(traces[info.get("native_trace_index") or 0], episode, several=False)
    else:
        row = ParsedRollout(
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
    found = from_json(value) if isinstance(value, str) else value
    messages = cast("list[Any]", found) if isinstance(found, list) else []
    return messages if messages and all(isinstance(each, Mapping) for each in messages) else value


def _trace(trace: Record, episode: Record, *, several: bool) -> ParsedRollout:
    rewards = cast("Mapping[str, Any]", trace["rewards"])
    nodes = cast("list[Record]", trace.get("nodes") or [])
    first = next((i for i, node in enumerate(nodes) if node.get("sampled")), len(nodes))
    sampled = [node for node in nodes if node.get("sampled")]
    counts = [  # the mask marks the tokens of the model
        sum(map(bool, mask)) if (mask := node.get("mask")) else len(node.get("token_ids") or [])
        for node in sampled
    ]
    messages = [node.get("message") for node in nodes]
    group = (episode.get("group") or {}).get("id")
    work = ((episode.get("run") or {}).get("work")) or {}
    credit = next((node["advantages"] for node in sampled[::-1] if node.get("advantages")), None)
    # The same prompt is a different problem for each agent.
    scored = [value for value in rewards.values() if value is not None]
    key = group if group is None or not several else f"{group}/{_agent(trace)}"
    return ParsedRollout(
        step=work.get("step"),
        group=key if key is not None else (trace.get("task") or {}).get("hash"),
        prompt=messages[:first],
        completion=messages[first:],
        rewards={name: plain(_part(value, "score")) for name, value in rewards.items()},
        total=sum(number(_part(v, "score")) * _weight(v) for v in scored) if scored else None,
        weights={name: _weight(value) for name, value in rewards.items() if value is not None},
        advantage=as_object(trace.get("info")).get("advantage", credit[-1] if credit else None),
        num_tokens=sum(counts) if sampled else None,
        finish_reason=_reason(trace),
        trained=bool((trace.get("agent") or {}).get("trainable", True)),
        extras=as_object((trace.get("task") or {}).get("data")),
    )


def _agent(trace: Record) -> str:
    return str((trace.get("agent") or {}).get("name", "agent"))


def _part(value: Any, name: str) -> Any:
    return cast("Record", value).get(name) if isinstance(value, Mapping) else value


def _weight(value: Any) -> float:
    weight = _part(value, "weight") if isinstance(value, Mapping) else None
    return 1.0 if weight is None else number(weight)


def _reason(trace: Record) -> str | None:
    """Return `length` if a token limit ended the trace or its last call, `stop`, or None."""
    condition = trace.get("stop_condition")
    last = (trace.get("calls") or [{}])[-1].get("finish_reason")
    if condition is None and last is None:
        return None
    return "length" if condition in _LIMITS or last == "length" else "stop"


def rows_by(known: Layout, *, texts: bool) -> Callable[[Record], Iterator[ParsedRollout]]:
    """Return a function that converts records to rollouts, with texts or rewards."""
    taken, paths = known.taken(), {each: getattr(known, each) for each in MEANINGS}
    if known.turn is None:
        del paths["rollout"]
    paths = {meaning: path for meaning, path in paths.items() if path is not None}

    def rows(record: Record) -> Iterator[ParsedRollout]:
        yield ParsedRollout(
            **{meaning: at(record, path) for meaning, path in paths.items()},
            rewards={} if texts else numbers_by_path(record, but=taken),
            total_name=known.total or "reward",
            extras={k: v for k, v in record.items() if k not in taken} if texts else {},
        )

    return rows


def numbers_by_path(record: Record, *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the numbers in a record and in its nested objects, by path.

    Texts at the top level and in objects of rewards are included, because a text may be a number.
    """
    found = numbers_in(record, but=but)

    def enter(inner: Mapping[Any, Any], above: str, *, rewarded: bool, depth: int) -> None:
        for name, value in numbers_in(inner).items() if above else ():
            path = Inner(above + name)
            if path not in but and (rewarded or isinstance(value, (int, float))):
                found[path] = value
        for name, value in inner.items() if depth < _DEEPEST else ():
            kind, path = type(value), f"{above}{name}"
            if kind in _NUMBERS or path in but:
                continue
            contains = is_container(str(name))
            if kind in _SPREAD and (contains or name in WEIGHTS):
                value = _opened(value, path, inner, found)
            if isinstance(value, dict):
                enter(value, f"{path}.", rewarded=rewarded or contains, depth=depth + 1)

    enter(record, "", rewarded=False, depth=0)
    return found


def _opened(value: Any, path: str, record: Record, found: dict[str, Any]) -> Any:
    """Return the rewards in a list or JSON text as an object, or None. Update what was found."""
    each = is_per_completion(value, record)
    inner = None if each else spread(value, listed_names(record))
    if inner is not None:
        found.pop(path, None)
        if "0" in inner:  # a list without names, which may have a value for each turn
            found[path] = sum(number(each) for each in inner.values() if each is not None)
    elif isinstance(value, list):
        found[path] = TOO_LONG if value else 0.0
    return inner


def at(record: Any, path: str) -> Any:
    """Return the value at a name or dotted path, or None."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return cast("Record", record)[path]
    name, dot, rest = path.partition(".")
    while dot:
        if name in record and (found := at(record[name], rest)) is not None:
            return found
        more, dot, rest = rest.partition(".")
        name = f"{name}.{more}"
    return None


def one_per_rollout(
    rows: Iterator[tuple[int, ParsedRollout]], file: FileReport
) -> Iterator[tuple[int, ParsedRollout]]:
    """Yield the last output of each rollout, with its line, and report other outputs as skipped.

    Like verl's GRPO, it uses only the last outputs. verl writes the outputs of a rollout one after
    another; of outputs that are not consecutive, only the first sequence is used. Each row without
    an output number counts as one rollout.
    """
    step: Any = None
    of_step = set[str]()

    def later(
        one: tuple[int, ParsedRollout], other: tuple[int, ParsedRollout]
    ) -> tuple[int, ParsedRollout]:
        first, last = sorted((one, other), key=lambda row: row[1].output or ("", 0))
        file.lose(first[0], ReadProblem.OTHER)
        return last

    for rollout, outputs in groupby(rows, lambda row: row[1].output and row[1].output[0]):
        if rollout is None:
            yield from outputs
            continue
        last = reduce(later, outputs)
        if last[1].step != step:
            step, of_step = last[1].step, set()
        if rollout in of_step:
            file.lose(last[0], ReadProblem.APART)
        else:
            of_step.add(rollout)
            yield last
