"""Infers rewards and their weights from the numbers of a file, and checks each guess.

A guess from the name of a field is checked on the values of the first rollouts, and dropped if they
contradict it. If two readings are possible, the error names both.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from gdpo._shapes import Float, Int
from gdpo.rollouts.readers.names import (
    ALIASES,
    EARNED,
    GOLD,
    REFERENCES,
    Inner,
    Layout,
    base_of,
    container_of,
    fits_reward,
    form_of,
    is_all_rewards,
    is_earned_count,
    is_flag,
    is_likely,
    is_measures,
    is_named_reward,
    is_never,
    is_total,
    is_vocabulary,
    last_words,
    listed,
    may_be_total,
    name_in,
    names_reward,
    value_fields,
)

Values: TypeAlias = Float[np.ndarray, " rollout"]
LOOKED_AT = 4096
"""Number of rollouts at the start of a run, in one file or more, whose values are checked."""
_COMPARED = 2048
"""Number of rollouts to examine when a total is compared with its parts."""
_ADDED_UP = 24
"""Maximum number of numeric fields that may explain a total."""
Where: TypeAlias = Literal[
    "object", "named", "other", "every", "function", "logged", "total", "asked", "none"
]
_NAMED = "function"
"""Place of rewards that the format names, so that constant ones are rewards, too."""
_GUESSED = ("other", "every", "function")
"""Places of rewards whose names need not say that they are rewards."""
Reason: TypeAlias = Literal["name", "copy", "dataset", "weight 0", "constant", "list"]
"""Why a numeric field is not a reward: its name, a copy of another field, constant in every group,
without weight in the total, the same in all rollouts, or a list whose other form is read."""
_BECAUSE: Mapping[Reason, str] = {
    "name": "not rewards: ",
    "copy": "copies of other numbers: ",
    "dataset": "constant in every group, so they belong to the dataset: ",
    "weight 0": "without weight in the total: ",
    "constant": "constant, so no rewards (to read them, add them to --rewards): ",
    "list": "read in another form (the values or the sum of a list): ",
}
_ENOUGH = 16
"""Number of rollouts from which values can contradict or confirm a guess."""
_ENOUGH_TO_DENY = 64
"""Number of rollouts from which values can show that a number contains no other number."""
_ZERO_OR_ONE = {0.0, 1.0}
_DEPENDENT = 1e-5
"""Relative size of a singular value below which fields depend linearly on each other."""
_ENOUGH_GROUPS = 8
"""A field that is constant in each of at least this many groups belongs to the dataset."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Stores the numbers of the first rollouts of a run."""

    numbers: Mapping[str, Values]
    """Values by path. NaN means that a value is missing."""
    groups: Int[np.ndarray, " rollout"]


