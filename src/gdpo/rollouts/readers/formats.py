"""Defines the known formats: where each meaning stands in a record or a table.

A record is a line of JSON, or a row of a parquet file whose columns contain JSON. A new format is a
row of `FORMATS`. The fields of a file show its format.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, TypeAlias, cast

from gdpo._files import from_json
from gdpo._naming import refuse_unknown
from gdpo._text import Remedy, Setting
from gdpo.errors import DataError
from gdpo.rollouts.readers.columns import Rescore, kind_of_type, paths_in
from gdpo.rollouts.readers.metrics import shown_by
from gdpo.rollouts.readers.names import (
    MEANINGS,
    NOTHING_KNOWN,
    Kind,
    Layout,
    is_container,
    is_like_rollouts,
    is_named_reward,
    kinds_in,
    layout,
    listed,
    looks_rewarded,
)
from gdpo.rollouts.readers.propose import MOST, Where
from gdpo.rollouts.readers.records import (
    ONE_TURN,
    UNKNOWN_TURNS,
    ParsedRollout,
    Record,
    Rollouts,
    RowTurns,
    as_object,
    at,
    is_number,
    number,
    numbers_by_path,
    numbers_in,
    plain,
)
from gdpo.rollouts.readers.report import FileReport
from gdpo.rollouts.readers.sources import LoadPt

Rows: TypeAlias = Callable[[Record], Rollouts]
"""Function that converts a record to its rollouts."""
Place: TypeAlias = str | Callable[[Record], Any]
"""Path of a field in a record or a table, or function of a record."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Stores the caller's options. None: the value is inferred if possible."""

    format: str | None = None
    rewards: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None
    load_pt: LoadPt | None = None
    rescore: Rescore | None = None
    texts: bool = False
    """Whether the texts are needed, to rescore or show them. The rewards are then not read."""


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


def _verl(record: Record) -> Rollouts:
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
        truth=record.get("gts"),
        extras=record,
        mixed=number(record.get("num_turns")) > ONE_RESPONSE,
    )


def _measured(record: Record) -> dict[str, Any]:
    """Return the metrics of a rollout that may be rewards."""
    return numbers_in(as_object(record.get("metrics")), but=_METRICS)


def _nemo_rl(record: Record) -> Rollouts:
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
        advantage=credit,
        num_tokens=sum(map(bool, kept)) if kept else None,
        extras=record,
        trained=weight is None or bool(number(weight)),
    )


def _swift(record: Record) -> Rollouts:
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


def _tinker(record: Record) -> Rollouts:
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
        num_tokens=sum(int(step["ac_len"]) for step in steps),
        finish_reason=ended,
        turns=_tinker_turns(record, by_turn),
    )


def _tinker_turns(record: Record, by_turn: dict[str, dict[int, float]]) -> RowTurns:
    steps = cast("list[Record]", record["steps"])
    if len(steps) < 2:
        return ONE_TURN if steps else UNKNOWN_TURNS
    last = len(steps) - 1
    scalar = {turn: number(step.get("reward")) for turn, step in enumerate(steps)}
    scalar[last] += number(record.get("final_reward", 0.0))
    whole = as_object(record.get("trajectory_metrics"))
    at_end = {name: {last: float(value)} for name, value in whole.items() if is_number(value)}
    found = {"total_reward": scalar, **by_turn, **at_end}
    return RowTurns(len(steps), found, [int(step["ac_len"]) for step in steps])


def _art(record: Record) -> Rollouts:
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


def _slime(record: Record) -> Rollouts:
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


def _skyrl(record: Record) -> Rollouts:
    """Yield the rollout of an evaluation. A list of scores, one per token, is summed."""
    score, extras = record["score"], as_object(record.get("env_extras"))
    judged_by = extras.get("reward_spec")
    yield ParsedRollout(
        prompt=record["input_prompt"],
        completion=record["output_response"],
        total=sum(map(number, score)) if isinstance(score, list) else score,
        finish_reason=record.get("stop_reason"),
        truth=judged_by.get("ground_truth") if isinstance(judged_by, Mapping) else None,
        extras=extras,
    )


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


def _episodes(record: Record) -> Rollouts:
    """Yield a rollout for each trace of an episode, or for a trace without an episode."""
    for trace in cast("list[Record]", record.get("traces", [record])):
        yield _trace(trace, record)


