"""Infers rewards, their weights, groups and turns from the fields of a file, and checks each guess.

A guess is made from the name of a field and checked on the values of the first rollouts. Where the
values contradict the guess, it is dropped; where they leave two readings, the file is refused with
both. The same rules apply to all formats, because all provide their numbers as arrays by path. In a
path, a dot or slash separates an object or struct from the fields inside. A column with dots in its
name is treated in the same way.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from gdpo._naming import did_you_mean
from gdpo._shapes import Float, Int, Int64
from gdpo.errors import ConfigError, DataError

Kind: TypeAlias = Literal["number", "text", "empty", "object", "other"]
Values: TypeAlias = Float[np.ndarray, " rollout"]

MEANINGS = (
    *("step", "group", "prompt", "completion", "advantage", "num_tokens", "finish_reason"),
    *("total", "rollout", "turn"),
)
"""The meanings that `columns` can assign to a column."""

_METRIC = re.compile(
    r"(?:.+[./_])?(?:rewards|diagnostics|gdpo)/.+/"
    r"(?:mean|std|group_std|zero_variance_groups|influence_share)"
)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LOGGED = _set(
    """
    loss grad_norm learning_rate lr epoch train_loss reward_std kl entropy clip_ratio
    completion_length mean_length num_tokens _runtime _timestamp _step policy_loss
    frac_reward_zero_std step_time train_runtime
    """
)
"""Numbers that a trainer logs for a whole step."""


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
    rollout: str | None = None
    """Id of the rollout, if each row is a turn."""
    turn: str | None = None

    def taken(self) -> frozenset[str]:
        """Return the columns that have a meaning, and are therefore not reward components."""
        return frozenset(v for name in MEANINGS if (v := getattr(self, name)) is not None)


NOTHING_KNOWN = Layout()
GDPO = Layout(
    "step", "group_id", "prompt", "completion", "advantage", "num_tokens", "finish_reason"
)
TRL = Layout("step", None, "prompt", "completion", "advantage")


def listed(names: Collection[str]) -> str:
    """Return up to 12 names for a message, shortened and quoted in case a name is malicious."""
    shown = ", ".join(repr(str(name)[:40]) for name in list(names)[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


LOOKED_AT = 4096
"""Number of rollouts whose values are used to infer rewards: the first ones of a run, which may be
spread over several files."""
_COMPARED = 2048
"""Number of rollouts to examine when a total is compared with its parts."""
_ADDED_UP = 24
"""Maximum number of numeric fields that may explain a total."""

_STEPS = (
    *("step", "global_step", "gen_step", "iteration", "iter", "global_steps", "train_step"),
    *("training_step", "trainer_step", "rollout_step", "optimizer_step", "update_step"),
    *("step_idx", "step_id", "iteration_idx", "update", "epoch_step", "policy_step", "batch_step"),
    *("batch_idx", "batch_index", "batch_id"),
)
_GROUPS = (
    *("group_id", "group", "group_index", "prompt_id", "problem_id", "uid", "group_idx"),
    *("prompt_idx", "prompt_index", "problem_idx", "problem_index", "question_id", "example_id"),
    *("prompt_uid", "prompt_uuid", "prompt_hash", "group_uid", "group_key", "question_idx", "qid"),
    *("question_index", "query_id", "query_idx", "example_idx", "example_index", "problem_uid"),
    *("task_id", "task_idx", "instance_id", "item_id"),
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
    *("reward_score", "score_reward", "weighted_reward", "overall_score", "final_score"),
    *("overall", "rewards", "scores", "return", "episode_return", "episode_reward", "r"),
    *("objective", "fitness", "utility"),
)
_ROLLOUTS = (
    *("rollout_id", "trajectory_id", "traj_id", "episode_id", "sample_id", "completion_id"),
    *("rollout_idx", "rollout_index", "trajectory_idx", "trajectory_index", "traj_idx"),
    *("episode_idx", "sample_idx", "sample_index", "rollout", "trajectory", "sample"),
)
_OF_TRAINING = ("iteration", "global_step", "training_step", "train_step", "policy_step", "update")
_EPISODES = ("trajectory_id", "traj_id", "episode_id", "trajectory_idx", "episode_idx")
"""Next to a field `step` and an id of episodes, `iteration` is the step, and `step` the turn."""
_TURNS = (
    *("turn", "turn_id", "turn_idx", "turn_index", "turn_number", "turn_no", "step_in_episode"),
    *("step_in_rollout", "step_in_trajectory"),
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
    "rollout": _ROLLOUTS,
    "turn": _TURNS,
}
_NUMERIC = frozenset({"step", "advantage", "num_tokens", "total", "turn"})
"""Meanings whose fields must contain numbers."""

_PLAINEST = 3

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_REWARD_ONLY = frozenset({"reward", "rewards", "score", "scores"})
_REWARD = _REWARD_ONLY | {"penalty", "bonus"}
_FUNCTION = frozenset({"fn", "func"})
"""Last word in the name of a reward function."""
_TOTAL = frozenset(
    {"total", "sum", "overall", "final", "combined", "weighted", "aggregate", "aggregated"}
    | {"scalar"}
)
_STATISTICS = frozenset(
    {"mean", "std", "var", "min", "max", "median", "avg", "average", "baseline", "count"}
    | {"minimum", "maximum", "lower", "upper", "lowest", "highest", "bound", "limit", "threshold"}
    | {"group", "batch", "step", "shift", "scale", "range", "id", "advantage", "running", "ema"}
    | {"ref", "reference", "prev", "previous", "old", "chosen", "rejected"}
)
"""Words that, together with `reward` in a name, indicate a statistic or a bound of rewards instead
of a reward."""
_RAW = frozenset({"raw", "unweighted", "unscaled", "unnormalized", "unclipped", "original", "orig"})
_SHAPED = frozenset(
    {"weighted", "scaled", "normalized", "normalised", "norm", "clipped", "transformed", "shaped"}
    | {"standardized", "rescaled"}
)
"""Words for two forms of one reward."""
_WEIGHTS = frozenset({"weight", "weights", "name", "names", "coef", "coefficient"})
_VALUES = frozenset({"value", "score", "reward"})
"""Names of the value field in an object that describes one reward."""
_LENGTHS = frozenset({"len", "length", "lengths", "lens", "chars", "characters", "words", "size"})
_REFERENCES = frozenset(
    {"reference", "truth", "gold", "label", "target", "answer", "solution", "gts", "expected"}
)
_GOLD = frozenset({"reference", "expected", "gold", "truth", "gts"})
"""Words in the names of what a dataset says about a right answer, such as its score."""
_NEVER = _set(
    """
    lr kl temperature temp seed epoch epochs entropy loss perplexity logprob logprobs logp logps
    grad ppl ratio nll beta mask rank worker shard gpu node pid port host device replica idx index
    id ids uid uuid hash version row line position step steps turn turns attempt attempts retry
    retries trial try token tokens calls count counts num number total iteration latency duration
    elapsed seconds sec secs ms timestamp date memory mem cost price usage throughput tps timeout
    stale truncated overlong finished done aborted terminated cached trained pred preds prediction
    predicted predictions guess parsed extracted difficulty level grade tier split fold category
    cluster domain source case cases year age advantage advantages adv return weight weights flag
    staleness lag batch bucket eos clip hint
    """
)
"""A field is not inferred to be a reward from its name if it contains one of these words. The same
list applies to all formats, except that TRL's logs and files name rewards after functions, such as
`length`. If such a field is part of the total, it is a reward."""
_NEVER_WHOLE = frozenset(
    {"created_at", "learning_rate", "top_p", "top_k", "ground_truth", "answer_value", "n", "k"}
    | {name for meaning, names in _GUESSES.items() if meaning != "total" for name in names}
)
"""Names of fields that are never inferred to be rewards, such as settings, references, and fields
with other meanings."""
_IDS = frozenset({"n", "id", "idx", "index", "step", "uid", "timestamp", "seed"})
"""Numbers inside an object of rewards that are no rewards."""
_NO_CHILDREN = frozenset({"info", "meta", "metadata", "extra", "extras", "debug", "details", "log"})
"""Objects inside an object of rewards that contain no rewards."""
_VOCABULARY = _set(
    """
    acc accuracy accurate correct correctness format formatting style tests test passed pass bugs
    bug tool judge judged safety safe harmless harmlessness helpful helpfulness honesty honest
    quality relevance relevant coherence coherent fluency brevity brief concise conciseness
    repetition language consistency consistent reasoning citation citations structure xml json
    schema syntax compile compiles compiled lint coverage toxicity toxic factuality faithfulness
    faithful groundedness grounded politeness polite tone similarity bleu rouge f em match success
    solved win preference creativity diversity novelty efficiency execution verifier outcome penalty
    bonus reward rewards score scores completeness clarity readability readable following
    instruction instructions compliance usefulness truthfulness alignment sentiment grammar spelling
    validity valid robustness security process thinking planning plan
    """
)
"""Words in the names of rewards."""
_EARNED = frozenset(
    {"acc", "accuracy", "accurate", "correct", "correctness", "format", "success", "solved"}
    | {"passed", "pass", "win", "match", "outcome"}
)
"""Words in the names of what a completion achieves. A dataset has no such column."""
_LISTED = 64
"""Maximum length of a list of rewards. A longer list has one value for each token."""
_NAME_KEYS = ("name", "key", "reward", "reward_name", "metric", "type", "fn", "func", "id", "label")
_VALUE_KEYS = ("value", "score", "reward", "val", "result", "amount")
NAME_LISTS = (
    *("reward_names", "rewards_names", "reward_funcs", "reward_functions", "reward_keys"),
    *("reward_fns", "reward_labels", "score_names", "names"),
)
_ALIASES = frozenset({"acc", "correct", "is_correct", "success", "solved", "passed", "pass"})
"""Short names under which a reward is often logged a second time."""
WEIGHTS = ("weights", "reward_weights")
"""Names of objects and lists with the weights of the rewards."""
_CONTAINERS = (
    re.compile(r"rewards"),
    re.compile(r"reward"),
    re.compile(r"rewards?[_\-].*|.*[_\-]rewards|rewards?[A-Z].*"),
    re.compile(r"components|.*[_\-]components"),
    re.compile(r"scores?([_\-].*)?|.*[_\-]scores"),
)
"""Patterns for names of objects whose numbers are rewards, most certain first."""
_MIXED = frozenset({"extra", "info", "details", "stats", "log", "logs", "meta"})
"""Words in the names of objects that contain other numbers in addition to rewards."""
_MEASURES = re.compile(r"metrics|.*[_\-]metrics")
"""Pattern for names of objects that contain other numbers in addition to rewards. Such objects are
used only if no other field contains rewards."""


NEVER = 3
"""Rank of a field that is a reward only if the user requests the field explicitly."""


def kinds_in(record: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the kind of value of each field of a record."""

    def kind(name: str, value: Any) -> Kind:
        if type(value) in (list, str) and is_container(name) and spread(value) is not None:
            return "object"
        if value is None:
            return "empty"
        if isinstance(value, (bool, int, float)):
            return "number"
        if isinstance(value, str):
            return "text"
        return "object" if isinstance(value, Mapping) else "other"

    return {name: kind(name, value) for name, value in record.items()}


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
    of_training = next((name for name in _OF_TRAINING if fields.get(name) == "number"), None)
    if guessed["step"] == "step" and guessed["rollout"] in _EPISODES and of_training:
        guessed |= {"step": of_training, "turn": guessed["turn"] or "step"}
    return Layout(**{**guessed, **given})