@dataclass(frozen=True, slots=True)
class Inferred:
    """Stores which numeric fields of a file are rewards, and why."""

    kind: Where = "none"
    """Where the rewards are: in an object, named as rewards, other numbers, all numbers of a format
    (`function`: under the names of functions), as a log names them, only a scalar reward, or where
    the user says."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    prefix: str = ""
    total: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weight of each reward in the total, by name. Empty if unknown."""
    zeros: frozenset[str] = frozenset()
    """Rewards that count as 0 where they are missing, because the total adds nothing there."""
    constant: float = 0.0
    """What the total contains besides the weighted rewards."""
    rounding: float = 0.0
    """Largest difference between total and sum that rounding can explain."""
    left_out: Mapping[str, Reason] = field(default_factory=dict[str, Reason])
    constants: Mapping[str, float] = field(default_factory=dict[str, float])
    """Value of each field that is left out because it is constant."""
    copied: tuple[tuple[str, str], ...] = ()
    """Fields named `reward` or `score` that repeat another field, with that field."""
    contradicts: str = ""
    """Name of a total that shows that the assumed weights of the rewards are wrong, if any."""
    refused: str = ""
    """Reason why the rewards cannot be inferred. Empty if they were."""
    choices: tuple[tuple[str, ...], ...] = ()
    """Readings that the file leaves open, each as a list of rewards."""

    @property
    def how(self) -> str:
        """Phrase about the rewards, for the summary."""
        where = {
            "object": f"the numbers in {self.prefix[:-1]!r}",
            "named": "the numbers named as rewards or scores",
            "other": "the numbers whose names fit a reward",
            "every": "all numeric components",
            "function": f"the columns {listed(self.names)}, named after reward functions; if some "
            "are not rewards, name the rewards (--rewards)",
            "logged": f"the columns {listed(self.names)}, as the trainer's log names them "
            "(trainer_state.json)",
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
            name = name_in(path, self.prefix)
            return None if name is None or name.isdecimal() else name
        fits = {
            "named": is_named_reward(path),
            "other": is_likely(path),
            "every": not is_never(path),
            "function": not is_never(path, lenient=True),
        }.get(self.kind, False)
        return path if fits and (self.kind == "function" or not is_total(path)) else None


NOT_INFERRED = Inferred()


def passed_over(left_out: Mapping[str, Reason]) -> str:
    """Return the end of a phrase, with the numeric fields not read as rewards."""
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
    """Return the rewards among the numeric fields of a file, each guess checked against the values.

    The rewards are the first of the following groups that exists: the numbers in the object that
    most likely contains rewards, the numbers whose names suggest rewards, the numbers in an object
    of metrics, and the other numbers whose names fit a reward. A number named as a total is their
    total only if they explain it.

    `texts` are the fields whose names suggest rewards, but whose values are not numbers. With
    `kind` `every` or `function`, all numbers are rewards unless their names or values rule it out.
    `described`: the user has named the columns that are not rewards.
    """
    out = _other_forms(sample.numbers) | _flags(sample.numbers, kind)
    numbers = {path: values for path, values in sample.numbers.items() if path not in out}
    taken = known.taken() - {known.total}
    free = [p for p in numbers if p not in taken and np.isfinite(numbers[p]).any()]
    empty = [p for p in numbers if p not in (*known.taken(), *free)]
    totals, copied = _totals(free, numbers, known)
    rest = [path for path in free if path not in totals and path not in copied]
    out |= dict.fromkeys(_constants(rest, numbers, kind), "constant")
    kind, prefix, parts = _parts(_candidates(rest, empty, kind, out), kind)
    unread = [path for path in texts if is_all_rewards(path)]
    if (unread and kind == "other") or (texts and not parts and not totals):
        how = "write one number per reward and one line per rollout"
        return Inferred(refused=f"{listed(unread or texts)} cannot be read as numbers: {how}")
    out |= dict.fromkeys(copied, "copy")
    sure = kind == "named" or (kind == "object" and not is_measures(prefix))
    others = [p for p in rest if p not in (*parts, *out)]
    others = [path for path in others if is_likely(path) or is_earned_count(path)]
    for paths in (parts, others):
        of_parts = paths is parts
        kept = [*totals, *(p for p in parts if p not in out and not of_parts)]
        free = [path for path in paths if path not in out]
        out |= _ruled_out_by_values(free, sample, kept, sure=sure and of_parts, parts=of_parts)
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
        constants={p: float(np.nanmax(numbers[p])) for p in out if out[p] == "constant"},
        prefix=prefix,
        copied=repeated,
        contradicts=_contradicted(found, numbers),
    )


def _ruled_out_by_values(
    paths: Sequence[str], sample: Sample, kept: Sequence[str], *, sure: bool, parts: bool
) -> dict[str, Reason]:
    doubtful = [
        p for p in paths if not GOLD.isdisjoint(last_words(p)) or not (sure or is_named_reward(p))
    ]
    out: dict[str, Reason] = {
        path: why for path in doubtful if (why := _ruled_out(path, sample)) is not None
    }
    free = [path for path in paths if path not in out]
    return out | _copies(free, sample.numbers, kept, sure=sure, parts=parts)


def _without_idle(found: Inferred, sample: Sample) -> Inferred:
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
    named = [known.total] if known.total is not None and known.total in numbers else []
    named += [p for p in free if p != known.total and may_be_total(p)]
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


