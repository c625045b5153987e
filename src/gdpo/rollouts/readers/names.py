"""Infers from field names what the fields mean, and which numbers may be rewards.

The same rules apply to all formats, because all provide their numbers by path. A dot
or slash separates an object or struct from the fields inside, even in the name of a column.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, TypeAlias, cast

from gdpo._files import from_json
from gdpo._naming import refuse_unknown
from gdpo.errors import DataError

Kind: TypeAlias = Literal["number", "text", "empty", "object", "other"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


class Inner(str):
    """Marks a path into an object or struct, because a column's name may contain dots."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Stores the column for each meaning, or None."""

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

    def places(self) -> dict[str, str]:
        """Return the columns with a meaning, which are no reward components, by meaning."""
        return {name: path for name in MEANINGS if (path := getattr(self, name)) is not None}

    @property
    def of_turns(self) -> bool:
        """Whether rows may be turns."""
        return None not in (self.rollout, self.turn)


MEANINGS = tuple(each.name for each in fields(Layout))
NOTHING_KNOWN = Layout()


def listed(names: Collection[str]) -> str:
    """Return up to 12 names for a message, shortened and quoted: a name may be malicious."""
    shown = ", ".join(repr(str(name)[:40]) for name in list(names)[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


_OF_TRAINING = ("iteration", "global_step", "training_step", "train_step", "policy_step", "update")
_EPISODES = ("trajectory_id", "traj_id", "episode_id", "trajectory_idx", "episode_idx")
"""Next to a field `step` and an id of episodes, `iteration` is the step, and `step` the turn."""
GUESSES = {
    meaning: tuple(names.split())
    for meaning, names in {
        "step": "step global_step gen_step iteration iter global_steps train_step training_step "
        "trainer_step rollout_step optimizer_step update_step step_idx step_id iteration_idx "
        "update epoch_step policy_step batch_step batch_idx batch_index batch_id",
        "group": "group_id group group_index prompt_id problem_id uid group_idx prompt_idx "
        "prompt_index problem_idx problem_index question_id example_id prompt_uid prompt_uuid "
        "prompt_hash group_uid group_key question_idx qid question_index query_id query_idx "
        "example_idx example_index problem_uid task_id task_idx instance_id item_id",
        "prompt": "prompt input question messages query instruction problem prompt_text prompts "
        "questions",
        "completion": "completion output response answer generation generated_text "
        "completion_text response_text model_output prediction completions responses outputs",
        "advantage": "advantage advantages adv",
        "num_tokens": "num_tokens completion_length response_length completion_tokens "
        "response_tokens output_tokens n_tokens tokens",
        "finish_reason": "finish_reason stop_reason",
        "total": "reward score total_reward total total_score reward_total score_total reward_sum "
        "sum_reward overall_reward final_reward combined_reward reward_score score_reward "
        "weighted_reward overall_score final_score overall rewards scores return episode_return "
        "episode_reward r objective fitness utility",
        "rollout": "rollout_id trajectory_id traj_id episode_id sample_id completion_id "
        "rollout_idx rollout_index trajectory_idx trajectory_index traj_idx episode_idx "
        "sample_idx sample_index rollout trajectory sample",
        "turn": "turn turn_id turn_idx turn_index turn_number turn_no step_in_episode "
        "step_in_rollout step_in_trajectory",
    }.items()
}
"""Names of the fields with each meaning, most common first."""
_OF_ROLLOUTS = (*GUESSES["prompt"], *GUESSES["group"], *GUESSES["completion"])
NUMERIC = frozenset({"step", "advantage", "num_tokens", "total", "turn"})
"""Meanings whose fields must contain numbers."""
_PLAINEST = 3
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_REWARD_ONLY = frozenset({"reward", "rewards", "score", "scores"})
_REWARD = _REWARD_ONLY | {"penalty", "bonus"}
_FUNCTION = frozenset({"fn", "func"})
_TOTAL = frozenset(
    {"total", "sum", "overall", "final", "combined", "weighted", "aggregate", "aggregated"}
    | {"scalar"}
)
_STATISTICS = frozenset(
    {"mean", "std", "var", "min", "max", "median", "avg", "average", "baseline", "count"}
    | {"minimum", "maximum", "lower", "upper", "lowest", "highest", "bound", "limit", "threshold"}
    | {"group", "batch", "step", "shift", "scale", "range", "id", "advantage", "running", "ema"}
    | {"ref", "reference", "prev", "previous", "old", "chosen", "rejected", "best", "worst"}
)
"""Words that, together with `reward` in a name, indicate a statistic or a bound of rewards."""
_RAW = frozenset({"raw", "unweighted", "unscaled", "unnormalized", "unclipped", "original", "orig"})
_SHAPED = frozenset(
    {"weighted", "scaled", "normalized", "normalised", "norm", "clipped", "transformed", "shaped"}
    | {"standardized", "rescaled"}
)
"""Words for two forms of one reward."""
_WEIGHTS = frozenset({"weight", "weights", "name", "names", "coef", "coefficient"})
_VALUES = frozenset({"value", "score", "reward"})
_VERBS = frozenset({"is", "are", "was", "were", "has", "had", "did", "from", "used"})
"""Words that, together with `reward` in a name, state something about the reward."""
_STATES = _SHAPED | _set(
    "cached missing available computed ready masked skipped truncated failed error timeout "
    "overridden"
)
"""Words that name a flag about the reward, if the values are 0 and 1."""
OF_TURNS = frozenset({"turn", "turns", "step", "steps", "tool", "tools", "call", "calls"})
"""Words that say that there is a value for each turn, as in `step_rewards`."""
_LENGTHS = frozenset({"len", "length", "lengths", "lens", "chars", "characters", "words", "size"})
GOLD = frozenset({"reference", "expected", "gold", "truth", "gts"})
"""Words in the names of fields that state something about a right answer, such as its score."""
_REFERENCES = frozenset(
    {"reference", "truth", "gold", "label", "target", "answer", "solution", "gts", "expected"}
)
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
"""A field whose name contains one of these words is a reward only if it is part of the total. TRL's
files name rewards after functions, so a `length` in them may be one."""
_NEVER_WHOLE = frozenset(
    {"created_at", "learning_rate", "top_p", "top_k", "ground_truth", "answer_value", "n", "k"}
    | {name for meaning, names in GUESSES.items() if meaning != "total" for name in names}
)
"""Names of settings, references, and fields with other meanings, which are never rewards."""
_IDS = frozenset({"n", "id", "idx", "index", "step", "uid", "timestamp", "seed"})
_NO_CHILDREN = frozenset({"info", "meta", "metadata", "extra", "extras", "debug", "details", "log"})
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
EARNED = frozenset(
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
WEIGHTS = ("weights", "reward_weights")
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
"""Objects with other numbers too, which are used only if no other field contains rewards."""
NEVER = 3
"""Rank of a field that is a reward only if the user requests the field explicitly."""


def kinds_in(record: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the kind of value of each field of a record."""

    def kind(name: str, value: Any) -> Kind:
        if type(value) in (list, str) and is_container(name) and spread(value) is not None:
            return "object"
        if value is None:
            return "empty"
        if isinstance(value, (int, float)):
            return "number"
        if isinstance(value, str):
            return "text"
        return "object" if isinstance(value, Mapping) else "other"

    return {name: kind(name, value) for name, value in record.items()}


def layout(columns: Mapping[str, str] | None, fields: Mapping[str, Kind]) -> Layout:
    """Return the column for each meaning, given by the user or inferred from its name."""
    given = columns or {}
    refuse_unknown(given, MEANINGS, "columns: unknown meaning")
    for meaning, column in given.items():
        dots = [place for place, letter in enumerate(column) if letter == "."]
        if not any(column[:end] in fields for end in (*dots, len(column))):
            raise DataError(
                f"no column {column!r} for the {meaning}; the fields are {listed(fields)}: correct "
                "it in columns"
            )
    guessed, spelt = dict[str, str | None](), _spelt(fields)
    for meaning in MEANINGS:
        free = [spelt[name] for name in GUESSES[meaning] if name in spelt]
        free = [name for name in free if name not in given.values()]
        if meaning in NUMERIC:
            plainest = [spelt.get(name) for name in GUESSES[meaning][:_PLAINEST]]
            kinds: tuple[Kind, ...] = ("number", "empty", "text")
            fitting = [name for kind in kinds for name in free if fields[name] == kind]
            free = fitting + [n for n in free if n in plainest and fields[n] == "other"]
        guessed[meaning] = next(iter(free), None)
    of_training = next((name for name in _OF_TRAINING if fields.get(name) == "number"), None)
    if guessed["step"] == "step" and guessed["rollout"] in _EPISODES and of_training:
        guessed |= {"step": of_training, "turn": guessed["turn"] or "step"}
    return Layout(**{**guessed, **given})


def _spelt(fields: Iterable[str]) -> dict[str, str]:
    fields = list(fields)
    return {"_".join(words_of(name)): name for name in fields[::-1]} | {
        name: name for name in fields
    }


def looks_rewarded(fields: Collection[str], numbers: Iterable[str]) -> bool:
    """Return whether a file may contain rollouts with rewards."""
    spelt = _spelt(fields)
    if {"reward", "score"} & set(spelt):
        return True
    grouped = any(name in spelt for name in (*GUESSES["prompt"], *GUESSES["group"]))
    numbers = list(numbers)
    return grouped and (
        any(names_reward(n) or is_named_reward(n) or n.endswith("components") for n in fields)
        or any(unlikelihood(path) == 0 or may_be_total(path) for path in numbers)
        or sum(is_likely(path) and is_vocabulary(path) for path in numbers) > 1
    )


def is_like_rollouts(fields: Collection[str]) -> bool:
    """Return whether a file without recognizable rewards may still contain rollouts."""
    spelt = _spelt(fields)
    known = any(name in spelt for name in _OF_ROLLOUTS)
    return known or any(not _REWARD.isdisjoint(words_of(name)) for name in fields)


def likely(paths: Sequence[str]) -> list[str]:
    """Return the numeric fields to propose as rewards if none can be inferred."""
    found = [path for path in paths if not is_never(path)]
    return [path for path in found if not is_total(path)] or found or list(paths)


def is_named_reward(path: str) -> bool:
    """Return whether a name suggests a single reward: `reward_len`, but not `total_reward`."""
    ordered = last_words(path)
    words = set(ordered)
    if len(ordered) > 1 and ordered[-1] in _FUNCTION and not words & {"tp", "fp", "tn"}:
        words = {*ordered[:-1], "reward"}
    rest = words - _REWARD
    states = bool(rest & _VERBS) and rest.isdisjoint(EARNED)
    if states or not _WEIGHTS.isdisjoint(words_of(path)) or any(map(_is_time, rest)):
        return False
    if words & (_REWARD - _REWARD_ONLY) and ordered[-1] not in _STATISTICS:
        return True
    if words & {"rewards", "scores"} and rest and rest <= OF_TURNS | {"per"}:
        return True
    return rest != words and not rest <= _STATISTICS | _TOTAL


def unlikelihood(path: str) -> int:
    """Return how unlikely it is that a path is a reward, from 0 (in an object of rewards) to 3."""
    if prefix_of(path):
        return 0
    return 1 if is_named_reward(path) else 2 if is_likely(path) else NEVER


def is_named_as_reward(path: str) -> bool:
    """Return whether a text field's name suggests one or all rewards."""
    if prefix := prefix_of(path):
        return name_in(path, prefix) is not None and not is_measures(prefix)
    return is_named_reward(path) or is_all_rewards(path)


def is_flag(path: str) -> bool:
    """Return whether a name, of a field of zeros and ones, states something about a reward."""
    rest = set(last_words(path)) - _REWARD
    return bool(rest) and rest <= _STATES


def fits_reward(path: str) -> bool:
    """Return whether the name of a field is one of a single reward."""
    named = is_named_reward(path) or bool(prefix_of(path))
    named = named or (is_vocabulary(path) and _WEIGHTS.isdisjoint(words_of(path)))
    return named and not (is_all_rewards(path) or may_be_total(path))


def may_be_text(path: str) -> bool:
    """Return whether a field's texts are read if they are texts of numbers."""
    return is_named_as_reward(path) or (is_likely(path) and is_vocabulary(path))


def is_all_rewards(path: str) -> bool:
    """Return whether the name suggests a field with all rewards, or with their total."""
    words = set(words_of(path))
    return bool(words & _REWARD) and words <= _REWARD | {"components"}


def is_container(name: str) -> bool:
    """Return whether an object with this name may contain rewards."""
    return _certainty(name) is not None


@lru_cache(maxsize=1024)
def _certainty(name: str) -> int | None:
    """Return the rank of an object name (0: most likely holds rewards), or None."""
    rest = set(words_of(name)) - _REWARD
    known = (*_CONTAINERS, _MEASURES)
    if rest & OF_TURNS and rest <= OF_TURNS | {"per"} and rest != set(words_of(name)):
        return len(known)
    if rest & _WEIGHTS or (rest and rest <= _STATISTICS):
        return None
    return next((place for place, each in enumerate(known) if each.fullmatch(name)), None)


def is_measures(prefix: str) -> bool:
    """Return whether a prefix belongs to an object with rewards and other numbers."""
    return _rank(prefix) == len(_CONTAINERS)


def _rank(prefix: str) -> int:
    """Return how unlikely an object with this prefix contains rewards, 0 for no object."""
    return _certainty(leaf_of(prefix[:-1])) or 0


def container_of(paths: Sequence[str]) -> str:
    """Return the prefix of the object that most likely contains rewards, or ""."""
    found = [p for path in paths if name_in(path, p := prefix_of(path)) is not None]
    return min(found, key=_rank, default="")


def prefix_of(path: str) -> str:
    """Return the prefix of the object around a path that most likely contains rewards, or ""."""
    ends = [place for place, letter in enumerate(path) if letter in "./"]
    sure = [(_certainty(leaf_of(path[:end])), path[: end + 1]) for end in ends]
    found = [(each, prefix) for each, prefix in sure if each is not None]
    return min(found, key=lambda pair: pair[0], default=(0, ""))[1]


def name_in(path: str, prefix: str) -> str | None:
    """Return the reward's name in an object, at any depth, or None if it is no reward."""
    if not prefix or not path.startswith(prefix) or len(path) == len(prefix):
        return None
    name = path[len(prefix) :]
    above, dot, last = name.rpartition(".")
    name = above if dot and above and last in _VALUES else name
    first, *inner = re.split(r"[./]", name)
    if is_measures(prefix):
        return None if inner or is_never(first) else name
    if inner and (not _NO_CHILDREN.isdisjoint((first, *inner)) or _is_monitor(inner[-1])):
        return None
    mixed = not _MIXED.isdisjoint(last_words(prefix[:-1]))
    return None if first.lower() in _IDS or (mixed and _is_monitor(first)) else name


def by_name(fields: Collection[str], numbers: Sequence[str]) -> dict[str, str]:
    """Return the field that each name of a reward means: the first of these that exists.

    The number at this path, the number with this name in the object that most likely contains
    rewards, the field at this path, or the field with this name in the likeliest object that has
    one.
    """
    named = dict[str, str]()
    for path in sorted(fields, key=lambda path: _rank(prefix_of(path))):
        named.setdefault(name_in(path, prefix_of(path)) or path, path)
    prefix = container_of(numbers)
    inside = {name: path for path in numbers if (name := name_in(path, prefix)) is not None}
    return named | {path: path for path in fields} | inside | {path: path for path in numbers}


def _is_monitor(name: str) -> bool:
    """Return whether a name in an object of rewards rules out a reward. `length` is allowed."""
    return is_never(name) and name.lower() not in _LENGTHS


def value_fields(paths: Sequence[str]) -> list[str]:
    """Return the paths, but only the value of an object that describes one reward."""
    parts = {path: path.rpartition(".") for path in paths}
    described = {above for above, _, name in parts.values() if name in _VALUES}
    described = {above for above in described if not is_container(leaf_of(above))}
    return [p for p, (above, _, name) in parts.items() if above not in described or name in _VALUES]


def weight_places(name: str, path: str) -> list[str]:
    """Return where the weight of a reward may be: in an object of weights, or beside its value.

    A reward that is called by its path has its weight under its short name, too.
    """
    above, _, leaf = path.rpartition(".")
    beside = [f"{above}.weight"] if "." in above or leaf in _VALUE_KEYS else []
    short = name_in(path, prefix_of(path)) if name == path else None
    names = [name] if short is None else [name, short]
    return [*(f"{each}.{known}" for each in WEIGHTS for known in names), *beside]


def names_reward(path: str) -> bool:
    """Return whether a name contains `reward` or `score`, or is a reward function's name."""
    words = last_words(path)
    return not _REWARD_ONLY.isdisjoint(words) or (bool(words) and words[-1] in _FUNCTION)


def is_likely(path: str) -> bool:
    """Return whether a number next to other fields may be a reward."""
    return not isinstance(path, Inner) and not is_never(path)


def is_vocabulary(path: str) -> bool:
    """Return whether a name contains a usual word for rewards."""
    return not _VOCABULARY.isdisjoint(last_words(path))


def is_never(path: str, *, lenient: bool = False) -> bool:
    """Return whether the name rules out a reward: a name of a length, time, count, flag or id.

    With `lenient`, a bare `length`, an `is_text` and the name of a reference do not rule it out.
    """
    name, words = leaf_of(path), last_words(path)
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
        or (bool(words) and words[-1] in _LENGTHS)
        or (len(words) > 1 and words[0] in {"num", "n", "count"} and words[1].isalpha())
        or (not named and bool({"has", "is", "was", "did", "flag"} & set(words[:1])))
        or (not named and not _REFERENCES.isdisjoint(words))
        or (not _REWARD.isdisjoint(words) and not is_total(path) and name not in GUESSES["total"])
    )


def may_be_total(path: str) -> bool:
    """Return whether the name suggests a total, such as `reward` or `total`."""
    prefix = prefix_of(path)
    if "." in path[len(prefix) :] or (not prefix and isinstance(path, Inner)):
        return False
    return is_total(path) or "_".join(last_words(path)) in GUESSES["total"]


def is_form(path: str) -> bool:
    """Return whether a name says that a number is a form of a reward, such as `raw_judge`."""
    return not (_RAW | _SHAPED).isdisjoint(last_words(path))


def _is_time(word: str) -> bool:
    return word.startswith("time") or word.endswith("time") or word in {"duration", "latency"}


def is_total(path: str) -> bool:
    """Return whether the name suggests a sum of rewards."""
    words = set(last_words(path)) - {"of", "all"}
    return bool(words & _TOTAL) and words <= _TOTAL | _REWARD


def leaf_of(path: str) -> str:
    """Return the last part of a path."""
    return re.split(r"[./]", path)[-1]


def words_of(name: str) -> list[str]:
    """Return a name's words in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


@lru_cache(maxsize=4096)
def last_words(path: str) -> Sequence[str]:
    """Return the words of a path's last part."""
    return tuple(words_of(leaf_of(path)))


def spread(value: Any, names: Any = None) -> dict[str, Any] | None:
    """Return the rewards in a list, pairs, named objects or JSON text by name, or None.

    Numbers in a list are named by `names` if there are as many names, or else numbered.
    """
    if isinstance(value, str):
        value = from_json(value)
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
    try:
        return isinstance(value, str) and isfinite(float(value))
    except ValueError:
        return False


def _named_values(items: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the values of objects such as `{"name": "style", "value": 0.5}` by name."""
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
    """Return whether a list has a value per completion of a record."""
    if not isinstance(value, list):
        return False
    size = len(cast("list[Any]", value))
    return any(
        isinstance(each := record.get(name), list) and len(cast("list[Any]", each)) == size
        for name in GUESSES["completion"]
        if name.endswith("s")
    )


def listed_names(record: Mapping[str, Any]) -> Any:
    """Return the list of reward names in a record, or None."""
    return next((record[name] for name in NAME_LISTS if isinstance(record.get(name), list)), None)
