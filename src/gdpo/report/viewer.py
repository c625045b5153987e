"""Collects the rollouts of sampled groups that a page shows, up to a total size."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from gdpo._text import visible
from gdpo.analysis.sample import GOLDEN, SampledGroup
from gdpo.errors import DataError
from gdpo.report.html import embedded
from gdpo.rollouts.readers import RolloutTable, RolloutText, read_texts

_ROOM = 1_000_000
"""Maximum total size of all texts, in bytes."""

_ROWS = 400_000
"""Maximum number of rows to read when collecting the texts. A file is always read from its
start."""

_PROMPT, _COMPLETION = 2_000, 3_000
"""Maximum number of characters shown for a prompt, and for a completion."""

_MESSAGES = 10
"""Number of messages shown at each end of a long chat."""

_Message = tuple[str, str, int, str]
"""Role, start of the text, number of omitted characters, and end of the text."""

_Texts = Mapping[tuple[Path, int], RolloutText]


@dataclass(frozen=True, slots=True)
class Labels:
    """Stores the names of runs and rewards, made safe to display."""

    runs: Mapping[str, str]
    rewards: Mapping[str, str]
    seeds: Mapping[str, int] | None = None
    """Seeds of the runs, if the runs are labelled by estimator. None: the seeds are unknown."""

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the labels of those rewards that are shown."""
        return {name: self.rewards[name] for name in names if name in self.rewards}


def viewer_data(
    groups: Sequence[SampledGroup], labels: Labels, estimators: Sequence[str], **reading: Any
) -> dict[str, Any]:
    """Return the groups of labelled runs as data for the page's script.

    The groups are in the order of their steps, with texts from the rollout files and advantages of
    the `estimators`. `reading` are options for `read_texts`.
    """
    groups = [group for group in groups if group.table.run in labels.runs]
    groups = list(_affordable(_most_wanted(groups)))
    texts = _texts(groups, reading)
    prompts: dict[str, int] = {}
    shown: list[dict[str, Any]] = []
    room = _ROOM
    for group in groups:
        if not all((group.file, row) in texts for row in group.rows):
            continue
        data = _group(group, texts, labels, estimators)
        prompt = embedded(data["prompt"])
        size = len(embedded(data).encode()) - (len(prompt.encode()) if prompt in prompts else 0)
        if size <= room:
            room -= size
            data["prompt"] = prompts.setdefault(prompt, len(prompts))
            shown.append(data)
    seeds = labels.seeds or {}
    return {
        "estimators": [visible(name)[:80] for name in estimators],
        "rewards": list(dict.fromkeys(labels.rewards.values())),
        "runs": [{"label": label, "seed": seeds.get(run)} for run, label in labels.runs.items()],
        "prompts": [json.loads(prompt) for prompt in prompts],
        "groups": shown,
        "count": sum(len(group["samples"]) for group in shown),
    }


def _most_wanted(groups: Sequence[SampledGroup]) -> list[SampledGroup]:
    """Return the groups by priority: one per run, then evenly spread and worst groups in turn."""
    evenly = sorted(range(len(groups)), key=lambda place: place * GOLDEN % 1)
    one_each = {groups[place].table.run: place for place in reversed(evenly)}
    apart = [float(np.max(group.disagreement)) for group in groups]
    worst = sorted((p for p in evenly if apart[p] > 0), key=lambda place: (-apart[place], place))
    in_turn: Iterable[int | None] = chain(reversed(one_each.values()), *zip_longest(evenly, worst))
    return [groups[place] for place in dict.fromkeys(in_turn) if place is not None]


def _affordable(groups: Sequence[SampledGroup]) -> Iterator[SampledGroup]:
    """Yield groups whose texts can be read from at most `_ROWS` rows across all files."""
    furthest: dict[Path, int] = {}
    for group in groups:
        more = max(0, max(group.rows) + 1 - furthest.get(group.file, 0))
        if sum(furthest.values()) + more <= _ROWS:
            furthest[group.file] = furthest.get(group.file, 0) + more
            yield group


def _texts(groups: Sequence[SampledGroup], reading: Mapping[str, Any]) -> _Texts:
    rows: dict[tuple[Path, str], set[int]] = defaultdict(set)
    for group in groups:
        rows[group.file, group.table.format] |= set(group.rows)
    found: dict[tuple[Path, int], RolloutText] = {}
    for (file, form), some in rows.items():
        try:
            texts = read_texts(file, sorted(some), format=form, **reading)
        except DataError:
            continue
        found |= {(file, text.row): text for text in texts}
    return found