def _first(meaning: str, fields: Mapping[str, Kind], given: Collection[str]) -> str | None:
    """Return the field with the first known name of a meaning, or None.

    For a meaning that needs numbers, numeric fields are preferred, then empty fields, then text,
    then fields of another type with one of the most common names, whose values are then reported.
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

    It must have a field `reward` or `score`, or a prompt or group together with reward components
    or two numbers with usual names of rewards. Training logs contain numbers with such names too.
    """
    spelt = _spelt(fields)
    if {"reward", "score"} & set(spelt):
        return True
    grouped = any(name in spelt for name in (*_PROMPTS, *_GROUPS))
    numbers = list(numbers)
    return grouped and (
        any(_names_reward(n) or is_named_reward(n) or n.endswith("components") for n in fields)
        or any(unlikelihood(path) == 0 or _may_be_total(path) for path in numbers)
        or sum(_is_likely(path) and _is_vocabulary(path) for path in numbers) > 1
    )


def is_like_rollouts(fields: Collection[str]) -> bool:
    """Return whether a file without recognizable rewards may still contain rollouts."""
    spelt = _spelt(fields)
    known = any(name in spelt for name in (*_PROMPTS, *_GROUPS, *_COMPLETIONS))
    rewarded = any(not _REWARD.isdisjoint(_words(name)) for name in fields)
    return (known or rewarded) and not are_metrics(fields, fields)


Where: TypeAlias = Literal[
    "object", "named", "other", "every", "function", "total", "asked", "none"
]
_GUESSED = ("other", "every", "function")
"""Places of rewards whose names need not say that they are rewards."""
Reason: TypeAlias = Literal["name", "copy", "dataset", "weight 0"]
"""Why a numeric field is no reward: its name, a copy of another field, constant in every group, or
without weight in the total."""