def _platform(record: Record) -> Rollouts:
    """Yield the rollout in a row of prime-rl's parquet file, whose `info` may contain a trace.

    The rewards are in the trace, or else among the metrics.
    """
    info = as_object(record.get("info"))
    episode = as_object(info.get("native_wrapper"))
    if traces := cast("list[Record]", episode.get("traces") or []):
        row = _trace(traces[info.get("native_trace_index") or 0], episode)
    else:
        row = ParsedRollout(
            prompt=_messages(record.get("prompt")),
            completion=_messages(record.get("completion")),
            rewards=_measured(record),
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


def _trace(trace: Record, episode: Record) -> ParsedRollout:
    rewards = cast("Mapping[str, Any]", trace["rewards"])
    nodes = cast("list[Record]", trace.get("nodes") or [])
    first = len(list(takewhile(lambda node: not node.get("sampled"), nodes)))
    sampled = [node for node in nodes if node.get("sampled")]
    counts = [  # the mask marks the tokens of the model
        sum(map(bool, mask)) if (mask := node.get("mask")) else len(node.get("token_ids") or [])
        for node in sampled
    ]
    messages = [node.get("message") for node in nodes]
    group = (episode.get("group") or {}).get("id")
    work = ((episode.get("run") or {}).get("work")) or {}
    credit = next((node["advantages"] for node in sampled[::-1] if node.get("advantages")), None)
    agent, task = trace.get("agent") or {}, trace.get("task") or {}
    # The same prompt is a different problem for each agent.
    key = task.get("hash") if group is None else f"{group}/{agent.get('name', 'agent')}"
    scored = [value for value in rewards.values() if value is not None]
    return ParsedRollout(
        step=work.get("step"),
        group=key,
        prompt=messages[:first],
        completion=messages[first:],
        rewards={name: plain(_part(value, "score")) for name, value in rewards.items()},
        total=sum(number(_part(v, "score")) * _weight(v) for v in scored) if scored else None,
        weights={name: _weight(value) for name, value in rewards.items() if value is not None},
        advantage=as_object(trace.get("info")).get("advantage", credit[-1] if credit else None),
        num_tokens=sum(counts) if sampled else None,
        finish_reason=_reason(trace),
        trained=bool(agent.get("trainable", True)),
        extras=as_object(task.get("data")),
    )


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


@dataclass(frozen=True, slots=True)
class Format:
    """Describes one format of rollout files."""

    name: str
    kind: str
    """`parquet`, `jsonl`, `pt` or `table` (of W&B), or several. Empty: any file with columns."""
    fields: frozenset[str]
    """Fields that identify the format."""
    rows: Rows
    known: Layout
    """Path of each meaning that stands at a path."""
    rewards: Where = "format"
    """Where the rewards are: `format` if the format defines them, or as in `propose`."""
    never: str = ""
    """What the first record of a file never shows: `lists` in its fields or other `values`, a
    `nested` object of rewards, numbers named as `parts` of the reward, `counts` of tokens."""
    numbers: str = ""
    """Columns that are always read from a parquet file of records. Empty for a table."""
    texts: str = ""
    """Additional columns that are read if texts are needed."""
    wordless: bool = False
    """Whether the files contain no texts, so that they cannot be rescored."""


def rows_at(places: Mapping[str, Place], required: Collection[str] = ()) -> Rows:
    """Return a function that converts a record to its only rollout.

    `places` are those of the fields of `ParsedRollout`. A field in `required` must be there. The
    place of `rewards` is a function that returns a mapping of numbers for any record.
    """
    readings = dict[str, Callable[[Record], Any]]()
    for name, place in places.items():
        if isinstance(place, str):
            place = itemgetter(place) if place in required else partial(at, path=place)
        readings[name] = place

    def rows(record: Record) -> Rollouts:
        yield ParsedRollout(**{name: read(record) for name, read in readings.items()})

    return rows


def _format(
    name: str,
    kind: str,
    fields: str,
    places: Mapping[str, Place],
    rows: Rows | None = None,
    **more: Any,
) -> Format:
    """Return a row of the table. `rows` is for records whose meanings are not at fixed places."""
    required = frozenset(fields.split())
    paths = {m: path for m, path in places.items() if m in MEANINGS and isinstance(path, str)}
    return Format(name, kind, required, rows or rows_at(places, required), Layout(**paths), **more)


def by_columns(known: Layout, *, texts: bool) -> Format:
    """Return the format of files whose columns have these meanings, to read texts or rewards."""
    places: dict[str, Place] = {**known.places()}
    taken = frozenset(known.places().values())
    if known.turn is None:
        places.pop("rollout", None)
    if texts:
        places["extras"] = lambda record: {k: v for k, v in record.items() if k not in taken}
    else:
        places["rewards"] = partial(numbers_by_path, but=taken)
    return Format("columns", "", frozenset(), rows_at(places), known, "none")


_TRL = "step prompt completion advantage"
FORMATS = (
    _format(
        "gdpo",
        "parquet",
        "step group_id sample_id rewards weights advantage",
        {
            "step": "step",
            "group": "group_id",
            "prompt": "prompt",
            "completion": "completion",
            "advantage": "advantage",
            "num_tokens": "num_tokens",
            "finish_reason": "finish_reason",
        },
        rewards="record",
    ),
    _format(
        "art",
        "parquet",
        "group_index reward metrics messages",
        {"total": "reward"},
        _art,
        rewards="every",
        numbers="group_index reward metrics",
        texts="messages metadata",
    ),
    _format(
        "prime-rl",
        "parquet",
        "step problem_id sample_id trajectory reward",
        {"total": "reward"},
        _platform,
        # `info` contains the trace, which has the rewards.
        numbers="step problem_id reward metrics advantage num_output_tokens info",
        texts="prompt completion answer",
    ),
    _format(
        "trl", "parquet table", _TRL, {name: name for name in _TRL.split()}, rewards="function"
    ),
    _format("verifiers", "jsonl", "task traces", {"total": "reward"}, _episodes),
    _format("verifiers", "jsonl", "task nodes rewards", {"total": "reward"}, _episodes),
    _format(
        "verifiers-results",
        "jsonl",
        "example_id reward metrics",
        {
            "group": "example_id",
            "prompt": "prompt",
            "completion": "completion",
            "rewards": _measured,
            "total": "reward",
            "num_tokens": "token_usage.output_tokens",
            "finish_reason": "is_truncated",
            "truth": "answer",
            "extras": lambda record: record,
        },
        rewards="every",
    ),
    _format(
        "tinker",
        "jsonl",
        "group_idx traj_idx total_reward steps",
        {"total": "total_reward"},
        _tinker,
        rewards="every",
        wordless=True,
    ),
    _format(
        "open-instruct",
        "jsonl",
        "step prompt_idx response_tokens reward",
        {
            "step": "step",
            "group": "prompt_idx",
            "prompt": "prompt_tokens",
            "completion": "response_tokens",
            "total": "reward",
            "advantage": "advantage",
            "num_tokens": lambda record: len(record["response_tokens"]),
            "finish_reason": "finish_reason",
            "truth": "ground_truth",
        },
        never="nested parts counts",
        wordless=True,
    ),
    _format("nemo-rl", "jsonl", "content rewards idx", {"total": "rewards"}, _nemo_rl),
    _format("skyrl", "jsonl", "input_prompt output_response score", {"total": "score"}, _skyrl),
    _format(
        "verl",
        "jsonl",
        "input output score step",
        {"total": "score"},
        _verl,
        rewards="every",
        never="nested",
    ),
    _format(
        "ms-swift",
        "jsonl",
        "prompt completion",
        {},
        _swift,
        rewards="function",
        never="values",
    ),
    _format(
        "ms-swift-ray",
        "jsonl",
        "gen_step prompt completion reward",
        {
            "step": "gen_step",
            "prompt": "prompt",
            "completion": "completion",
            "total": "reward",
            "extras": lambda record: record,
        },
        never="nested parts lists",
    ),
    _format("slime", "pt", "rollout_id group_index reward", {"total": "reward"}, _slime),
    by_columns(NOTHING_KNOWN, texts=False),
)
"""The known formats, in the order in which they are tried."""
NAMES = tuple(dict.fromkeys(f.name for f in FORMATS))
WORDLESS = frozenset(f.name for f in FORMATS if f.wordless)


def recognized(kind: str, fields: Collection[str], record: Record | None) -> Format | None:
    """Return the first format whose fields all exist, or None."""
    first = record or {}
    # Chat messages are a list too, but in that case the step is not a list.
    columns = first.get("prompt"), first.get("completion"), first.get("step", first.get("gen_step"))
    shown = {"lists" if all(isinstance(each, list) for each in columns) else "values"}
    for name, of in kinds_in(first).items():
        if of == "object" and is_container(name):
            shown.add("nested")
        elif of == "number" and is_named_reward(name):
            shown.add("parts")
        if name == "response_tokens" and of != "other":
            shown.add("counts")
    for form in FORMATS:
        is_kind = kind in form.kind.split()
        if is_kind and form.fields <= set(fields) and shown.isdisjoint(form.never.split()):
            return form
    return None


_SPECIFY: Remedy = {
    "specify the format": Setting.FORMAT,
    "the meaning of the columns": Setting.COLUMNS,
    "or the rewards": Setting.REWARDS,
    "or, if each row is a step, run gdpo analyze with --columns format=metrics": None,
}
_DECIDING = ("step", "group", "prompt", "advantage")
"""Meanings whose columns decide about the groups, or what the advantages follow."""


def format_of_table(asked: ReaderOptions, file: FileReport, schema: Any) -> Format:
    """Return the format of a table, as `format_of`."""
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise DataError(f"several columns are called {listed(repeated)}: rename them")
    fields: dict[str, Kind] = {column.name: kind_of_type(column.type) for column in schema}
    numbers = [path for path, kind in paths_in(schema).items() if kind == "number"]
    return format_of(asked, file, fields, numbers, numbers)


def format_of(
    asked: ReaderOptions,
    file: FileReport,
    fields: Mapping[str, Kind],
    numbers: Sequence[str],
    paths: Iterable[str],
    record: Record | None = None,
) -> Format:
    """Return the format of a file, and report what is known about it and its fields.

    `numbers` are the paths of the numeric fields, `paths` those of all fields that may contain
    numbers, and `record` is the first record, if any.
    """
    said = asked.format is not None or asked.columns is not None
    seen = recognized(file.kind, fields, record)
    if seen is None:
        told = shown_by(file.path, asked.columns)
        if told.sentence and (not said or told.apart or told.selected):
            raise DataError(told.sentence)
        file.bare = not told.rollouts
    offered = file.report.fields
    offered |= dict.fromkeys(islice(fields, MOST - len(offered)))
    words = [name for name, kind in fields.items() if kind == "text"]
    if (named := is_like_rollouts(fields)) or len(words) > 1:
        file.numbers = tuple(numbers[:MOST])
    form, file.format_from = _chosen(asked, seen, file.kind, fields)
    if form.name == "columns":
        known = layout(asked.columns, fields)
        file.inferred = _inferred(known, asked)
        if not (named or asked.rewards or asked.columns) and len(words) > 1:
            file.inferred = {"prompt": words[0], **file.inferred}
        if not (said or asked.rewards is not None or looks_rewarded(fields, paths)):
            raise DataError(f"unknown format, with the fields {listed(fields)}", _SPECIFY)
        form = by_columns(known, texts=asked.texts)
    if form.wordless and asked.rescore is not None:
        what = f"{form.name} files contain no texts that could be rescored"
        raise DataError(what, {"to read the rewards in the files, leave it out": Setting.RESCORE})
    file.format = form.name
    file.report.files.append(file)
    return form


def _chosen(
    asked: ReaderOptions, seen: Format | None, kind: str, fields: Collection[str]
) -> tuple[Format, str]:
    """Return the requested format, or else the one that was recognized, and a phrase about it."""
    if asked.format is not None:
        refuse_unknown([asked.format], NAMES, "unknown format")
        of_name = [form for form in FORMATS if form.name == asked.format]
        fitting = [form for form in of_name if not form.kind or kind in form.kind.split()]
        if not fitting:
            what = f"format {asked.format} is not stored in {kind} files"
            raise DataError(what, {"correct the format name": Setting.FORMAT})
        form = max(fitting, key=lambda form: form.fields <= set(fields))
        if form.rewards == "record" and "rewards" not in fields and asked.rewards is None:
            what = f"format {form.name} needs a column 'rewards'"
            raise DataError(what, {"name the columns": Setting.REWARDS})
        return form, "as given"
    if asked.columns is None and seen is not None:
        return seen, f"detected from the fields {', '.join(sorted(seen.fields))}"
    return FORMATS[-1], "read by column names"


def _inferred(known: Layout, asked: ReaderOptions) -> dict[str, str]:
    """Return the columns of the meanings that decide about groups and rewards, unless given."""
    deciding = {*_DECIDING, *(("rollout", "turn") if known.of_turns else ())}
    sought = deciding - {*(asked.columns or ())}
    return {meaning: column for meaning, column in known.places().items() if meaning in sought}