def _group(
    group: SampledGroup, texts: _Texts, labels: Labels, estimators: Sequence[str]
) -> dict[str, Any]:
    table, written = group.table, [texts[group.file, row] for row in group.rows]
    named = labels.of(table.names)
    chats = [_chat(text.completion) for text in written]
    turns = [_turns(table, s, named, chat) for s, chat in enumerate(chats)]
    data: dict[str, Any] = {"turn_rewards": list(named.values())} if any(turns) else {}
    return data | {
        "run": list(labels.runs).index(table.run),
        "step": int(table.steps[0]),
        "id": group.place,
        "size": group.size,
        "prompt": _messages(_chat(written[0].prompt), _PROMPT),
        "samples": [
            {
                "id": text.row if labels.seeds is None else group.samples[s],
                "completion": _messages(chat, _COMPLETION),
                "rewards": {
                    named[name]: _four_digits(value)
                    for name, value in zip(table.names, table.rewards[s].tolist(), strict=True)
                    if name in named
                },
                "advantages": [
                    _four_digits(group.advantages[name][s]) if name in group.advantages else nan
                    for name in estimators
                ],
                "disagreement": _four_digits(group.disagreement[s]),
                "tokens": float(table.num_tokens[s]),
                "end": {0.0: "stop", 1.0: "length"}.get(float(table.cut[s]), ""),
            }
            | turns[s]
            for s, (text, chat) in enumerate(zip(written, chats, strict=True))
        ],
    }


def _turns(
    table: RolloutTable, sample: int, names: Iterable[str], chat: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the turns of a rollout, as a field of its data.

    If there are as many turns as messages of the assistant, the field is `turns`, with a turn or
    None for each shown message. Otherwise, it is `unplaced_turns`, in which None is a gap. A turn
    is a list: number, advantage, number of tokens, and rewards.
    """
    given = table.turns
    if given is None or not (count := int(given.counts[sample])):
        return {}
    order = [table.names.index(name) for name in names]
    columns = (given.advantages[sample], given.num_tokens[sample], given.rewards[sample][:, order])
    numbers = np.column_stack(columns)

    def row(turn: int | None) -> list[float] | None:
        return None if turn is None else [turn + 1, *map(_four_digits, numbers[turn].tolist())]

    roles = [message.get("role") for message in chat]
    spoken = [place for place, role in enumerate(roles) if role == "assistant"]
    if len(spoken) != count:
        return {"unplaced_turns": [row(turn) for turn in _shown_places(count)]}
    turns = {place: turn for turn, place in enumerate(spoken)}
    places = _shown_places(len(roles))
    return {"turns": [None if place is None else row(turns.get(place)) for place in places]}


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def _chat(written: Any) -> list[dict[str, Any]]:
    """Return a stored prompt or completion as a list of messages.

    A text becomes one message. Any other value, such as a list of tokens, also becomes one.
    """
    if isinstance(written, list) and written:
        if all(isinstance(turn, Mapping) for turn in written):
            return [_message(turn) for turn in written]
        if all(isinstance(turn, str) for turn in written):
            return [{"role": "", "content": turn} for turn in written]
    return [{"role": "", "content": "(not in the file)" if written is None else str(written)}]


def _message(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message, whose text also shows other fields, such as tool calls."""
    content = turn.get("content")
    said = [content] if content and isinstance(content, str) else []
    shown = ("role", "content") if said else ("role",)
    others = {key: value for key, value in turn.items() if key not in shown and value}
    text = "\n".join([*said, *([str(others)] if others else [])])
    return {"role": turn.get("role"), "content": text}


def _cut(text: str, limit: int) -> tuple[str, int, str]:
    """Return the start of a text, the number of omitted characters, and the end.

    >>> _cut("0123456789" * 3, 15)
    ('0123456789', 15, '56789')
    """
    start = _fitting(text[: limit + 1], limit)
    if len(start) == len(text):
        return "".join(start), 0, ""
    start = _fitting(text[:limit], limit * 2 // 3)
    end = _fitting(text[: -limit - 1 : -1], limit // 3)[::-1]
    return "".join(start), len(text) - len(start) - len(end), "".join(end)


def _messages(chat: Sequence[Mapping[str, Any]], limit: int) -> list[_Message]:
    """Return the messages to show, with `limit` characters in total.

    In a very long chat, one message states how many are omitted in the middle.
    """
    places = _shown_places(len(chat))
    kept = [chat[place] for place in places if place is not None]
    contents = [str(message.get("content") or "") for message in kept]
    most = max(limit // max(1, len(kept)), limit - sum(map(len, contents)))
    shown: list[_Message] = [
        ("".join(_fitting(str(message.get("role") or ""), 40)), *_cut(content, most))
        for message, content in zip(kept, contents, strict=True)
    ]
    if None in places:
        what = f"… {len(chat) - len(kept):,} messages left out …"
        shown.insert(places.index(None), ("", what, 0, ""))
    return shown


def _shown_places(count: int) -> list[int | None]:
    """Return the positions of a chat's shown messages, with None for a gap.

    >>> _shown_places(3)
    [0, 1, 2]
    """
    if count <= 2 * _MESSAGES:
        return list(range(count))
    return [*range(_MESSAGES), None, *range(count - _MESSAGES, count)]


def _fitting(text: Iterable[str], room: int) -> list[str]:
    """Return the first characters of a text that fit into `room`. Hidden characters are escaped."""
    fitting: list[str] = []
    for piece in map(visible, text):
        room -= len(piece)
        if room < 0:
            break
        fitting.append(piece)
    return fitting