_BECAUSE: Mapping[Reason, str] = {
    "name": "not rewards: ",
    "copy": "copies of other numbers: ",
    "dataset": "constant in every group, so they belong to the dataset: ",
    "weight 0": "without weight in the total: ",
}
_ENOUGH = 16
"""Number of rollouts from which values can contradict or confirm a guess."""
_ENOUGH_TO_DENY = 64
"""Number of rollouts from which values can show that a number contains no other number."""
_ENOUGH_GROUPS = 8
"""Number of groups from which a field that is constant in each of them belongs to the dataset."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Stores the numbers of the first rollouts of a run."""

    numbers: Mapping[str, Values]
    """Values by path. NaN means that a value is missing."""
    groups: Int[np.ndarray, " rollout"]
    """Key of the group of each rollout."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Stores which numeric fields of a file are rewards, and why."""

    kind: Where = "none"
    """Where the rewards are: the numbers in an object, the numbers named as rewards, other numbers,
    all numbers of a format that stores the rewards there (`function`: under the names of
    functions), a scalar reward alone, or where the user says."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path of each reward, by name."""
    prefix: str = ""
    """Prefix of the paths, if the rewards are in an object."""
    total: str | None = None
    """Path of the total, or None if there is no total."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weight of each reward in the total, by name. Empty if unknown."""
    zeros: frozenset[str] = frozenset()
    """Rewards that count as 0 where they are missing, because the total adds nothing there."""
    constant: float = 0.0
    """What the total contains besides the weighted rewards."""
    rounding: float = 0.0
    """Largest difference between the total and the sum that rounding explains."""
    left_out: Mapping[str, Reason] = field(default_factory=dict[str, Reason])
    """Numeric fields that are not rewards, with the reason."""
    copied: tuple[tuple[str, str], ...] = ()
    """Fields named `reward` or `score` that repeat another field, with that field."""
    contradicts: str = ""
    """Name of a total that shows that the weights of the rewards are not those assumed, if any."""
    refused: str = ""
    """Reason why the rewards cannot be inferred. Empty if they were."""
    choices: tuple[tuple[str, ...], ...] = ()
    """Readings between which the file does not decide, each as a list of rewards."""

    @property
    def how(self) -> str:
        """Phrase about the rewards, for the summary."""
        where = {
            "object": f"the numbers in {self.prefix[:-1]!r}",
            "named": "the numbers named as rewards or scores",
            "other": "the numbers whose names fit a reward",
            "every": "all numeric components",
            "function": "all other floating-point columns; if some are not rewards, name the "
            "rewards (--rewards)",
            "total": "scalar reward only: no other number is named as a reward, and no numbers "
            "add up to it",
            "asked": "as given",
            "none": "",
        }[self.kind]
        if self.kind == "other" and self.total is not None:
            where = f"the numbers that add up to {self.total!r}, with weights"
        elif self.total is not None and self.kind not in ("total", "asked"):
            where += f"; {self.total!r} is their total"
        return where + passed_over(self.left_out)

    def name_of(self, path: str) -> str | None:
        """Return the name of the reward at a path, which may first occur in a later rollout."""
        known = next((name for name, known in self.names.items() if known == path), None)
        if known is not None or path in self.left_out or path == self.total:
            return known
        if self.kind == "object":
            return _name_in(path, self.prefix)
        fits = {
            "named": is_named_reward(path),
            "other": _is_likely(path),
            "every": not _is_never(path),
            "function": not _is_never(path, lenient=True),
        }.get(self.kind, False)
        return path if fits and (self.kind == "function" or not _is_total(path)) else None


def passed_over(left_out: Mapping[str, Reason]) -> str:
    """Return the end of a phrase, with the list of numeric fields that are not read as rewards."""
    phrases = [
        because + listed([path for path, reason in left_out.items() if reason == each])
        for each, because in _BECAUSE.items()
        if each in left_out.values()
    ]
    return "".join(f"; {phrase}" for phrase in phrases)


def infer(
    sample: Sample,
    known: Layout,
    *,
    texts: Sequence[str] = (),
    kind: Where = "none",
    described: bool = False,
) -> Inferred:
    """Return the rewards among the numeric fields of a file, each guess checked on the values.

    The first of the following groups that exists is the rewards: the numbers in the object that
    most likely contains rewards, the numbers whose names suggest rewards, the numbers in an object
    of metrics, and the other numbers whose names fit a reward. A number named as a total is their
    total only if they explain it.

    Args:
        sample: Numbers of the first rollouts.
        known: Meanings of the other fields.
        texts: Fields whose names suggest a reward or all rewards, but whose values are no numbers.
        kind: `every` or `function` if all numbers are rewards unless their names or values say
            otherwise, because the format stores the rewards there. Default: to be found out.
        described: Whether the user has named the columns that are not rewards.
    """
    numbers = sample.numbers
    taken = known.taken() - {known.total}
    free = [p for p in numbers if p not in taken and np.isfinite(numbers[p]).any()]
    empty = [p for p in numbers if p not in (*known.taken(), *free)]
    totals, copied = _totals(free, numbers, known)
    rest = [path for path in free if path not in totals and path not in copied]
    kind, prefix, parts = _parts(rest if kind == "function" else [*rest, *empty], kind)
    unread = [path for path in texts if is_all_rewards(path)]
    if (unread and kind == "other") or (texts and not parts and not totals):
        how = "write one number per reward and one line per rollout"
        return Inferred(refused=f"{listed(unread or texts)} cannot be read as numbers: {how}")
    out: dict[str, Reason] = dict.fromkeys(copied, "copy")
    sure = kind == "named" or (kind == "object" and not _is_measures(prefix))
    others = [p for p in rest if p not in parts and (_is_likely(p) or _is_earned_count(p))]
    for paths in (parts, others):
        named = sure and paths is parts
        doubtful = [
            p
            for p in paths
            if not _GOLD.isdisjoint(_words(_leaf(p))) or not (named or is_named_reward(p))
        ]
        out |= {path: why for path in doubtful if (why := _ruled_out(path, sample)) is not None}
        kept = [*totals, *(p for p in parts if p not in out and p not in paths)]
        free = [path for path in paths if path not in out]
        out |= _copies(free, numbers, kept, sure=named, parts=paths is parts)
    parts = [path for path in parts if path not in out]
    others = [path for path in others if path not in out]
    candidates = _Candidates(kind, prefix, parts, others, totals, rest, numbers, out, described)
    found = _without_idle(_settled(candidates), sample)
    if found.refused:
        return found
    taken = {*found.names.values(), found.total}
    unused = [*rest, *empty, *(p for p in totals if _varies(numbers[p]))]
    left: dict[str, Reason] = {p: "name" for p in unused if p not in taken}
    repeated = tuple((p, q) for p, q in copied.items() if q in taken)
    return replace(
        found,
        left_out={**left, **out, **found.left_out},
        prefix=prefix,
        copied=repeated,
        contradicts=_contradicted(found, numbers),
    )


def _without_idle(found: Inferred, sample: Sample) -> Inferred:
    """Return the rewards without those that have no weight and belong to the dataset."""
    for name in [name for name, weight in found.weights.items() if weight == 0]:
        if (why := _ruled_out(path := found.names[name], sample)) is not None:
            names = {other: p for other, p in found.names.items() if other != name}
            weights = {other: w for other, w in found.weights.items() if other != name}
            out = {**found.left_out, path: why}
            found = replace(found, names=names, weights=weights, left_out=out)
    return found


