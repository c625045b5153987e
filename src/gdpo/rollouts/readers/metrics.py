"""Tells from the names of fields whether the rows of a file are rollouts or metrics of whole steps.

Trainers log metrics with names of their own, such as `grad_norm` and `rewards/NAME/mean`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from gdpo.rollouts.readers.names import Kind, is_named_reward, layout, listed

_METRIC = re.compile(
    r"(?:.+[./_])?(?:rewards|diagnostics|gdpo)/.+/"
    r"(?:mean|std|group_std|zero_variance_groups|influence_share)"
)
"""Keys of the statistics of a reward over a whole step."""
_RUN = (
    re.compile(r"(.+?) - ((?:train/|eval/)?(?:rewards|diagnostics|gdpo)/.+)", re.DOTALL),
    re.compile(r"(.+) - (.+)", re.DOTALL),
)
"""Columns of a W&B export: the run, and the key."""
_EXTREME = re.compile(r".+__(?:MIN|MAX)", re.DOTALL)
"""Columns that only W&B exports, with the range of the values that it averaged for a key."""
_OF_ONE_REWARD = re.compile(r"(?:train/)?rewards/([^/]+(?:/.+)?)", re.DOTALL)
"""Key of a reward's mean in TRL up to 0.15. Its name is not that of a statistic."""
_STATISTICS = frozenset({"mean", "std", "min", "max", "median", "sum", "total", "var"})
_OF_PAIRS = frozenset({"chosen", "rejected", "margins", "accuracies"})
"""Rewards that trainings on pairs, such as DPO, log. None of them is one of several rewards."""
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
"""Keys of steps that rollouts may have, too."""
_OF_WANDB = ({"_step", "_runtime"}, {"_step", "_timestamp"})
_ENOUGH = 2
"""Number of logged keys that make rows metrics, if they contain nothing of rollouts."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Stores which fields belong to metrics, and which to rollouts."""

    metrics: tuple[str, ...]
    rollouts: tuple[str, ...]
    certain: bool
    """Whether the rows can only be metrics, or only rollouts."""

    @property
    def are_metrics(self) -> bool:
        """Whether the rows can only be metrics."""
        return self.certain and bool(self.metrics)

    @property
    def sentence(self) -> str:
        """Sentence about rows that are metrics, or may be. Empty if the rows are rollouts."""
        if self.certain:
            return "the rows are metrics of whole steps, not rollouts" if self.metrics else ""
        like = f", and {listed(self.rollouts)} of rollouts" if self.rollouts else ""
        return (
            "unknown format: the rows may be metrics of whole steps, or rollouts. "
            f"{listed(self.metrics)} may be logged keys{like}"
        )


@lru_cache(maxsize=4096)
def run_and_key(name: str) -> tuple[str, str]:
    """Return the run and the key in the name of a column. The run is empty in most files."""
    match = next(filter(None, (pattern.fullmatch(name) for pattern in _RUN)), None)
    run, key = (match[1], match[2]) if match is not None else ("", name)
    if _EXTREME.fullmatch(key):
        return run, ""
    return run, re.sub(r"\s*/\s*", "/", key).removeprefix("train/")


def reward_in(key: str) -> str | None:
    """Return the reward whose mean has this key in TRL up to 0.15, or None."""
    match = _OF_ONE_REWARD.fullmatch(key)
    if match is None or match[1] in _OF_PAIRS or match[1].rpartition("/")[2] in _STATISTICS:
        return None
    return match[1]


def evidence(fields: Mapping[str, Kind]) -> Evidence:
    """Return what the names of the fields of a file tell.

    A text field of a prompt or completion, a group id or an advantage belongs to rollouts.
    """
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
    known = layout(None, fields)
    texts = [n for n in (known.prompt, known.completion, known.finish_reason) if n is not None]
    found = [name for name in texts if fields[name] != "number"]
    rollouts = tuple(found + [n for n in (known.group, known.advantage) if n is not None])
    extremes = ({f"{name}__MIN", f"{name}__MAX"} for name in keys)
    if any(columns <= fields.keys() for columns in (*_OF_WANDB, *extremes)):
        return Evidence(tuple(keys), (), certain=True)
    if rollouts:
        return Evidence(tuple(means), rollouts, certain=not means)
    if means or len({*logged, *also}) >= _ENOUGH:
        return Evidence(metrics or tuple(also), (), certain=True)
    rewarded = any(is_named_reward(key) or key in ("reward", "score") for key in keys.values())
    slashed_most = 2 * len(slashed) >= len(keys)
    doubtful = bool(metrics) and (rewarded or slashed_most)
    return Evidence(metrics if doubtful else (), (), certain=not doubtful)


def flattened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, and those of objects in it that contain metrics.

    verl's logger writes the metrics in `data`.
    """
    found = dict(record)
    for name, value in record.items():
        if isinstance(value, dict) and (name == "data" or any(map(_METRIC.fullmatch, value))):
            found |= cast("dict[str, Any]", value)
    return found
