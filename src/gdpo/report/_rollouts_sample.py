"""The rollouts that their page shows: the texts of a sample, as far as there is room."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, cast

from gdpo.analysis import Analysis
from gdpo.analysis.replay import RECORDED
from gdpo.analysis.sample import SampledGroup
from gdpo.errors import DataError
from gdpo.report._sample import COMPLETION, GOLDEN, PROMPT, Sample, four_digits
from gdpo.report.text import embedded, messages, visible
from gdpo.rollouts.readers import RolloutText, read_texts

_ROOM = 1_000_000
"""Bytes for all texts together."""

_ROWS = 400_000
"""Of the files that are read for them, at most: a text is found by reading from the start."""

_ESTIMATORS = 4
"""Whose advantages are shown."""

Texts = Mapping[tuple[Path, int], RolloutText]


@dataclass(frozen=True, slots=True)
class Labels:
    """What the page calls runs and rewards: as they are called, but fit to be shown."""

    runs: Mapping[str, str]
    rewards: Mapping[str, str]


def sample_of(analysis: Analysis, labels: Labels, **reading: Any) -> Sample:
    """Read the texts of the sampled groups; `reading` are options of `read_texts`."""
    groups = [group for group in analysis.sample if group.run in labels.runs]
    groups = list(_affordable(sorted(enumerate(groups), key=lambda pair: pair[0] * GOLDEN % 1)))
    texts = _texts(groups, reading)
    names = _estimators(groups)
    prompts: dict[str, int] = {}
    kept: list[dict[str, Any]] = []
    room = _ROOM
    for group in groups:
        if not all((group.file, row) in texts for row in group.rows):
            continue
        found = _group(group, texts, labels, names)
        prompt = embedded(found["prompt"])
        size = len(embedded(found).encode()) - (len(prompt.encode()) if prompt in prompts else 0)
        if size <= room:
            room -= size
            found["prompt"] = prompts.setdefault(prompt, len(prompts))
            kept.append(found)
    data: dict[str, Any] = {
        "estimators": [visible(name)[:80] for name in names],
        "rewards": list(labels.rewards.values()),
        "runs": [{"arm": label, "seed": None} for label in labels.runs.values()],
        "prompts": [json.loads(prompt) for prompt in prompts],
        "groups": kept,
    }
    return Sample(data, sum(len(group["samples"]) for group in kept))


def _affordable(groups: Sequence[tuple[int, SampledGroup]]) -> Iterator[SampledGroup]:
    """Those whose files can be read so far for so many rows."""
    furthest: dict[Path, int] = {}
    for _, group in groups:
        more = max(0, max(group.rows) + 1 - furthest.get(group.file, 0))
        if sum(furthest.values()) + more <= _ROWS:
            furthest[group.file] = furthest.get(group.file, 0) + more
            yield group


def _texts(groups: Sequence[SampledGroup], reading: Mapping[str, Any]) -> Texts:
    """By file and row; a file that has gone since then has none."""
    rows: dict[tuple[Path, str], set[int]] = defaultdict(set)
    for group in groups:
        rows[group.file, group.format] |= set(group.rows)
    found: dict[tuple[Path, int], RolloutText] = {}
    for (file, form), wanted in rows.items():
        try:
            texts = read_texts(file, sorted(wanted), format=form, **reading)
        except DataError:
            continue
        found |= {(file, text.row): text for text in texts}
    return found


def _estimators(groups: Sequence[SampledGroup]) -> list[str]:
    every = list(dict.fromkeys(name for group in groups for name in group.advantages))
    first = [name for name in (RECORDED, *every[:1], "grpo", "gdpo") if name in every]
    return list(dict.fromkeys((*first, *every)))[:_ESTIMATORS]


def _group(
    group: SampledGroup, texts: Texts, labels: Labels, names: Sequence[str]
) -> dict[str, Any]:
    written = [texts[group.file, row] for row in group.rows]
    return {
        "run": list(labels.runs).index(group.run),
        "step": group.step,
        "id": group.place,
        "size": group.size,
        "prompt": messages(_chat(written[0].prompt), PROMPT),
        "samples": [_rollout(group, s, text, labels, names) for s, text in enumerate(written)],
    }


def _rollout(
    group: SampledGroup, s: int, text: RolloutText, labels: Labels, names: Sequence[str]
) -> dict[str, Any]:
    values = zip(group.names, group.rewards[s].tolist(), strict=True)
    advantages = (float(group.advantages[n][s]) if n in group.advantages else nan for n in names)
    cut = float(group.cut[s])
    return {
        "id": text.row,
        "completion": messages(_chat(text.completion), COMPLETION),
        "rewards": {labels.rewards[n]: four_digits(v) for n, v in values if n in labels.rewards},
        "advantages": [four_digits(value) for value in advantages],
        "disagreement": four_digits(float(group.disagreement[s])),
        "tokens": float(group.num_tokens[s]),
        "end": "" if cut != cut else "length" if cut else "stop",
    }


def _chat(written: Any) -> str | list[dict[str, Any]]:
    """A text, or messages; what is neither (tokens, nothing) as it is written."""
    if written is None:
        return "(the dump has none)"
    if isinstance(written, str):
        return written
    if not isinstance(written, list):
        return str(written)
    turns = cast("list[Any]", written)
    if turns and all(isinstance(turn, Mapping) for turn in turns):
        return [_message(turn) for turn in turns]
    if turns and all(isinstance(turn, str) for turn in turns):
        return [{"role": "", "content": turn} for turn in turns]
    return str(turns)


def _message(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is nothing may hold something else, such as calls of tools."""
    if turn.get("content"):
        return {"role": turn.get("role"), "content": turn["content"]}
    others = {key: value for key, value in turn.items() if key != "role" and value}
    return {"role": turn.get("role"), "content": str(others) if others else ""}