def _other_forms(numbers: Mapping[str, Values]) -> dict[str, Reason]:
    """Return the positions of lists that are added up, and the sums of the other lists.

    A list has a value for each turn, unless it is named `rewards` and has one length.
    """
    lists: dict[str, list[str]] = {}
    for path in numbers:
        above, _, place = path.rpartition(".")
        if above in numbers and place.isdecimal():
            lists.setdefault(above, []).append(path)
    out: dict[str, Reason] = {}
    for above, places in lists.items():
        there = np.isfinite([numbers[place] for place in places])
        added_up = not is_all_rewards(above) or bool(np.any(there != there[0]))
        out |= dict.fromkeys(places if added_up else [above], "list")
    return out


def _flags(numbers: Mapping[str, Values], kind: Where) -> dict[str, Reason]:
    named = [path for path in numbers if kind != _NAMED and is_flag(path)]
    return {path: "name" for path in named if set(numbers[path].tolist()) <= _ZERO_OR_ONE}


def _constants(rest: Sequence[str], numbers: Mapping[str, Values], kind: Where) -> list[str]:
    """Return the fields that are the same in all of enough rollouts, if a reward varies."""
    varying = {path for path in rest if _varies(np.nan_to_num(numbers[path]))}
    if kind == _NAMED or not any(map(fits_reward, varying)):
        return []
    same = [p for p in rest if p not in varying and (fits_reward(p) or is_likely(p))]
    return [path for path in same if int(np.isfinite(numbers[path]).sum()) >= _ENOUGH]


def _candidates(
    rest: Sequence[str], empty: Sequence[str], kind: Where, out: Collection[str]
) -> list[str]:
    """Return the fields that may be rewards, also without a value if their names fit."""
    named = [path for path in empty if kind != "none" or fits_reward(path)]
    return [path for path in (*rest, *named) if path not in out]


def _parts(rest: Sequence[str], kind: Where) -> tuple[Where, str, list[str]]:
    if kind != "none":
        return kind, "", [p for p in rest if not is_never(p, lenient=kind == "function")]
    prefix = container_of(rest)
    named = [path for path in rest if is_named_reward(path)]
    if prefix and not (is_measures(prefix) and any(not p.startswith(prefix) for p in named)):
        return "object", prefix, value_fields([p for p in rest if name_in(p, prefix) is not None])
    others = [path for path in rest if path not in named and is_likely(path)]
    if named and (any(map(names_reward, named)) or not any(map(is_vocabulary, others))):
        return "named", "", named
    return "other", "", [p for p in rest if is_likely(p) and not isinstance(p, Inner)]


def _ruled_out(path: str, sample: Sample) -> Reason | None:
    """Return why the values of a field without a name of a reward rule it out, or None."""
    values = sample.numbers[path]
    # A task that is solved always or never makes a reward constant in every group.
    earned = not EARNED.isdisjoint(last_words(path))
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
    enough = enough if REFERENCES.isdisjoint(last_words(path)) else 1
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
    """Return the fields that repeat another. Rewards by name repeat only forms of one."""
    out: dict[str, Reason] = {}
    order = sorted(paths, key=lambda path: _order(path, totalled=bool(before)))
    for place, path in enumerate(order):
        for kept in (*before, *order[:place]):
            if kept in out:
                continue
            alike = base_of(path) == base_of(kept) and form_of(path) != form_of(kept)
            marked = kept in before and form_of(path) != 1
            # A part that repeats the total may be the only part of it.
            guessed = not (sure or is_named_reward(path) or (parts and kept in before))
            if (alike and _is_monotone(numbers[path], numbers[kept])) or (
                (marked or guessed) and _is_copy(numbers[path], numbers[kept])
            ):
                out[path] = "copy"
                break
    return out


def _order(path: str, *, totalled: bool) -> tuple[int, bool, bool]:
    form = {0: 1, 1: 0, 2: 2}[form_of(path)] if totalled else form_of(path)
    return form, not is_named_reward(path), "_".join(last_words(path)) in ALIASES