def _contradicted(found: Inferred, numbers: Mapping[str, Values]) -> str:
    """Return the total if rewards whose weights were not found do not add up to it."""
    parts = [numbers[path] for path in found.names.values() if path in numbers]
    if found.total in (None, *found.names.values()) or found.weights or not parts:
        return ""
    whole = numbers[found.total]
    apart = whole - np.nan_to_num(np.stack(parts)).sum(axis=0)
    rounding = _rounding(whole) + sum(map(_rounding, parts))
    known = apart[np.isfinite(apart)]
    return found.total if np.ptp(known) > 3 * rounding else ""


def _totals(
    free: Sequence[str], numbers: Mapping[str, Values], known: Layout
) -> tuple[list[str], dict[str, str]]:
    """Return the fields that may be totals by name, and those of them that repeat another one."""
    named = [known.total] if known.total is not None and known.total in numbers else []
    named += [p for p in free if p != known.total and _may_be_total(p)]
    varying = [path for path in named if _varies(numbers[path])]
    if not varying:  # a constant scalar is a reward only if there is no other
        return [p for p in named[:1] if np.isfinite(numbers[p]).any()], {}
    kept, copied = list[str](), dict[str, str]()
    for path in varying:
        twin = next((k for k in kept if _is_copy(numbers[path], numbers[k])), None)
        if twin is None:
            kept.append(path)
        else:
            copied[path] = twin
    return kept, copied


def _parts(rest: Sequence[str], kind: Where) -> tuple[Where, str, list[str]]:
    """Return the fields that are rewards by their names, and where they are."""
    if kind != "none":
        return kind, "", [p for p in rest if not _is_never(p, lenient=kind == "function")]
    prefix = _container(rest)
    named = [path for path in rest if is_named_reward(path)]
    if prefix and not (_is_measures(prefix) and any(not p.startswith(prefix) for p in named)):
        return "object", prefix, _described([p for p in rest if _name_in(p, prefix) is not None])
    others = [path for path in rest if path not in named and _is_likely(path)]
    if named and (any(map(_names_reward, named)) or not any(map(_is_vocabulary, others))):
        return "named", "", named
    return "other", "", [p for p in rest if _is_likely(p) and not isinstance(p, Inner)]


def _ruled_out(path: str, sample: Sample) -> Reason | None:
    """Return why the values of a field without a name of a reward rule it out, or None."""
    values = sample.numbers[path]
    # A task that is solved always or never makes a reward constant in every group.
    earned = not _EARNED.isdisjoint(_words(_leaf(path)))
    if not _varies(values) or (earned and len(np.unique(values[np.isfinite(values)])) < 3):
        return None
    known = np.isfinite(values)
    _, group = np.unique(sample.groups[known], return_inverse=True)
    size = np.bincount(group)
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, group, values[known])
    np.maximum.at(high, group, values[known])
    several = size > 1
    # A reward of two values is constant in a group by chance more often.
    enough = _ENOUGH_GROUPS * (4 if len(np.unique(low[several])) < 3 else 1)
    enough = enough if _REFERENCES.isdisjoint(_words(_leaf(path))) else 1
    same = bool(np.all(low[several] == high[several]))
    return "dataset" if same and np.sum(several) >= enough else None


def _copies(
    paths: Sequence[str],
    numbers: Mapping[str, Values],
    before: Sequence[str],
    *,
    sure: bool,
    parts: bool,
) -> dict[str, Reason]:
    """Return the fields that repeat another one. Of rewards by name, only the forms of one do."""
    out: dict[str, Reason] = {}
    order = sorted(paths, key=lambda path: _order(path, totalled=bool(before)))
    for place, path in enumerate(order):
        for kept in (*before, *order[:place]):
            if kept in out:
                continue
            alike = _base(path) == _base(kept) and _raw(path) != _raw(kept)
            marked = kept in before and _raw(path) != 1
            # A part that repeats the total may be the only part of it.
            guessed = not (sure or is_named_reward(path) or (parts and kept in before))
            if (alike and _is_monotone(numbers[path], numbers[kept])) or (
                (marked or guessed) and _is_copy(numbers[path], numbers[kept])
            ):
                out[path] = "copy"
                break
    return out


