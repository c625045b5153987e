"""Infers the rewards, and the meanings of other fields, for files in an unrecognized format.

The rules use the name of a field, whether the field contains numbers, and the values of the first
rollouts. The same rules apply to JSONL and tables, because both provide their numbers as arrays by
path. In a path, a dot or slash separates an object or struct from the fields inside. A column with
dots in its name is treated in the same way.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError

Kind: TypeAlias = Literal["number", "text", "empty", "object", "other"]
Values: TypeAlias = Float[np.ndarray, " rollout"]

SCALAR_ONLY = "scalar reward only"
"""Start of the phrase about the rewards of a file that contains only a scalar reward."""
MEANINGS = (
    *("step", "group", "prompt", "completion", "advantage", "num_tokens", "finish_reason"),
    "total",
)
"""The meanings that `columns` can assign to a column."""
NOT_REWARDS = "; not rewards: "
"""Text before the list of numeric fields that are not read as rewards."""


_METRIC = re.compile(
    r"(?:.+[./_])?(?:rewards|diagnostics|gdpo)/.+/"
    r"(?:mean|std|group_std|zero_variance_groups|influence_share)"
)


class Inner(str):
    """Marks a path into an object or struct, because the name of a column may contain dots too."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Stores the column for each meaning, or None if no column has this meaning."""

    step: str | None = None
    group: str | None = None
    prompt: str | None = None
    completion: str | None = None
    advantage: str | None = None
    num_tokens: str | None = None
    finish_reason: str | None = None
    total: str | None = None

    def taken(self) -> frozenset[str]:
        """Return the columns that have a meaning, and are therefore not reward components."""
        return frozenset(v for name in MEANINGS if (v := getattr(self, name)) is not None)


GDPO = Layout(
    "step", "group_id", "prompt", "completion", "advantage", "num_tokens", "finish_reason"
)
TRL = Layout("step", None, "prompt", "completion", "advantage")