@dataclass(frozen=True, slots=True)
class _Candidates:
    kind: Where
    prefix: str
    parts: list[str]
    others: list[str]
    totals: list[str]
    rest: list[str]
    """All numbers that have no other meaning and are not named as a total."""
    numbers: Mapping[str, Values]
    left_out: Mapping[str, Reason]
    described: bool

    @property
    def doubtful(self) -> list[str]:
        """Fields that are rewards by their names, and others with usual names of rewards."""
        return [*self.parts, *filter(is_vocabulary, self.others)]

    def found(
        self, paths: Sequence[str], fit: "Fit | None" = None, total: str | None = None
    ) -> Inferred:
        names = {name_in(path, self.prefix) or path: path for path in paths}
        if fit is None or not fit.enough:
            return Inferred(self.kind, names, self.prefix, total)
        if not fit.unique:
            carrying = [path for path in paths if fit.weight(path) != 0]
            why = f"several sets of weights of {listed(carrying)} give {total!r}"
            return self.refused(why, *_independent(carrying, self.numbers), self.totals[:1])
        guessed = [path for path in paths if self.kind in _GUESSED]
        idle: dict[str, Reason] = {path: "weight 0" for path in guessed if fit.weight(path) == 0}
        names = {name: path for name, path in names.items() if path not in idle}
        zeros = frozenset(name for name, path in names.items() if path in fit.zeros)
        weights = {name: fit.weight(path) for name, path in names.items()}
        assert total is not None, "weights require a total"
        numbers = (_besides(total, names, weights, self.numbers), fit.rounding)
        return Inferred(self.kind, names, self.prefix, total, weights, zeros, *numbers, idle)

    def scalar(self) -> Inferred:
        return Inferred("total", {self.totals[0]: self.totals[0]}, total=self.totals[0])

    def refused(self, why: str, *choices: Sequence[str]) -> Inferred:
        named = [tuple(name_in(p, self.prefix) or p for p in each) for each in choices if each]
        return Inferred(refused=why, choices=tuple(dict.fromkeys(named)))


def _settled(found: _Candidates) -> Inferred:
    if not found.totals:
        return _without_total(found)
    if not _varies(found.numbers[found.totals[0]]):
        return _by_names(found) if found.parts else found.scalar()
    for total in sorted(found.totals, key=lambda path: not is_total(path)):
        if (inferred := _explained_by(found, total)) is not None:
            return inferred
    return _unexplained(found)