def _order(path: str, *, totalled: bool) -> tuple[int, bool, bool]:
    """Return a sort key that puts first the form of a reward that is kept.

    It is the plain form if the weights are found in a total, or else a transformed form.
    """
    form = {0: 1, 1: 0, 2: 2}[_raw(path)] if totalled else _raw(path)
    return form, not is_named_reward(path), "_".join(_words(_leaf(path))) in _ALIASES


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Stores the fields that may be rewards or their total."""

    kind: Where
    prefix: str
    parts: list[str]
    """Fields that are rewards by their names."""
    others: list[str]
    """Other fields that may be rewards."""
    totals: list[str]
    rest: list[str]
    """All numbers that have no other meaning and are not named as a total."""
    numbers: Mapping[str, Values]
    left_out: Mapping[str, Reason]
    described: bool

    @property
    def doubtful(self) -> list[str]:
        """Fields that are rewards by their names, and others with usual names of rewards."""
        return [*self.parts, *filter(_is_vocabulary, self.others)]

    def found(
        self, paths: Sequence[str], fit: "Fit | None" = None, total: str | None = None
    ) -> Inferred:
        """Return some fields as rewards, with the weights of their total."""
        names = {_name_in(path, self.prefix) or path: path for path in paths}
        if fit is None or not fit.enough:
            return Inferred(self.kind, names, self.prefix, total)
        guessed = [path for path in paths if self.kind in _GUESSED]
        unknown = [p for p in guessed if p not in fit.weights and not _is_vocabulary(p)]
        idle: dict[str, Reason] = dict.fromkeys(unknown, "name")
        idle |= {path: "weight 0" for path in guessed if fit.weight(path) == 0}
        names = {name: path for name, path in names.items() if path not in idle}
        zeros = frozenset(name for name, path in names.items() if path in fit.zeros)
        weights = {name: fit.weight(path) for name, path in names.items()}
        assert total is not None, "weights are those of a total"
        numbers = (_besides(total, names, weights, self.numbers), fit.rounding)
        return Inferred(self.kind, names, self.prefix, total, weights, zeros, *numbers, idle)

    def scalar(self) -> Inferred:
        """Return the total alone."""
        return Inferred("total", {self.totals[0]: self.totals[0]}, total=self.totals[0])

    def refused(self, why: str, *choices: Sequence[str]) -> Inferred:
        """Return the readings between which the values do not decide."""
        named = [tuple(_name_in(p, self.prefix) or p for p in each) for each in choices if each]
        return Inferred(refused=why, choices=tuple(dict.fromkeys(named)))


def _settled(found: _Candidates) -> Inferred:
    """Return the rewards, given the candidates, or the readings between which nothing decides."""
    if not found.totals:
        return _without_total(found)
    if not _varies(found.numbers[found.totals[0]]):
        return _by_names(found) if found.parts else found.scalar()
    for total in sorted(found.totals, key=lambda path: not _is_total(path)):
        if (inferred := _explained_by(found, total)) is not None:
            return inferred
    return _unexplained(found)


def _explained_by(found: _Candidates, total: str) -> Inferred | None:
    """Return the rewards that explain a total, with their weights, or None if there are none."""
    also = [path for path in found.totals if path != total and not _is_total(path)]
    pool = list[str]()
    known = {*found.parts, *found.others, *found.totals, *found.left_out}
    monitors = [path for path in found.numbers if path not in known]
    for more in (found.parts, also, found.others, monitors):
        pool += more
        fit = explained(pool, found.numbers, total) if more else None
        if fit is None or not (fit.enough or more is found.parts):
            continue
        carrying = [path for path in pool if fit.weights.get(path, 0.0) != 0]
        if len(carrying) > 1:
            used = [path for path in pool if path in found.parts or path in carrying]
            return found.found(used, fit, total)
        if carrying[0] not in found.parts:
            return None  # another number repeats the total
        if found.kind in ("every", "function"):
            return found.found(found.parts, fit, total)
        if found.kind == "other":
            return found.scalar()
        idle = [path for path in found.parts if fit.weight(path) == 0]
        if not idle:
            return found.found(found.parts, fit, total)
        why = f"{total!r} is {carrying[0]!r} alone: {listed(idle)} may be rewards, or only logged"
        return found.refused(why, found.parts, found.doubtful, carrying)
    return None


def _unexplained(found: _Candidates) -> Inferred:
    """Return what a number named as a total is, if the other numbers do not explain it."""
    total, parts = found.totals[0], found.parts
    guessed = found.kind in _GUESSED
    if not parts or (guessed and len(parts) < 2 and not any(map(_is_vocabulary, parts))):
        return found.scalar()
    if found.kind != "other" and int(np.isfinite(found.numbers[total]).sum()) < _ENOUGH:
        return found.found(parts)
    few = int(np.isfinite(found.numbers[total]).sum()) < _ENOUGH_TO_DENY
    more = found.doubtful
    apart = not few and not any(
        _is_total(each) or any(_contains(found.numbers[each], found.numbers[p]) for p in more)
        for each in found.totals
    )
    if found.kind in ("named", "object") and apart and len(found.totals) == 1:
        return found.found([total, *parts])
    why = (
        f"{total!r} is not a weighted sum of {listed(parts)}, so it may be a reward of its own, "
        "their product, or the total with a part that is not in the file"
    )
    both = [*found.totals, *parts], [*found.totals, *more]
    return found.refused(why, parts, more, *both, found.totals[:1])


def _without_total(found: _Candidates) -> Inferred:
    """Return the rewards of a file in which no number is named as a total."""
    parts, numbers = found.parts, found.numbers
    if not parts:
        return found.refused("no number has a name that fits a reward")
    if found.kind in ("every", "function"):
        return found.found(parts)
    weak = found.kind == "other" or _is_measures(found.prefix)
    if weak and all(not _varies(numbers[path]) and len(numbers[path]) > 1 for path in parts):
        return found.refused("the numbers are constant")
    if (inferred := _with_total_of_any_name(found)) is not None:
        return inferred
    for total in [p for p in parts[::-1] if _varies(numbers[p])] if len(parts) > 2 else []:
        rest = [path for path in parts if path != total]
        fit = explained(rest, numbers, total)
        if fit is not None and fit.certain and all(fit.weight(path) > 0 for path in rest):
            return found.found(rest, fit, total)
    return _by_names(found)


def _by_names(found: _Candidates) -> Inferred:
    """Return the rewards by their names alone, if these leave no doubt."""
    parts = found.parts
    known = [path for path in parts if _is_vocabulary(path)]
    more = [path for path in found.others if _is_vocabulary(path)]
    if found.kind == "other" and len(known) < len(parts) and not found.described:
        unknown = [path for path in parts if path not in known]
        why = f"the names of {listed(unknown)} do not show whether they are rewards"
        return found.refused(why, known, parts, found.totals[:1])
    if more and found.kind in ("named", "other"):
        why = f"{listed(more)} may be rewards too, or only logged"
        return found.refused(why, parts, [*parts, *more])
    return found.found(parts)


def _with_total_of_any_name(found: _Candidates) -> Inferred | None:
    """Return the rewards if another number is their weighted sum, whatever its name is, or None."""
    numbers = found.numbers
    varying = [path for path in found.parts if _varies(numbers[path])]
    others = [path for path in found.rest if path not in found.parts]
    for total in [path for path in others if not _is_vocabulary(path)]:
        others = [path for path in found.others if path != total]
        monitors = [p for p in found.rest if p not in (total, *others, *found.parts)]
        pool = list[str]()
        for more in (found.parts, others, monitors):
            pool += more
            fit = explained(pool, numbers, total) if more else None
            carrying = [p for p in pool if fit is not None and fit.weights.get(p, 0.0) != 0]
            if fit is None or not fit.certain or len(carrying) < 2:
                continue
            if all(path in carrying for path in varying):
                used = [path for path in pool if path in found.parts or path in carrying]
                return found.found(used, fit, total)
    return None


@dataclass(frozen=True, slots=True)
class Fit:
    """Stores the weights with which fields add up to a total, up to a constant."""

    weights: Mapping[str, float]
    """Weight of each field that varies, by path."""
    constants: Mapping[str, float]
    """Weight of each field that is constant so far, as far as it can be told."""
    zeros: frozenset[str]
    """Fields that are missing in some rollouts, where they add nothing to the total."""
    rounding: float
    """Largest difference between the total and the sum that rounding explains."""
    enough: bool
    """Whether there are enough rollouts to trust the weights."""
    certain: bool
    """Whether the fields take enough different values to rule out a coincidence."""

    def weight(self, path: str) -> float:
        """Return the weight of a field, which is 1 if it is unknown."""
        return self.weights.get(path, self.constants.get(path, 1.0))


def explained(paths: Sequence[str], numbers: Mapping[str, Values], total: str) -> Fit | None:
    """Return the weights with which fields explain a total, or None if they do not.

    They explain it if it is their weighted sum, plus a constant, up to the rounding of the numbers.
    """
    rows = np.flatnonzero(np.isfinite(numbers[total]))
    rows = rows[:: max(1, len(rows) // _COMPARED)]
    varying = [p for p in paths if _varies(np.nan_to_num(numbers[p][rows]))]
    if not 0 < len(varying) <= min(_ADDED_UP, len(rows) - 1):
        return None
    enough = len(rows) >= max(_ENOUGH, 3 * len(varying) + 3)
    whole = numbers[total][rows]
    columns = [numbers[path][rows] for path in varying]
    added = np.nan_to_num(np.stack(columns, axis=-1), posinf=0, neginf=0)
    size = np.abs(added).max(axis=0)
    if max(size.max(), np.abs(whole).max()) > 1e30:
        return None
    design = np.column_stack([added / size, np.full(len(rows), float(enough))])
    weights = np.linalg.lstsq(design, whole, rcond=None)[0][:-1] / size
    error = whole - added @ weights
    error = error - error.mean() if enough else error
    rounding = _rounding(whole) + float(np.abs(weights) @ list(map(_rounding, columns)))
    if np.abs(error).max() >= min(1.25 * rounding, 0.1 * float(np.std(whole))):
        return None
    weights = _rounded(weights, added, whole)
    different = len(np.unique(added, axis=0))
    constants = {p: float(np.nanmax(numbers[p][rows])) for p in paths if p not in varying}
    return Fit(
        {path: float(w) for path, w in zip(varying, weights, strict=False)},
        _weights_of_constants(constants, weights, whole - added @ weights, 1.25 * rounding),
        frozenset(p for p, c in zip(varying, columns, strict=True) if not np.isfinite(c).all()),
        1.25 * rounding,
        enough,
        enough and different > len(varying) + 1,
    )


def _weights_of_constants(
    values: Mapping[str, float], weights: Values, rest: Values, rounding: float
) -> dict[str, float]:
    """Return the weights of fields that are constant, given what the other fields leave of a total.

    A single one has the weight that explains the rest. Otherwise, the usual weight is assumed.
    """
    carrying = np.abs(weights[weights != 0])
    usual = float(np.median(carrying)) if len(carrying) else 1.0
    known = {path: value for path, value in values.items() if np.isfinite(value) and value}
    found = dict.fromkeys(values, usual)
    for path, value in known.items() if len(known) == 1 else ():
        weight, limit = float(np.median(rest)) / value, 2 * rounding / abs(value)
        if weight > -limit:
            found[path] = float(f"{weight:.3g}") if weight > limit else 0.0
    return found


def _besides(
    total: str,
    paths: Mapping[str, str],
    weights: Mapping[str, float],
    numbers: Mapping[str, Values],
) -> float:
    """Return what a total contains besides its weighted rewards, which are given by name."""
    rows = np.isfinite(numbers[total])
    known = [(weights[name], numbers[path]) for name, path in paths.items() if path in numbers]
    added = sum((w * np.nan_to_num(values[rows]) for w, values in known), np.zeros(int(rows.sum())))
    return float(np.median(numbers[total][rows] - added))


def _rounding(values: Values) -> float:
    """Return how far a number may be from its value before it was written.

    Numbers with at most one decimal place count as exact, so that a weight of 0.1 is no rounding.
    """
    known = values[np.isfinite(values)]
    largest = float(np.abs(known).max(initial=0.0))
    exact = 2e-6 * largest + 1e-12
    for places in range(7):
        unit = 10.0**-places
        if np.all(np.abs(known - np.round(known / unit) * unit) <= min(exact, unit / 20)):
            return exact if places < 2 else exact + unit / 2
    return exact


def _rounded(
    weights: Float[np.ndarray, " part"], added: Float[np.ndarray, "rollout part"], whole: Values
) -> Float[np.ndarray, " part"]:
    """Return the weights with as few digits as fit the total equally well."""

    def misfit(of: Float[np.ndarray, " part"]) -> float:
        return float(np.std(whole - added @ of))

    allowed = 1.02 * misfit(weights) + 1e-7 * float(np.std(whole))
    kept = weights.copy()
    for place in range(len(weights)):
        for digits in range(4):
            tried = kept.copy()
            tried[place] = float(f"{kept[place]:.{digits - 1}e}") if digits else 0.0
            if misfit(tried) <= allowed:
                kept = tried
                break
    return kept


def _contains(total: Values, part: Values) -> bool:
    """Return whether a number may contain a part: whether its values depend on those of the part.

    Of numbers with few values, the set of values is compared; of others, the correlation.
    """
    both = np.isfinite(total) & np.isfinite(part)
    total, part = total[both], part[both]
    if not _varies(part):
        return False
    if max(len(np.unique(total)), len(np.unique(part))) <= 12:
        values, counts = np.unique(part, return_counts=True)
        usual = values[counts >= max(8, len(part) // 20)]
        return len({frozenset(np.unique(total[part == value])) for value in usual}) > 1
    r = float(np.corrcoef(total, part)[0, 1])
    return abs(r) * np.sqrt(len(total)) > 3


def _varies(values: Values) -> bool:
    known = values[np.isfinite(values)]
    return len(known) > 0 and bool(np.any(known != known[0]))


def _is_copy(one: Values, other: Values) -> bool:
    """Return whether one field repeats another one, in the same or in another unit."""
    same = np.isfinite(one)
    if not np.array_equal(same, np.isfinite(other)):
        return False
    one, other = one[same], other[same]
    if len(one) < _ENOUGH or not _varies(one) or not _varies(other):
        return False
    low, high = np.argmin(other), np.argmax(other)
    slope = (one[high] - one[low]) / (other[high] - other[low])
    error = np.abs(one[low] + slope * (other - other[low]) - one).max()
    return slope != 0 and bool(error <= _rounding(one) + abs(slope) * _rounding(other))


def _is_monotone(one: Values, other: Values) -> bool:
    """Return whether one field rises or falls whenever another one rises, or stays the same."""
    if not np.array_equal(np.isfinite(one), np.isfinite(other)) or len(one) < _ENOUGH:
        return False
    order = np.lexsort((one, other))
    steps, steps_of = np.diff(one[order]), np.diff(other[order])
    level = steps[steps_of == 0]
    rising = bool(np.all(steps >= 0)) or bool(np.all(steps[steps_of > 0] <= 0))
    coarser = len(np.unique(one)) < len(np.unique(other))
    return rising and (coarser or bool(np.all(level == 0)))


def named_by_user(sample: Sample, known: Layout, asked: Sequence[str]) -> Inferred:
    """Return the rewards that the user named, with their weights if a number is their total."""
    paths = resolved(asked, list(sample.numbers))
    taken = set(paths.values())
    named = [path for path in sample.numbers if path not in taken and _may_be_total(path)]
    named += [path for path in sample.numbers if is_named_reward(path) and path not in taken]
    for total in dict.fromkeys(([known.total] if known.total is not None else []) + named):
        if total in taken or total not in sample.numbers:
            continue
        fit = explained([p for p in paths.values() if p in sample.numbers], sample.numbers, total)
        if fit is None or not fit.enough or not (fit.certain or _may_be_total(total)):
            continue
        if len(paths) == 1 or sum(map(bool, fit.weights.values())) > 1:
            weights = {name: fit.weight(path) for name, path in paths.items()}
            zeros = frozenset(name for name, path in paths.items() if path in fit.zeros)
            found = Inferred("asked", paths, total=total, weights=weights, zeros=zeros)
            constant = _besides(total, paths, weights, sample.numbers)
            return replace(found, constant=constant, rounding=fit.rounding)
    return Inferred("asked", paths, contradicts=_contradicting(paths, sample.numbers, named))


def _contradicting(
    paths: Mapping[str, str], numbers: Mapping[str, Values], named: Sequence[str]
) -> str:
    """Return a number that is a total by its name and contains a reward, but is not their sum."""
    parts = [numbers[path] for path in paths.values() if path in numbers]
    for total in dict.fromkeys(filter(_may_be_total, named)):
        enough = np.isfinite(numbers[total]).sum() >= _ENOUGH and _varies(numbers[total])
        if enough and any(_contains(numbers[total], part) for part in parts):
            return total
    return ""


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
    ordered = _words(_leaf(path))
    words = set(ordered)
    if len(ordered) > 1 and ordered[-1] in _FUNCTION and not words & {"tp", "fp", "tn"}:
        words = {*ordered[:-1], "reward"}
    rest = words - _REWARD
    if rest & _WEIGHTS or any(map(_is_time, rest)):
        return False
    if words & (_REWARD - _REWARD_ONLY) and ordered[-1] not in _STATISTICS:
        return True
    return rest != words and not rest <= _STATISTICS | _TOTAL


def unlikelihood(path: str) -> int:
    """Return how unlikely it is that a path is a reward, from 0 (in an object of rewards) to 3."""
    if _prefix(path) is not None:
        return 0
    return 1 if is_named_reward(path) else 2 if _is_likely(path) else NEVER


def is_named_as_reward(path: str) -> bool:
    """Return whether the name of a text field suggests a reward, or all rewards."""
    if (prefix := _prefix(path)) is not None:
        return _name_in(path, prefix) is not None and not _is_measures(prefix)
    return is_named_reward(path) or is_all_rewards(path)


def may_be_text(path: str) -> bool:
    """Return whether the texts of a field are read if they are texts of numbers."""
    return is_named_as_reward(path) or (_is_likely(path) and _is_vocabulary(path))


def is_all_rewards(path: str) -> bool:
    """Return whether the name suggests a field with all rewards, or with their total."""
    words = set(_words(path))
    return bool(words & _REWARD) and words <= _REWARD | {"components"}


def is_metric(path: str) -> bool:
    """Return whether the name is that of a statistic of a whole step, as trainers log them."""
    return _METRIC.fullmatch(path) is not None


def are_metrics(fields: Collection[str], numbers: Iterable[str]) -> bool:
    """Return whether the fields are those of a log of whole steps, not of rollouts.

    A log has statistics of rewards, or no texts and no groups, but several numbers of a trainer.
    """
    if any(map(is_metric, numbers)):
        return True
    spelt = _spelt(fields)
    if any(name in spelt for name in (*_PROMPTS, *_GROUPS, *_COMPLETIONS)):
        return False
    return len(_LOGGED & {_leaf(name) for name in (*spelt, *fields)}) > 1


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
    first, *inner = re.split(r"[./]", name)
    if _is_measures(prefix):
        return None if inner or _is_never(first) else name
    if inner and (not _NO_CHILDREN.isdisjoint((first, *inner)) or _is_monitor(inner[-1])):
        return None
    mixed = not _MIXED.isdisjoint(_words(_leaf(prefix[:-1])))
    return None if first.lower() in _IDS or (mixed and _is_monitor(first)) else name


def _is_monitor(name: str) -> bool:
    """Return whether a name in an object of rewards rules out a reward. A `length` may be one."""
    return _is_never(name) and name.lower() not in _LENGTHS


def _described(paths: Sequence[str]) -> list[str]:
    """Return the paths. For an object that describes one reward, keep only the value field."""
    parts = {path: path.rpartition(".") for path in paths}
    described = {above for above, _, name in parts.values() if name in _VALUES}
    described = {above for above in described if not is_container(_leaf(above))}
    return [p for p, (above, _, name) in parts.items() if above not in described or name in _VALUES]


def _names_reward(path: str) -> bool:
    """Return whether a name says `reward` or `score`, or that of a reward function."""
    words = _words(_leaf(path))
    return not _REWARD_ONLY.isdisjoint(words) or (bool(words) and words[-1] in _FUNCTION)


def _is_likely(path: str) -> bool:
    """Return whether a number next to other fields may be a reward."""
    return not isinstance(path, Inner) and not _is_never(path)


def _is_vocabulary(path: str) -> bool:
    return not _VOCABULARY.isdisjoint(_words(_leaf(path)))


def _is_never(path: str, *, lenient: bool = False) -> bool:
    """Return whether the name rules out a reward: a name of a length, time, count, flag or id.

    With `lenient`, a bare `length`, a name such as `is_text` and that of a reference do not.
    """
    name = _leaf(path)
    words = _words(name)
    if is_named_reward(path):
        return False
    named = lenient or not _VOCABULARY.isdisjoint(words)
    if lenient and len(words) == 1 and words[0] in _LENGTHS:
        return False
    return (
        name.lower() in _NEVER_WHOLE
        or "_".join(words) in _NEVER_WHOLE
        or not _NEVER.isdisjoint(words)
        or any(_is_time(word) or word.startswith("iter") for word in words)
        or (bool(words) and (words[-1] in _LENGTHS or _is_count(words)))
        or (not named and bool({"has", "is", "was", "did", "flag"} & set(words[:1])))
        or (not named and not _REFERENCES.isdisjoint(words))
        or (not _REWARD.isdisjoint(words) and not _is_total(path) and name not in _TOTALS)
    )


def _may_be_total(path: str) -> bool:
    """Return whether the name suggests the total of other rewards, such as `reward` or `total`."""
    prefix = _prefix(path)
    if "." in path[len(prefix or "") :] or (prefix is None and isinstance(path, Inner)):
        return False
    return _is_total(path) or "_".join(_words(_leaf(path))) in _TOTALS


def _raw(path: str) -> int:
    """Return 2 for the raw form of a reward, 0 for a transformed form, and 1 for any other name."""
    words = set(_words(_leaf(path)))
    return 2 if words & _RAW else 0 if words & _SHAPED and words - _SHAPED else 1


def _base(path: str) -> frozenset[str]:
    """Return the words that the raw and the transformed form of one reward share."""
    return frozenset(_words(_leaf(path))) - _REWARD_ONLY - _RAW - _SHAPED


def _is_count(words: Sequence[str]) -> bool:
    return words[0] in {"num", "n", "count"} and words[1:2] != [] and words[1].isalpha()


def _is_earned_count(path: str) -> bool:
    """Return whether a name is that of a count of what was earned, such as `num_tests_passed`."""
    words = _words(_leaf(path))
    return bool(words) and _is_count(words) and not _EARNED.isdisjoint(words)


def _is_time(word: str) -> bool:
    return word.startswith("time") or word.endswith("time") or word in {"duration", "latency"}


def _is_total(path: str) -> bool:
    """Return whether the name suggests a sum of rewards."""
    words = set(_words(_leaf(path))) - {"of", "all"}
    return bool(words & _TOTAL) and words <= _TOTAL | _REWARD


def _leaf(path: str) -> str:
    return re.split(r"[./]", path)[-1]


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


NO_KEY = -(2**63)
"""Key for rollouts with neither a group nor a prompt. No other value has this key."""
Key: TypeAlias = Int64[np.ndarray, " row"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Stores which rollouts form a group, and how often the prompts contradict the group ids."""

    keys: Key
    """Key of the group of each row. `NO_KEY` if a row has neither a group id nor a prompt."""
    split: bool = False
    """Whether id and prompt form a group together, because most ids have several prompts."""
    alone: bool = False
    """Whether each id has one row, although most rows share their prompt with another row."""
    differing: int = 0
    """Number of ids with several prompts."""
    compared: int = 0
    """Number of ids with several rows."""


