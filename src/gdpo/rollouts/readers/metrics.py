"""Decides whether the rows of a file are rollouts, or metrics of steps, such as `grad_norm`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any, cast

from gdpo.errors import MissingExtraError
from gdpo.rollouts.readers.names import (
    Kind,
    Layout,
    is_likely,
    is_named_reward,
    is_vocabulary,
    kinds_in,
    layout,
    leaf_of,
    listed,
    may_be_total,
    name_in,
    prefix_of,
)
from gdpo.rollouts.readers.records import Record
from gdpo.rollouts.readers.sources import rows_of, unreadable

OF_REWARD = (
    r"(?:rewards?|diagnostics|gdpo)/(.+)/(mean|std|group_std|zero_variance_groups|influence_share)"
)
"""Keys of TRL's trainers, `GDPOTrainer`, `watch`, and gdpo's plugin for verl. `std` is over the
batch, `group_std` over the samples of a prompt."""
_METRIC = re.compile(rf"(?:.+[./_])?{OF_REWARD}")
"""Keys of the statistics of a reward over a whole step."""
_RUN_AND_KEY = re.compile(
    r"(?:(.+?) - (?=(?:train/|eval/)?(?:rewards|diagnostics|gdpo)/.)|(.+) - (?=.))?(.*)", re.DOTALL
)
"""Columns of a W&B export: the run, and the key."""
_EXTREME = re.compile(r".+__(?:MIN|MAX)", re.DOTALL)
"""Columns that only W&B exports, with the range of the values that it averaged for a key."""
_NO_REWARDS = frozenset(
    [
        "mean",
        "std",
        "min",
        "max",
        "median",
        "sum",
        "total",
        "var",
        "chosen",
        "rejected",
        "margins",
        "accuracies",
    ]
)
"""Statistics, and what training on pairs, such as DPO, logs. None is one of several rewards."""
_NO_REWARD = re.compile(
    r"(?i).*/.*|(?:.*_)?(?:kl|entropy|loss|grad|best|worst|lowest|highest)(?:_.*)?|.*_(?:min|max)"
)
"""Names of losses, of the extremes of a batch, and of anything else in a folder of metrics."""
_PROSE = re.compile(r"[^\W\d]+\W+[^\W\d]+.{9}", re.DOTALL)
"""A text that may be a prompt or a completion, whatever the name of its field."""
_FUNCTION_NAME = re.compile(r".+_(?:fn|func)")
_LABEL = 48
"""Number of characters of a text that are looked at. A label is shorter."""
_BEST = re.compile(r"(?i)^\W*(best|top|highest|max(?:imum)?)\b.{0,15}$")
_EXTREME_LABEL = re.compile(
    r"(?i)^\W*(best|top|highest|max(?:imum)?|worst|bottom|lowest|min(?:imum)?|good|bad|median)\b.{0,15}$"
)
"""Labels of rows that a file keeps of a group."""
_KEPT = re.compile(
    r"(?i)(?:(?:best|worst)|(?:best|worst|top|bottom|highest|lowest|max|min|good|bad)[_\W]"
    r"(?:completion|response|output|answer|text|sample|generation|rollout)s?|(?:completion|response"
    r"|output|answer|text|sample|generation|rollout)s?[_\W](?:best|worst|top|bottom|good|bad))"
)
"""Columns with the samples that a file keeps of a group."""
_LOGGED = frozenset(
    {"loss", "train_loss", "training loss", "grad_norm", "learning_rate", "reward_std"}
    | {"frac_reward_zero_std", "clip_ratio", "total_flos", "num_input_tokens_seen", "_runtime"}
    | {"global_step/max_steps", "memory(gib)", "train_speed(iter/s)", "train_runtime"}
)
"""Keys, in lower case, that trainers log for a step, and that no rollout has."""
_LOGGED_PARTS = ("completions/", "clip_ratio/", "sampling/", "actor/", "critic/", "timing_s/")
_ALSO_LOGGED = frozenset(
    {"kl", "entropy", "epoch", "num_tokens", "completion_length", "step_time", "lr"}
    | {"mean_length", "policy_loss", "_step", "_timestamp"}
)
"""Keys of steps that rollouts may have as well."""
_OF_WANDB = ({"_step", "_runtime"}, {"_step", "_timestamp"})
_ENOUGH_LOGGED = 2
"""Number of logged keys that make rows metrics, if nothing in them belongs to rollouts."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Stores which fields belong to metrics, and which to rollouts."""

    metrics: tuple[str, ...]
    rollouts: tuple[str, ...]
    certain: bool
    """Whether the rows can only be metrics, or only rollouts."""
    apart: bool = False
    """Whether each row has a step of its own, so that no two rows can be of one group."""
    selected: bool = False
    """Whether the rows are only the best and the worst samples of the groups."""

    @property
    def sentence(self) -> str:
        """Sentence about rows that cannot be read as rollouts. Empty if they can."""
        if self.selected:
            return (
                "the file keeps only the best and worst samples, and the influence of a reward "
                "cannot be measured on a selection: record all samples of each group"
            )
        if self.certain:
            return "the rows are metrics of whole steps, not rollouts" if self.metrics else ""
        like = f", and {listed(self.rollouts)} of rollouts" if self.rollouts else ""
        return (
            "unknown format: the rows may be metrics of whole steps, or rollouts. "
            f"{listed(self.metrics)} may be logged keys{like}"
        )