def _explained_by(found: _Candidates, total: str) -> Inferred | None:
    also = [path for path in found.totals if path != total and not is_total(path)]
    known = {*found.parts, *found.others, *found.totals, *found.left_out}
    monitors = [path for path in found.numbers if path not in known]
    groups = found.parts, also, found.others, monitors
    for pool, fit, carrying in _fits(groups, found.numbers, total):
        if not (fit.enough or pool == found.parts):
            continue
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
    """Return what a number named as a total is, if the others do not explain it."""
    total, parts = found.totals[0], found.parts
    guessed = found.kind in _GUESSED
    if not parts or (guessed and len(parts) < 2 and not any(map(is_vocabulary, parts))):
        return found.scalar()
    if found.kind != "other" and int(np.isfinite(found.numbers[total]).sum()) < _ENOUGH:
        return found.found(parts)
    few = int(np.isfinite(found.numbers[total]).sum()) < _ENOUGH_TO_DENY
    more = found.doubtful
    apart = not few and not any(
        is_total(each) or any(_contains(found.numbers[each], found.numbers[p]) for p in more)
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
    parts, numbers = found.parts, found.numbers
    if not parts:
        return found.refused("no number has a name that fits a reward")
    if found.kind in ("every", "function"):
        return found.found(parts)
    weak = found.kind == "other" or is_measures(found.prefix)
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
    parts = found.parts
    known = [path for path in parts if is_vocabulary(path)]
    more = [path for path in found.others if is_vocabulary(path)]
    if found.kind == "other" and len(known) < len(parts) and not found.described:
        unknown = [path for path in parts if path not in known]
        why = f"the names of {listed(unknown)} do not show whether they are rewards"
        return found.refused(why, parts, known, found.totals[:1])
    if more and found.kind in ("named", "other"):
        why = f"{listed(more)} may be rewards too, or only logged"
        return found.refused(why, parts, [*parts, *more])
    return found.found(parts)


def _with_total_of_any_name(found: _Candidates) -> Inferred | None:
    """Return the rewards if another number, whatever its name, is their weighted sum, or None."""
    numbers = found.numbers
    varying = [path for path in found.parts if _varies(numbers[path])]
    others = [path for path in found.rest if path not in found.parts]
    for total in [path for path in others if not is_vocabulary(path)]:
        others = [path for path in found.others if path != total]
        monitors = [p for p in found.rest if p not in (total, *others, *found.parts)]
        for pool, fit, carrying in _fits((found.parts, others, monitors), numbers, total):
            if fit.certain and len(carrying) > 1 and set(varying) <= set(carrying):
                used = [path for path in pool if path in found.parts or path in carrying]
                return found.found(used, fit, total)
    return None


def _fits(
    groups: Iterable[Sequence[str]], numbers: Mapping[str, Values], total: str
) -> Iterator[tuple[list[str], "Fit", list[str]]]:
    """Yield fields that explain a total, more and more of them, how, and those with a weight."""
    pool = list[str]()
    for more in groups:
        pool = [*pool, *more]
        fit = explained(pool, numbers, total) if more else None
        if fit is not None:
            yield pool, fit, [path for path in pool if fit.weights.get(path, 0.0) != 0]


@dataclass(frozen=True, slots=True)
class Fit:
    """Stores the weights with which fields add up to a total, up to a constant."""

    weights: Mapping[str, float]
    zeros: frozenset[str]
    """Fields that are missing in some rollouts, where they add nothing to the total."""
    rounding: float
    """Largest difference between total and sum that rounding can explain."""
    enough: bool
    """Whether there are enough rollouts to trust the weights."""
    unique: bool
    """Whether no other weights give the same total."""
    certain: bool
    """Whether the fields take enough different values to rule out a coincidence."""

    def weight(self, path: str) -> float:
        """Return the weight of a field, 1 if unknown."""
        return self.weights.get(path, 1.0)


def explained(paths: Sequence[str], numbers: Mapping[str, Values], total: str) -> Fit | None:
    """Return the weights with which fields explain a total, or None if they do not.

    The total must be their weighted sum plus a constant, up to the rounding of the numbers. A field
    that is missing in some rollouts has weight 0 if the weights of the others are unique without
    it, and no other such field can be left out instead.
    """
    fit = _fit(paths, numbers, total)
    if fit is None or fit.unique:
        return fit
    left_out = {each: _fit([p for p in paths if p != each], numbers, total) for each in fit.zeros}
    alone = {each: one for each, one in left_out.items() if one is not None and one.unique}
    for each, one in alone.items() if len(alone) == 1 else ():
        return replace(one, weights={**one.weights, each: 0.0})
    return fit


def _fit(paths: Sequence[str], numbers: Mapping[str, Values], total: str) -> Fit | None:
    rows = np.flatnonzero(np.isfinite(numbers[total]))
    rows = rows[:: max(1, len(rows) // _COMPARED)]
    varying = [p for p in paths if _varies(np.nan_to_num(numbers[p][rows]))]
    if not 0 < len(varying) <= min(_ADDED_UP, len(rows) - 1):
        return None
    enough = len(rows) >= max(_ENOUGH, 3 * len(varying) + 3)
    whole = numbers[total][rows]
    columns = [numbers[path][rows] for path in varying]
    added = np.nan_to_num(np.stack(columns, axis=-1), posinf=0, neginf=0)
    shift, middle = (added.mean(axis=0), whole.mean()) if enough else (0.0, 0.0)
    centred = added - shift
    size = np.abs(centred).max(axis=0)
    if max(size.max(), np.abs(whole).max()) > 1e30:
        return None
    design = centred / size
    weights = np.linalg.lstsq(design, whole - middle, rcond=_DEPENDENT)[0] / size
    error = whole - middle - centred @ weights
    rounding = _rounding(whole) + float(np.abs(weights) @ list(map(_rounding, columns)))
    if np.abs(error).max() >= min(1.25 * rounding, 0.1 * float(np.std(whole))):
        return None
    weights = _rounded(weights, added, whole)
    carrying = design[:, weights != 0]
    unique = int(np.linalg.matrix_rank(carrying, rtol=_DEPENDENT)) == carrying.shape[1]
    different = len(np.unique(added, axis=0))
    return Fit(
        {path: float(w) for path, w in zip(varying, weights, strict=False)},
        frozenset(p for p, c in zip(varying, columns, strict=True) if not np.isfinite(c).all()),
        1.25 * rounding,
        enough,
        unique or not enough,
        enough and unique and different > len(varying) + 1,
    )


def _independent(
    paths: Sequence[str], numbers: Mapping[str, Values]
) -> tuple[list[str], list[str]]:
    """Return the fields that do not follow from earlier ones, in this order and in reverse."""

    def kept(order: Sequence[str]) -> list[str]:
        found = list[str]()
        for path in order:
            if explained(found, numbers, path) is None:
                found.append(path)
        return [path for path in paths if path in found]

    return kept(paths), kept(paths[::-1])


def _besides(
    total: str,
    paths: Mapping[str, str],
    weights: Mapping[str, float],
    numbers: Mapping[str, Values],
) -> float:
    """Return what a total contains besides its weighted rewards, by name."""
    rows = np.isfinite(numbers[total])
    known = [(weights[name], numbers[path]) for name, path in paths.items() if path in numbers]
    added = sum((w * np.nan_to_num(values[rows]) for w, values in known), np.zeros(int(rows.sum())))
    return float(np.median(numbers[total][rows] - added))


def _rounding(values: Values) -> float:
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
    """Return whether a number may contain a part: whether its values depend on it."""
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
    """Return whether one field rises, or falls, or stays the same whenever another one rises."""
    if not np.array_equal(np.isfinite(one), np.isfinite(other)) or len(one) < _ENOUGH:
        return False
    order = np.lexsort((one, other))
    steps, steps_of = np.diff(one[order]), np.diff(other[order])
    level = steps[steps_of == 0]
    rising = bool(np.all(steps >= 0)) or bool(np.all(steps[steps_of > 0] <= 0))
    coarser = len(np.unique(one)) < len(np.unique(other))
    return rising and (coarser or bool(np.all(level == 0)))


def named_by_log(numbers: Iterable[str], names: Sequence[str]) -> Inferred:
    """Return the rewards that the trainer's log names."""
    left_out: dict[str, Reason] = dict.fromkeys((n for n in numbers if n not in names), "name")
    return Inferred("logged", {name: name for name in names}, left_out=left_out)


def named_by_user(sample: Sample, known: Layout, asked: Sequence[str]) -> Inferred:
    """Return the rewards that the user named, with weights if a number is their total."""
    paths = resolved(asked, list(sample.numbers))
    other = {*paths.values(), *_other_forms(sample.numbers)}
    named = [p for p in sample.numbers if p not in other and (p == known.total or may_be_total(p))]
    for total in sorted(named, key=lambda path: path != known.total):
        fit = explained([p for p in paths.values() if p in sample.numbers], sample.numbers, total)
        if fit is None or not (fit.enough and fit.unique):
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
    """Return a number that is a total by its name and contains a reward, but is not the sum."""
    parts = [numbers[path] for path in paths.values() if path in numbers]
    for total in dict.fromkeys(filter(may_be_total, named)):
        enough = np.isfinite(numbers[total]).sum() >= _ENOUGH and _varies(numbers[total])
        if enough and any(_contains(numbers[total], part) for part in parts):
            return total
    return ""


def resolved(asked: Sequence[str], paths: Iterable[str]) -> dict[str, str]:
    """Return the paths of requested rewards."""
    paths = list(paths)
    prefix = container_of(paths)
    inside = {name: p for p in paths if prefix and (name := name_in(p, prefix))}
    return {name: name if name in paths else inside.get(name, name) for name in asked}