def grouping(
    steps: Key, ids: Key, prompts: Key, rollouts: Key, turns: Key, *, split: bool = False
) -> Grouping:
    """Return the groups of some rows, from their ids if the prompts agree with these.

    If most ids have several prompts, as when ids restart in every batch, id and prompt together
    form a group. If most prompts are then alone, the prompts contain text of a single rollout, such
    as a path, and the ids are used. Ids, prompts, and rollouts (of rows that are turns) are keys,
    or `NO_KEY`. `split`: earlier rows of the run had ids with several prompts.
    """
    if np.any(rollouts != NO_KEY):
        prompts = _of_first_turns(prompts, pair(pair(steps, ids), rollouts), rollouts, turns)
    keys = np.where(ids == NO_KEY, prompts, ids)
    rows = np.flatnonzero((ids != NO_KEY) & (prompts != NO_KEY))
    if not len(rows):
        return Grouping(keys)
    given, asked = pair(steps, ids)[rows], prompts[rows]
    _, first, group, sizes = np.unique(
        given, return_index=True, return_inverse=True, return_counts=True
    )
    apart = np.bincount(group, weights=asked != asked[first][group]) > 0
    compared, differing = int(np.sum(sizes > 1)), int(np.sum(apart))
    if not split and (2 * differing <= compared or not compared):
        alone = not compared and _mostly_shared(pair(steps[rows], asked))
        return Grouping(keys, False, alone, differing, compared)
    split = split or _mostly_shared(pair(given, asked))
    if split:
        keys[rows] = pair(ids[rows], asked)
    return Grouping(keys, split, False, differing, compared)