def listed(names: Collection[str]) -> str:
    """Return up to 12 names for a message, shortened and quoted in case a name is malicious."""
    shown = ", ".join(repr(str(name)[:40]) for name in list(names)[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def passed_over(names: Sequence[str]) -> str:
    """Return the end of a phrase, with the list of numeric fields that are not read as rewards."""
    return f"{NOT_REWARDS}{listed(names)}" if names else ""


LOOKED_AT = 4096
"""Number of rollouts at the start of a file whose values are used to infer rewards."""
_COMPARED = 512
"""Number of rollouts to examine when searching for a total by its values."""
_ADDED_UP = 24
"""Maximum number of numeric fields in the search for a total by its values. With more fields, a
total is found only by its name."""
_ROUNDING = 2e-3
"""Maximum difference between a sum and the total, as a fraction of the std of the total. The
difference is allowed because totals in files are rounded."""

_STEPS = (
    *("step", "global_step", "gen_step", "iteration", "iter", "global_steps", "train_step"),
    *("training_step", "trainer_step", "rollout_step", "optimizer_step", "update_step"),
    *("step_idx", "step_id", "iteration_idx", "update"),
)
_GROUPS = (
    *("group_id", "group", "group_index", "prompt_id", "problem_id", "uid", "group_idx"),
    *("prompt_idx", "prompt_index", "problem_idx", "problem_index", "question_id", "example_id"),
)
_PROMPTS = (
    *("prompt", "input", "question", "messages", "query", "instruction", "problem"),
    *("prompt_text", "prompts", "questions"),
)
_COMPLETIONS = (
    *("completion", "output", "response", "answer", "generation", "generated_text"),
    *("completion_text", "response_text", "model_output", "prediction", "completions"),
    *("responses", "outputs"),
)
_TOKENS = (
    *("num_tokens", "completion_length", "response_length", "completion_tokens"),
    *("response_tokens", "output_tokens", "n_tokens", "tokens"),
)
_TOTALS = (
    *("reward", "score", "total_reward", "total", "total_score", "reward_total", "score_total"),
    *("reward_sum", "sum_reward", "overall_reward", "final_reward", "combined_reward"),
    *("weighted_reward", "overall_score", "final_score", "overall", "rewards", "scores"),
)
_GUESSES = {
    "step": _STEPS,
    "group": _GROUPS,
    "prompt": _PROMPTS,
    "completion": _COMPLETIONS,
    "advantage": ("advantage", "advantages", "adv"),
    "num_tokens": _TOKENS,
    "finish_reason": ("finish_reason", "stop_reason"),
    "total": _TOTALS,
}
_NUMERIC = frozenset({"step", "advantage", "num_tokens", "total"})
"""Meanings whose fields must contain numbers."""

_PLAINEST = 3

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_REWARD = frozenset({"reward", "rewards", "score", "scores", "penalty", "bonus"})
_TOTAL = frozenset(
    {"total", "sum", "overall", "final", "combined", "weighted", "aggregate", "aggregated"}
)
_STATISTICS = frozenset(
    {"mean", "std", "var", "min", "max", "median", "avg", "average", "baseline", "count"}
    | {"group", "batch", "step", "shift", "scale", "range", "id", "advantage", "running"}
)
"""Words that, together with `reward` in a name, indicate a statistic of rewards instead of a
reward."""
_WEIGHTS = frozenset({"weight", "weights", "name", "names"})
_VALUES = frozenset({"value", "score", "reward"})
"""Names of the value field in an object that describes one reward."""
_NEVER = frozenset(
    {"lr", "kl", "temperature", "seed", "epoch", "epochs", "entropy", "loss", "perplexity", "ppl"}
    | {"logprob", "logprobs", "logp", "grad", "rank", "idx", "index", "id", "ids", "latency"}
    | {"duration", "elapsed", "version", "step", "steps", "advantage", "advantages", "adv"}
    | {"token", "tokens", "timestamp", "truncated", "turns", "weight", "weights"}
)
"""A field is never inferred to be a reward if its name contains one of these words."""
_LENGTHS = frozenset({"len", "length", "lengths", "lens", "chars"})
_NEVER_WHOLE = frozenset(
    {"created_at", "learning_rate", "top_p", "top_k", "beta", "trained"}
    | {"reference", "ground_truth", "gts", "gold", "label", "target", "answer", "solution"}
    | {name for meaning, names in _GUESSES.items() if meaning != "total" for name in names}
)
"""Names of fields that are never inferred to be rewards, such as settings, references, and fields
with other meanings."""
_CONTAINERS = (
    re.compile(r"rewards"),
    re.compile(r"reward"),
    re.compile(r"rewards?[_\-].*|.*[_\-]rewards|rewards?[A-Z].*"),
    re.compile(r"components|.*[_\-]components"),
    re.compile(r"scores?([_\-].*)?|.*[_\-]scores"),
)
"""Patterns for names of objects whose numbers are rewards, most certain first."""
_MEASURES = re.compile(r"metrics|.*[_\-]metrics")
"""Pattern for names of objects that contain other numbers in addition to rewards. Such objects are
used only if no other field contains rewards."""


NEVER = 3
"""Rank of a field that is a reward only if the user requests the field explicitly."""


def kinds_in(record: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the kind of value of each field of a record."""

    def kind(value: Any) -> Kind:
        if value is None:
            return "empty"
        if isinstance(value, (bool, int, float)):
            return "number"
        if isinstance(value, str):
            return "text"
        return "object" if isinstance(value, Mapping) else "other"

    return {name: kind(value) for name, value in record.items()}


def layout(columns: Mapping[str, str] | None, fields: Mapping[str, Kind]) -> Layout:
    """Return the column for each meaning, as given by the user or inferred from its name.

    Raises:
        ConfigError: If a meaning is unknown.
        DataError: If a given column is not in the file.
    """
    given = columns or {}
    for meaning, column in given.items():
        if meaning not in MEANINGS:
            raise ConfigError(
                f"columns: unknown meaning {meaning!r}: {did_you_mean(meaning, MEANINGS)}"
            )
        dots = [place for place, letter in enumerate(column) if letter == "."]
        if not any(column[:end] in fields for end in (*dots, len(column))):
            raise DataError(
                f"no column {column!r} for the {meaning}; the fields are {listed(fields)}: correct "
                "the name (columns)"
            )
    guessed = {meaning: _first(meaning, fields, given.values()) for meaning in MEANINGS}
    return Layout(**{**guessed, **given})


def _first(meaning: str, fields: Mapping[str, Kind], given: Collection[str]) -> str | None:
    """Return the field with the first known name of a meaning, or None.

    For a meaning that needs numbers, numeric fields are preferred, then empty fields, then text. A
    field of another type is used only if it has one of the most common names. In that case, its
    values are reported as not numeric.
    """
    spelt = _spelt(fields)
    free = [spelt[name] for name in _GUESSES[meaning] if name in spelt]
    free = [name for name in free if name not in given]
    if meaning not in _NUMERIC:
        return free[0] if free else None
    plainest = [spelt.get(name) for name in _GUESSES[meaning][:_PLAINEST]]
    fitting = [n for kinds in ("number", "empty", "text") for n in free if fields[n] == kinds]
    fitting += [name for name in free if name in plainest and fields[name] == "other"]
    return fitting[0] if fitting else None


def _spelt(fields: Iterable[str]) -> dict[str, str]:
    """Return the fields, keyed by their snake-case names, such as `global_step`."""
    fields = list(fields)
    return {"_".join(_words(name)): name for name in fields[::-1]} | {name: name for name in fields}


def looks_rewarded(fields: Collection[str], numbers: Iterable[str]) -> bool:
    """Return whether a file may contain rollouts with rewards.

    The file must have a field `reward` or `score`, or reward components together with a prompt or
    group. A prompt or group is required because training logs also contain numbers with the names
    of rewards.

    Args:
        fields: Names of the top-level fields.
        numbers: Paths of the numeric fields.
    """
    spelt = _spelt(fields)
    if {"reward", "score"} & set(spelt):
        return True
    grouped = any(name in spelt for name in (*_PROMPTS, *_GROUPS))
    return grouped and (
        any(not _REWARD.isdisjoint(_words(name)) for name in fields)
        or any(unlikelihood(path) == 0 for path in numbers)
    )


def is_like_rollouts(fields: Collection[str]) -> bool:
    """Return whether a file without recognizable rewards may still contain rollouts."""
    spelt = _spelt(fields)
    return any(name in spelt for name in (*_PROMPTS, *_GROUPS, *_COMPLETIONS)) or any(
        not _REWARD.isdisjoint(_words(name)) for name in fields
    )


@dataclass(frozen=True, slots=True)
class Inferred:
    """Stores which numeric fields of a file are rewards, and why."""

    how: str
    """Phrase that describes how the rewards were inferred. Empty if no rewards were inferred."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path of each reward, by name."""
    group: Literal["object", "named", "other", "total", "none"] = "none"
    prefix: str = ""
    """Prefix of the paths, if the rewards are in an object."""
    left_out: frozenset[str] = frozenset()
    """Paths that are not rewards, although their names suggest it."""
    total: str | None = None
    """Path of the total, or None if there is no total."""
    why: str = ""
    """Reason why no rewards were inferred. Empty if rewards were inferred."""

    def name_of(self, path: str) -> str | None:
        """Return the name of the reward at a path, which may first occur in a later rollout."""
        if path in self.left_out:
            return None
        if self.group == "object":
            return _name_in(path, self.prefix)
        if self.group == "named":
            return path if is_named_reward(path) else None
        return path if self.group == "other" and _may_be_reward(path) else None


def infer(columns: Mapping[str, Values], known: Layout, texts: Sequence[str] = ()) -> Inferred:
    """Return the rewards among the numeric fields of a file.

    The first of the following groups that exists is returned: the numbers in the object that most
    likely contains rewards, the numbers whose names suggest rewards, the numbers in an object of
    metrics, the numbers that add up to a total, and all other numbers.

    Args:
        columns: Numeric values of the first rollouts, by path. NaN means that a value is missing.
        known: Meanings of the other fields.
        texts: Fields whose names suggest rewards, but that contain text.
    """
    free = [path for path in columns if path not in known.taken()]
    found = _of_names(free)
    if found is None and texts and known.total is None:
        return _none(f"{listed(texts)} contains text: write one numeric field per reward")
    if found is None:
        return _of_others(columns, free, known)
    group, prefix, paths, how = found
    total = _total(paths, columns)
    kept = _without_totals(paths, total)
    names: dict[str, str] = {_name_in(path, prefix) or path: path for path in kept}
    if _is_measures(prefix) and _constant(names.values(), columns):
        return _none(f"the numbers in {prefix[:-1]!r} are constant")
    return _found(how, names, group, prefix, total, free)


def _of_names(
    free: Sequence[str],
) -> tuple[Literal["object", "named"], str, list[str], str] | None:
    prefix = _container(free)
    named = [path for path in free if is_named_reward(path)]
    if prefix and not (_is_measures(prefix) and any(not p.startswith(prefix) for p in named)):
        paths = _described([path for path in free if _name_in(path, prefix) is not None])
        return "object", prefix, paths, f"the numbers in {prefix[:-1]!r}"
    if named:
        return "named", "", named, "the numbers named as rewards or scores"
    return None


def _of_others(numbers: Mapping[str, Values], free: Sequence[str], known: Layout) -> Inferred:
    """Return the numbers that add up to the total, or all other numbers if there is no total."""
    others = [p for p in free if _may_be_reward(p) and np.isfinite(numbers[p]).any()]
    if known.total is None or not np.isfinite(numbers.get(known.total, np.nan)).any():
        total = _total(others, numbers)
        names = {path: path for path in _without_totals(others, total)}
        if not names or _constant(names, numbers):
            return _none(
                "the numbers are constant" if names else "no number has a name that fits a reward"
            )
        return _found("all other numbers", names, "other", "", total, free)
    whole = numbers[known.total]
    others = [
        path
        for path in others
        if not _is_total(path) and not np.array_equal(numbers[path], whole, equal_nan=True)
    ]
    summed = _summands(others, whole, numbers) if others else []
    if summed is None and len(others) > 1:
        return _none(
            f"{known.total!r} is not the sum of {listed(others)}, so either may be the rewards"
        )
    if summed and len(summed) > 1:
        how = f"the numbers that add up to {known.total!r}, with or without weights"
        return _found(how, {path: path for path in summed}, "other", "", known.total, free)
    how = f"{SCALAR_ONLY}: no other number is named as a reward, and no numbers add up to it"
    return _found(how, {known.total: known.total}, "total", "", known.total, free)


def _found(
    how: str,
    names: Mapping[str, str],
    group: Literal["object", "named", "other", "total"],
    prefix: str,
    total: str | None,
    free: Sequence[str],
) -> Inferred:
    taken = set(names.values())
    passed = [path for path in free if path not in taken and path != total]
    if total is not None and total in free:
        how = f"{how}; {total!r} is their total"
    out = frozenset(path for path in free if path not in taken)
    return Inferred(how + passed_over(passed), names, group, prefix, out, total)


def _none(why: str) -> Inferred:
    return Inferred("", why=why)


def resolved(asked: Sequence[str], paths: Iterable[str]) -> dict[str, str]:
    """Return the paths of requested rewards. Inside an object, the prefix is optional."""
    paths = list(paths)
    prefix = _container(paths)
    inside = {name: p for p in paths if prefix and (name := _name_in(p, prefix))}
    return {name: name if name in paths else inside.get(name, name) for name in asked}


def likely(paths: Sequence[str]) -> list[str]:
    """Return the numeric fields to propose as rewards if no rewards can be inferred.

    Unlikely fields are proposed only if all fields are unlikely. Totals are proposed only if there
    are no other likely fields.
    """
    found = [path for path in paths if not _is_never(path)]
    return [path for path in found if not _is_total(path)] or found or list(paths)


def is_named_reward(path: str) -> bool:
    """Return whether the name of a numeric field suggests a single reward, not a total.

    The name `reward_len` suggests a single reward. The names `reward`, `total_reward`, `reward_std`
    and `reward_weights` do not.
    """
    words = set(_words(_leaf(path)))
    rest = words - _REWARD
    return (
        rest != words
        and not rest <= _STATISTICS | _TOTAL
        and not rest & _WEIGHTS
        and not any(map(_is_time, rest))
    )


def unlikelihood(path: str) -> int:
    """Return how unlikely it is that a path is a reward, from 0 (in an object of rewards) to 3."""
    if _prefix(path) is not None:
        return 0
    return 1 if is_named_reward(path) else 2 if _may_be_reward(path) else NEVER


def is_named_as_reward(path: str) -> bool:
    """Return whether the name of a text field suggests a reward, or all rewards."""
    prefix = _prefix(path)
    if prefix is not None:
        return _name_in(path, prefix) is not None and not _is_measures(prefix)
    return is_named_reward(path) or is_all_rewards(path)


def is_all_rewards(path: str) -> bool:
    """Return whether the name suggests a field with all rewards, or with their total."""
    words = set(_words(path))
    return bool(words & _REWARD) and words <= _REWARD | {"components"}


def is_metric(path: str) -> bool:
    """Return whether the name is that of a statistic of a whole step, as trainers log them."""
    return _METRIC.fullmatch(path) is not None


def is_container(name: str) -> bool:
    """Return whether an object with this name may contain rewards."""
    return _certainty(name) is not None


@lru_cache(maxsize=1024)
def _certainty(name: str) -> int | None:
    """Return the rank of an object name, or None. Rank 0 means that rewards are most likely."""
    rest = set(_words(name)) - _REWARD
    if rest & _WEIGHTS or (rest and rest <= _STATISTICS):
        return None
    known = (*_CONTAINERS, _MEASURES)
    return next((place for place, each in enumerate(known) if each.fullmatch(name)), None)


def _is_measures(prefix: str) -> bool:
    return bool(prefix) and _certainty(_leaf(prefix[:-1])) == len(_CONTAINERS)


def _container(paths: Sequence[str]) -> str:
    """Return the prefix of the object that most likely contains rewards, or an empty string."""
    best: tuple[int, str] | None = None
    for path in paths:
        prefix = _prefix(path)
        sure = None if prefix is None else _certainty(_leaf(prefix[:-1]))
        if prefix is None or sure is None or _name_in(path, prefix) is None:
            continue
        if best is None or sure < best[0]:
            best = sure, prefix
    return best[1] if best else ""


def _prefix(path: str) -> str | None:
    """Return the prefix of the object in a path that most likely contains rewards, or None."""
    ends = [place for place, letter in enumerate(path) if letter in "./"]
    sure = [(_certainty(_leaf(path[:end])), path[: end + 1]) for end in ends]
    found = [(each, prefix) for each, prefix in sure if each is not None]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _name_in(path: str, prefix: str) -> str | None:
    """Return the name of a reward at any depth of an object, or None if it is not a reward."""
    if not prefix or not path.startswith(prefix) or len(path) == len(prefix):
        return None
    name = path[len(prefix) :]
    above, dot, last = name.rpartition(".")
    name = above if dot and above and last in _VALUES else name
    first, *inner = _segments(name)
    return None if _is_measures(prefix) and (inner or _is_never(first)) else name


def _described(paths: Sequence[str]) -> list[str]:
    """Return the paths. For an object that describes one reward, keep only the value field."""
    described = {p.rpartition(".")[0] for p in paths if p.rpartition(".")[2] in _VALUES}
    described = {above for above in described if not is_container(_leaf(above))}
    return [
        path
        for path in paths
        if path.rpartition(".")[0] not in described or path.rpartition(".")[2] in _VALUES
    ]


def _may_be_reward(path: str) -> bool:
    return not isinstance(path, Inner) and not _is_never(path)


def _is_never(path: str) -> bool:
    """Return whether the name rules out a reward: a name of a length, time, setting or id."""
    name = _leaf(path)
    words = _words(name)
    if is_named_reward(path):
        return False
    return (
        name.lower() in _NEVER_WHOLE
        or "_".join(words) in _NEVER_WHOLE
        or not _NEVER.isdisjoint(words)
        or any(_is_time(word) or word.startswith("iter") for word in words)
        or (bool(words) and (words[-1] in _LENGTHS or words[0] in {"num", "n", "count"}))
        or (not _REWARD.isdisjoint(words) and not _is_total(path) and name not in _TOTALS)
    )


def _is_time(word: str) -> bool:
    return word.startswith("time") or word.endswith("time") or word in {"duration", "latency"}


def _is_total(path: str) -> bool:
    """Return whether the name suggests a sum of rewards."""
    words = set(_words(_leaf(path)))
    return bool(words & _TOTAL) and words <= _TOTAL | _REWARD and words != {"final"}


def _segments(path: str) -> list[str]:
    return re.split(r"[./]", path)


def _leaf(path: str) -> str:
    return _segments(path)[-1]


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _constant(paths: Iterable[str], numbers: Mapping[str, Values]) -> bool:
    """Return whether each of these fields is constant over several rollouts."""
    values = [numbers[path] for path in paths]
    return all(len(v) > 1 and len(np.unique(v[np.isfinite(v)])) < 2 for v in values)


def _total(paths: Sequence[str], numbers: Mapping[str, Values]) -> str | None:
    """Return the path of the total of the other fields, found by its name or by its values.

    A total that is found by its values must be the sum of at least two other fields that vary, each
    with a positive weight. There must be more distinct rollouts than other fields, because with few
    rollouts any field can be fitted as a sum of other fields.
    """
    if len(paths) < 2:
        return None
    if named := [path for path in paths if _is_total(path)]:
        return named[0]
    varying = [path for path in paths if not _constant([path], numbers)]
    if not 2 < len(varying) <= _ADDED_UP:
        return None
    return next((path for path in varying[::-1] if _is_sum(path, varying, numbers)), None)


def _without_totals(paths: Sequence[str], total: str | None) -> list[str]:
    if total is None:
        return list(paths)
    return [path for path in paths if path != total and not _is_total(path)]


def _is_sum(path: str, paths: Sequence[str], numbers: Mapping[str, Values]) -> bool:
    parts = [numbers[other] for other in paths if other != path]
    fit = _weights(parts, numbers[path])
    return fit is not None and fit.certain and bool(np.all(fit.shares > _ROUNDING))


def _summands(
    paths: Sequence[str], total: Values, numbers: Mapping[str, Values]
) -> list[str] | None:
    """Return the fields that add up to a total, or None if no fields do.

    A field that is 0 in all examined rollouts is included, because the field may be a reward.
    """
    if len(paths) > _ADDED_UP:
        return None
    fit = _weights([numbers[path] for path in paths], total)
    if fit is None:
        return None
    zero = [not np.nan_to_num(numbers[path]).any() for path in paths]
    kept = zip(paths, fit.shares, zero, strict=True)
    return [path for path, share, is_zero in kept if is_zero or abs(share) > _ROUNDING]


@dataclass(frozen=True, slots=True)
class _Fit:
    """Stores the weights with which fields add up to a total."""

    shares: Float[np.ndarray, " part"]
    """Each weight times the largest value of its part, divided by the std of the total."""
    certain: bool
    """Whether there are enough rollouts to rule out a coincidence."""


def _weights(parts: Sequence[Values], total: Values) -> _Fit | None:
    """Return the weights of a total, or None if no weights fit. A missing part counts as 0."""
    rows = np.flatnonzero(np.isfinite(total))[:_COMPARED]
    added = np.nan_to_num(np.stack([part[rows] for part in parts], axis=-1), posinf=0, neginf=0)
    whole = total[rows]
    if not len(rows) or max(np.abs(added).max(), np.abs(whole).max()) > 1e30:
        return None
    weights = np.linalg.lstsq(added, whole, rcond=None)[0]
    unit = max(float(np.std(whole)), 1e-9)
    if np.abs(added @ weights - whole).max() > _ROUNDING * unit:
        return None
    different = np.unique(added[np.any(added != 0, axis=-1)], axis=0)
    return _Fit(weights * np.abs(added).max(axis=0) / unit, len(different) > len(parts))