@lru_cache(maxsize=4096)
def run_and_key(name: str) -> tuple[str, str]:
    """Return the run and the key in a column's name. Most files name no run."""
    one, other, key = _RUN_AND_KEY.findall(name)[0]
    run = one or other
    if _EXTREME.fullmatch(key):
        return run, ""
    return run, re.sub(r"\s*/\s*", "/", key).removeprefix("train/")


def reward_in(key: str, *, of_mean: bool) -> str | None:
    """Return the reward that a key of a log stands for, or None: `rewards/NAME` or `reward_NAME`.

    `of_mean`: the key was marked as a mean, so that its name need not contain `reward`.
    """
    if prefix := prefix_of(key):
        name = name_in(key, prefix)
        return None if name is None or leaf_of(name) in _NO_REWARDS else name
    named = is_named_reward(key) or _FUNCTION_NAME.fullmatch(key) is not None
    named = named or (of_mean and is_likely(key) and is_vocabulary(key))
    if not named or may_be_total(key) or _NO_REWARD.fullmatch(key):
        return None
    return re.sub(r"^rewards?[_\W]", "", key)


def evidence(
    fields: Mapping[str, Kind],
    rows: Sequence[Mapping[str, Any]] = (),
    columns: Mapping[str, str] | None = None,
) -> Evidence:
    """Return what the names of the fields of a file, and its first rows, show.

    A text field of a prompt or completion, a group id or an advantage belongs to rollouts.
    """
    known = layout(columns, fields)
    keys = {name: key for name in fields if (key := run_and_key(name)[1])}
    means = [name for name, key in keys.items() if _METRIC.fullmatch(key)]
    logged = [
        name
        for name, key in keys.items()
        if key.lower() in _LOGGED or key.startswith(_LOGGED_PARTS) or name.endswith(f"train/{key}")
    ]
    also = [name for name, key in keys.items() if key.lower() in _ALSO_LOGGED]
    slashed = [name for name in keys if "/" in name]
    metrics = tuple(dict.fromkeys((*means, *logged, *slashed)))
    if not (means or logged) and _is_selection(fields, rows, known):
        return Evidence((), (), certain=True, selected=True)
    meant = [n for n in (known.prompt, known.completion, known.finish_reason) if n is not None]
    found = [name for name in meant if fields.get(name) != "number"]
    rollouts = tuple(found + [n for n in (known.group, known.advantage) if n is not None])
    extremes = ({f"{name}__MIN", f"{name}__MAX"} for name in keys)
    if any(columns <= fields.keys() for columns in (*_OF_WANDB, *extremes)):
        return Evidence(tuple(keys), (), certain=True)
    if rollouts:
        return Evidence(tuple(means), rollouts, certain=not means)
    steps = [row.get(known.step or "epoch") for row in rows]
    shared = sum(map(eq, steps, steps[1:]))  # rollouts of a group have the same step
    told = (rows[0].get(name) for name, kind in fields.items() if rows and kind == "text")
    texts = any(map(_PROSE.match, map(str, told)))
    if not (texts or known.rollout) and len(rows) > 1 and 4 * shared < len(rows):
        return Evidence(metrics or tuple(keys), (), certain=True, apart=True)
    if means or len({*logged, *also}) >= _ENOUGH_LOGGED:
        return Evidence(metrics or tuple(also), (), certain=True)
    rewarded = any(is_named_reward(key) or key in ("reward", "score") for key in keys.values())
    slashed_most = 2 * len(slashed) >= len(keys)
    doubtful = bool(metrics) and (rewarded or slashed_most)
    return Evidence(metrics if doubtful else (), (), certain=not doubtful)


def _is_selection(
    fields: Mapping[str, Kind], rows: Sequence[Mapping[str, Any]], known: Layout
) -> bool:
    """Return whether a file keeps only the best and worst samples, as columns or labelled rows."""
    of_group = [name for name in (known.step, known.group, known.prompt) if name is not None]
    groups = [tuple(str(row.get(name)) for name in of_group) for row in rows]
    label = _BEST if 2 * len(rows) < 3 * len(set(groups)) else _EXTREME_LABEL
    for name, kind in fields.items():
        if known.completion is None and kind != "number" and _KEPT.fullmatch(name):
            return True
        texts = [str(row.get(name))[:_LABEL] for row in rows if kind == "text"]
        labels = ["".join(label.findall(text)) for text in texts]
        if labels and all(labels):
            return len({*zip(labels, groups, strict=True)}) == len(rows)
    return False


def flattened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, and those of objects in it that contain metrics.

    verl's logger writes the metrics in `data`.
    """
    found = dict(record)
    for name, value in record.items():
        if isinstance(value, dict) and (name == "data" or any(map(_METRIC.fullmatch, value))):
            found |= cast("dict[str, Any]", value)
    return found


def shown_by(path: Path, columns: Mapping[str, str] | None = None, *, most: int = 16) -> Evidence:
    """Return whether the first rows of a file are metrics or rollouts, of `columns` if given."""
    rows = list[Record]()
    try:
        rows += map(flattened, islice(rows_of(path), most))
    except MissingExtraError:
        raise
    except unreadable():
        pass  # which is reported when the file is read
    first = {name: v for row in rows[::-1] for name, v in row.items() if v is not None}
    return evidence(kinds_in(first), rows, columns)