def _mostly_shared(keys: Key) -> bool:
    """Return whether most rows share their key with another row."""
    _, place, alike = np.unique(keys, return_inverse=True, return_counts=True)
    return 2 * int(np.sum(alike[place] > 1)) > len(keys)


def restarted(
    found: Grouping, ids: Key, prompts: Key, seen: tuple[Key, Key] | None
) -> tuple[Grouping, tuple[Key, Key]]:
    """Return the groups of rows whose ids may have occurred in earlier rows with other prompts.

    Such an id has restarted, as in a file without steps, and forms a group with its prompt. `seen`
    are the ids of earlier rows, sorted, and their first prompts, which are returned for later rows.
    """
    rows = np.flatnonzero((ids != NO_KEY) & (prompts != NO_KEY))
    given, first, group = np.unique(ids[rows], return_index=True, return_inverse=True)
    asked = prompts[rows][first]
    if seen is None:
        return found, (given, asked)
    place = np.minimum(np.searchsorted(seen[0], given), max(len(seen[0]) - 1, 0))
    known = seen[0][place] == given if len(seen[0]) else np.zeros(len(given), np.bool_)
    again = known & (seen[1][place] != asked) if len(seen[0]) else known
    other = np.flatnonzero(again[group])
    keys = found.keys.copy()
    keys[rows[other]] = pair(ids[rows[other]], asked[group[other]])
    together = np.append(seen[0], given[~known]), np.append(seen[1], asked[~known])
    order = np.argsort(together[0])
    several = int(np.sum(again))
    split = 2 * several > int(np.sum(known)) and several > 0
    return replace(found, keys=keys, split=split, differing=several), (
        together[0][order],
        together[1][order],
    )


def _of_first_turns(prompts: Key, keys: Key, rollouts: Key, turns: Key) -> Key:
    """Return the prompt of the first turn of each rollout, for each of its rows."""
    order = np.lexsort((turns, keys))
    starts = np.append(True, np.diff(keys[order]) != 0)
    first = np.empty(len(keys), np.int64)
    first[order] = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return np.where(rollouts == NO_KEY, prompts, prompts[first])


def pair(one: Key, other: Key) -> Key:
    """Return one key for each pair of keys, which is never `NO_KEY`."""
    mixed = one.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (mixed + other.astype(np.uint64)).view(np.int64)
    return np.where(keys == NO_KEY, 0, keys)


def spread(value: Any, names: Any = None) -> dict[str, Any] | None:
    """Return the rewards in a list, in pairs, in named objects or in JSON text, keyed by name.

    Numbers in a list are named by `names` if there are as many, or else numbered. The result is
    None if the value has another form.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return spread(value, names) if isinstance(value, (list, dict)) else None
    if isinstance(value, Mapping):
        return {str(name): found for name, found in cast("Mapping[Any, Any]", value).items()}
    items = cast("list[Any]", value) if isinstance(value, (list, tuple)) else []
    if not 0 < len(items) <= _LISTED:
        return None
    if all(isinstance(item, Mapping) for item in items):
        return _named_values(items)
    if all(isinstance(i, (list, tuple)) and len(i) == 2 and isinstance(i[0], str) for i in items):
        return {str(name): found for name, found in items}
    if not all(i is None or isinstance(i, (int, float)) or _is_digits(i) for i in items):
        return None
    named = isinstance(names, (list, tuple)) and len(cast("list[Any]", names)) == len(items)
    keys = cast("list[Any]", names) if named else range(len(items))
    return {str(key): item for key, item in zip(keys, items, strict=True)}


def _is_digits(value: Any) -> bool:
    """Return whether a value is the text of a number."""
    try:
        return isinstance(value, str) and isfinite(float(value))
    except ValueError:
        return False


def _named_values(items: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the values of objects such as `{"name": "style", "value": 0.5}`, keyed by name."""
    found: dict[str, Any] = {}
    for item in items:
        name = next((item[key] for key in _NAME_KEYS if isinstance(item.get(key), str)), None)
        value = next((item[key] for key in _VALUE_KEYS if key in item), None)
        if name is None:
            if len(item) != 1:
                return None
            ((name, value),) = item.items()
        weight = item.get("weight")
        found[name] = value if weight is None else {"value": value, "weight": weight}
    return found


def is_per_completion(value: Any, record: Mapping[str, Any]) -> bool:
    """Return whether a list has a value for each of several completions in a record."""
    if not isinstance(value, list):
        return False
    size = len(cast("list[Any]", value))
    return any(
        isinstance(each := record.get(name), list) and len(cast("list[Any]", each)) == size
        for name in _COMPLETIONS
        if name.endswith("s")
    )


def listed_names(record: Mapping[str, Any]) -> Any:
    """Return the list of the names of rewards in a record, or None."""
    return next((record[name] for name in NAME_LISTS if isinstance(record.get(name), list)), None)
