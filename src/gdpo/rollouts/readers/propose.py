"""Proposes which numbers of a file are rewards. This is the only guess of the readers.

A proposal stands for options of the command: `--rewards` and `--columns total=NAME`. A file that is
read with these options is read in the same way. The proposal comes
from the names of the fields, and is checked on the values of the first rollouts. If several
readings are possible, none is proposed, and the refusal names each of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from gdpo._shapes import Float, Int
from gdpo._text import Remedy, Setting, advice
from gdpo.rewards.gates import Range
from gdpo.rollouts.readers.names import (
    EARNED,
    GOLD,
    NOTHING_KNOWN,
    OF_TURNS,
    Layout,
    container_of,
    fits_reward,
    is_all_rewards,
    is_flag,
    is_form,
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
from gdpo.rollouts.table import Values

LOOKED_AT = 4096
"""Number of rollouts at the start of a run, in one file or more, whose values are checked."""
MOST = 64
"""Maximum number of rewards to infer from a file. Each reward adds a column for all rollouts."""
_COMPARED = 2048
"""Number of rollouts to examine when a total is compared with its parts."""
_ADDED_UP = 24
"""Maximum number of numeric fields that may explain a total."""
Where: TypeAlias = Literal[
    "object",
    "named",
    "other",
    "every",
    "function",
    "logged",
    "total",
    "asked",
    "format",
    "weighted",
    "scalar",
    "record",
    "rescored",
    "none",
]
GUESSED = frozenset({"object", "named", "other", "every", "function", "logged", "total"})
"""Places of rewards that neither the user nor the format states."""
SCALAR = ("total", "scalar")
"""Places of the only reward of a file."""
_NAMED = "function"
"""Place of rewards that the format names, so that constant ones are rewards, too."""
_GUESSED = ("other", "every", "function")
"""Places of rewards whose names need not say that they are rewards."""
Numbers: TypeAlias = Mapping[str, Values]
"""The numbers of each column or field in the first rows."""
Reason: TypeAlias = Literal["name", "dataset", "weight 0", "constant", "list"]
"""Why a numeric field is not a reward: its name, constant in every group, without weight in the
total, the same in all rollouts, or a list whose other form is read."""
_BECAUSE: Mapping[Reason, str] = {
    "name": "not rewards: ",
    "dataset": "constant in every group, so they belong to the dataset: ",
    "weight 0": "without weight in the total: ",
    "constant": "constant at first, so rewards only if they are named: ",
    "list": "read in another form (the values or the sum of a list): ",
}
_ENOUGH = 16
"""Number of rollouts from which values can contradict or confirm a proposal."""
_ZERO_OR_ONE = {0.0, 1.0}
_DEPENDENT = 1e-5
"""Relative size of a singular value below which fields depend linearly on each other."""
_EXACT = 1e-3
"""Largest difference between a total and a sum, in standard deviations of the total."""
_ENOUGH_GROUPS = 8
"""A field that is constant in each of at least this many groups belongs to the dataset."""


@dataclass(frozen=True, slots=True)
class InTotal:
    """Stores the weights with which rewards add up to a total, up to a constant."""

    total: str
    weights: Mapping[str, float]
    """Weight of each reward by name."""
    zeros: frozenset[str]
    """Rewards that count as 0 where they are missing, because the total adds nothing there."""
    constant: float
    """What the total contains besides the weighted rewards."""
    tolerance: float
    """Largest difference between total and sum."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Stores which numeric fields of a file are rewards, and why."""

    kind: Where = "none"
    """Where the rewards are: in an object, named as rewards, other numbers, all numbers of a format
    (`function`: under the names of functions), as a log names them, only a scalar reward, or where
    the user or the format says."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Path of each reward by name."""
    prefix: str = ""
    total: str | None = None
    in_total: InTotal | None = None
    """Weights of the rewards in a total. None if they are unknown."""
    left_out: Mapping[str, Reason] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    """Fields that are named as rewards and contain text."""
    refused: str = ""
    """Reason why no rewards are proposed. Empty if they are."""
    choices: tuple[tuple[str, ...], ...] = ()
    """Readings that the file leaves open, each as a list of rewards."""
    meant: Mapping[str, str] = field(default_factory=dict)
    """Field of the first rollouts that each name means in an option."""
    groups: str = ""
    """`BY_BOTH` or `BY_PROMPT` if the first prompts contradict the group ids, or else empty."""

    def how(self, *, options: bool = False) -> str:
        """Return a phrase about the rewards, with the argument for others, or the option."""
        remedy: Remedy = {"if some are not rewards, name the rewards": Setting.REWARDS}
        unsure = advice(remedy, options=options)
        columns = listed(self.names) if self.kind in ("function", "logged") else ""
        where = {
            "object": f"the numbers in {self.prefix[:-1]!r}",
            "named": "the numbers named as rewards or scores",
            "other": "the numbers whose names fit a reward",
            "every": "all numeric components",
            "function": f"the columns {columns}, named after reward functions; {unsure}",
            "logged": f"the columns {columns}, as the trainer's log names them "
            "(trainer_state.json)",
            "total": "scalar reward only: no other number is named as a reward, and no numbers "
            "add up to it",
            "asked": "as given",
            "format": "all numeric components",
            "weighted": "as the files name them, with weights",
            "scalar": "scalar reward only: the files contain no reward components",
            "record": "as recorded by gdpo",
            "rescored": "rescored",
            "none": "",
        }[self.kind]
        if self.kind == "other" and self.total is not None:
            where = f"the numbers that add up to {self.total!r}, with weights"
        elif self.total is not None and self.kind in GUESSED - {"total"}:
            where += f"; {self.total!r} is their total"
        phrases = [
            f"; {because}" + listed([path for path, why in self.left_out.items() if why == each])
            for each, because in _BECAUSE.items()
            if each in self.left_out.values()
        ]
        return where + "".join(phrases)

    def name_of(self, path: str) -> str | None:
        """Return the name of the reward at a path, which may first occur later, or None."""
        known = next((name for name, known in self.names.items() if known == path), None)
        if known is not None or path in self.left_out or path == self.total:
            return known
        if self.kind in ("object", "asked"):
            name = name_in(path, self.prefix)
            if name is None or (self.kind == "object" and name.isdecimal()):
                return None
            called = name if self.meant.get(name, path) == path else path
            # A requested reward that no field had yet stands for its own path.
            return called if self.kind == "object" or self.names.get(called) == called else None
        fits = {
            "named": is_named_reward(path),
            "other": is_likely(path),
            "every": not is_never(path),
            "function": not is_never(path, lenient=True),
            **dict.fromkeys(("format", "weighted", "scalar"), True),
        }.get(self.kind, False)
        may_be = self.kind in ("function", "format", "weighted", "scalar") or not is_total(path)
        return path if fits and may_be else None


NOTHING_MEANT: Mapping[str, str] = {}
NOTHING_PROPOSED = Proposal()


@dataclass(frozen=True, slots=True)
class Given:
    """Stores what a file is read with. All of it could be options of the user."""

    known: Layout
    """Column of each meaning."""
    scalar: str | None = None
    """Name of the scalar reward of a record. `known.total` may be another number."""
    rewards: Proposal = NOTHING_PROPOSED
    names: Mapping[str, str] = field(default_factory=dict)
    """Path of each reward by name. A reward of the run counts from the first file that names it: in
    later files that do not, it is missing."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Ranges that the file declares, by reward name."""


NOTHING_GIVEN = Given(NOTHING_KNOWN)


def propose(
    numbers: Numbers,
    groups: Int[np.ndarray, " rollout"],
    *,
    known: Layout,
    meant: Mapping[str, str] = NOTHING_MEANT,
    texts: Sequence[str] = (),
    kind: Where = "none",
    described: bool = False,
) -> Proposal:
    """Return the rewards among the numeric fields of the first rollouts of a run.

    `numbers` are the values of each field, NaN where missing, and `groups` those of the rollouts.

    The rewards are the first of the following groups that exists: the numbers in the object that
    most likely contains rewards, the numbers whose names suggest rewards, the numbers in an object
    of metrics, and the other numbers whose names fit a reward. A number named as a total is their
    total only if they explain it.

    `meant` is the field that each name means in an option: a reward whose short name means another
    field is called by its path.

    `texts` are the fields whose names suggest rewards, but whose values are not numbers. With
    `kind` `every` or `function`, all numbers are rewards unless their names or values rule it out.
    `described`: the user has named the columns that are not rewards.
    """
    out = _other_forms(numbers)
    flags = [path for path in numbers if kind != _NAMED and is_flag(path)]
    out |= {path: "name" for path in flags if set(numbers[path].tolist()) <= _ZERO_OR_ONE}
    numbers = {path: values for path, values in numbers.items() if path not in out}
    places = {*known.places().values()}
    taken = places - {known.total}
    free = [p for p in numbers if p not in taken and np.isfinite(numbers[p]).any()]
    empty = [p for p in numbers if p not in (*places, *free)]
    totals = _totals(free, numbers, known)
    rest = [path for path in free if path not in totals]
    out |= dict.fromkeys(_constants(rest, numbers, kind), "constant")
    null = [path for path in empty if kind != "none" or fits_reward(path)]
    kind, prefix, parts = _parts([path for path in (*rest, *null) if path not in out], kind)
    unread = [path for path in texts if is_all_rewards(path)]
    if (unread and kind == "other") or (texts and not parts and not totals):
        how = "write one number per reward and one line per rollout"
        return Proposal(refused=f"{listed(unread or texts)} cannot be read as numbers: {how}")
    others = [p for p in rest if p not in (*parts, *out) and is_likely(p)]
    sure = kind == "named" or (kind == "object" and not is_measures(prefix))
    for path in (*parts, *others):
        told = (sure and path in parts) or is_named_reward(path)
        gold = not GOLD.isdisjoint(last_words(path))
        if (not told or gold) and _is_of_dataset(path, numbers[path], groups):
            out[path] = "dataset"
    parts = [path for path in parts if path not in out]
    others = [path for path in others if path not in out]
    found = _settled(
        _Candidates(kind, prefix, parts, others, totals, numbers, out, described, meant)
    )
    if found.refused:
        return found
    taken = {*found.names.values(), found.total}
    unused = [*rest, *empty, *(path for path in totals if _varies(numbers[path]))]
    left: dict[str, Reason] = {path: "name" for path in unused if path not in taken}
    return replace(found, left_out={**left, **out, **found.left_out})


def _totals(free: Sequence[str], numbers: Numbers, known: Layout) -> list[str]:
    named = [known.total] if known.total is not None and known.total in numbers else []
    named += [path for path in free if path != known.total and may_be_total(path)]
    varying = [path for path in named if _varies(numbers[path])]
    # A constant scalar is a reward only if there is no other.
    return varying or [path for path in named[:1] if np.isfinite(numbers[path]).any()]


def _other_forms(numbers: Numbers) -> dict[str, Reason]:
    """Return the positions of lists that are added up, and the sums of the other lists.

    A list has a value for each turn if its name says so, or its length varies.
    """
    lists: dict[str, list[str]] = {}
    for path in numbers:
        above, _, place = path.rpartition(".")
        if above in numbers and place.isdecimal():
            lists.setdefault(above, []).append(path)
    out: dict[str, Reason] = {}
    for above, places in lists.items():
        there = np.isfinite([numbers[place] for place in places])
        of_turns = not OF_TURNS.isdisjoint(last_words(above))
        added_up = of_turns or bool(np.any(there != there[0]))
        out |= dict.fromkeys(places if added_up else [above], "list")
    return out


def _constants(rest: Sequence[str], numbers: Numbers, kind: Where) -> list[str]:
    """Return the fields that are the same in all of enough rollouts, if a reward varies."""
    varying = {path for path in rest if _varies(np.nan_to_num(numbers[path]))}
    if kind == _NAMED or not any(map(fits_reward, varying)):
        return []
    same = [p for p in rest if p not in varying and (fits_reward(p) or is_likely(p))]
    return [path for path in same if int(np.isfinite(numbers[path]).sum()) >= _ENOUGH]


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
    return "other", "", [p for p in rest if is_likely(p)]


def _is_of_dataset(path: str, values: Values, groups: Int[np.ndarray, " rollout"]) -> bool:
    """Return whether a field is constant in every group, but not in all rollouts."""
    # A task that is solved always or never makes a reward constant in every group.
    earned = not EARNED.isdisjoint(last_words(path))
    if not _varies(values) or (earned and len(np.unique(values[np.isfinite(values)])) < 3):
        return False
    known = np.isfinite(values)
    _, group = np.unique(groups[known], return_inverse=True)
    size = np.bincount(group)
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, group, values[known])
    np.maximum.at(high, group, values[known])
    several = size > 1
    # A reward of two values is constant in a group by chance more often.
    enough = _ENOUGH_GROUPS * (4 if len(np.unique(low[several])) < 3 else 1)
    return bool(np.all(low[several] == high[several])) and int(np.sum(several)) >= enough


@dataclass(frozen=True, slots=True)
class _Candidates:
    kind: Where
    prefix: str
    parts: list[str]
    """Fields that are rewards by their place or names."""
    others: list[str]
    """Further numbers that may be rewards."""
    totals: list[str]
    numbers: Numbers
    left_out: Mapping[str, Reason]
    described: bool
    meant: Mapping[str, str]
    """As in `Proposal`."""

    @property
    def doubtful(self) -> list[str]:
        """Fields that are rewards by their names, and others with usual names of rewards."""
        return [*self.parts, *filter(is_vocabulary, self.others)]

    def found(
        self, paths: Sequence[str], total: str | None = None, idle: Sequence[str] = ()
    ) -> Proposal:
        short = {name_in(path, self.prefix) or path: path for path in paths if path not in idle}
        names = {
            name if self.meant.get(name, path) == path else path: path
            for name, path in short.items()
        }
        left_out: dict[str, Reason] = dict.fromkeys(idle, "weight 0")
        return Proposal(self.kind, names, self.prefix, total, left_out=left_out, meant=self.meant)

    def scalar(self) -> Proposal:
        return Proposal("total", {self.totals[0]: self.totals[0]}, total=self.totals[0])

    def refused(self, why: str, *choices: Sequence[str]) -> Proposal:
        named = [tuple(self.found(each).names) for each in choices if each]
        return Proposal(refused=why, choices=tuple(dict.fromkeys(named)))


def _settled(found: _Candidates) -> Proposal:
    if not found.totals:
        return _without_total(found)
    if not _varies(found.numbers[found.totals[0]]):
        return _by_names(found) if found.parts else found.scalar()
    readings = [found]
    if found.kind == "named" and all(map(is_form, found.parts)):
        # `scaled_reward` may be the total once more.
        readings.insert(0, replace(found, kind="other", parts=found.others, others=found.parts))
    for total in sorted(found.totals, key=lambda path: not is_total(path)):
        for reading in readings:
            if (proposal := _explained_by(reading, total)) is not None:
                return proposal
    return _unexplained(found)


def _explained_by(found: _Candidates, total: str) -> Proposal | None:
    """Return the rewards whose weighted sum a total is, or None if it is no such sum."""
    also = [path for path in found.totals if path != total and not is_total(path)]
    known = {*found.parts, *found.others, *found.totals, *found.left_out}
    monitors = [path for path in found.numbers if path not in known]
    guessed = found.kind in _GUESSED
    pool = list[str]()
    for more in (found.parts, also, found.others, monitors):
        pool = [*pool, *more]
        fit = explained(pool, found.numbers, total) if more else None
        if fit is None or not (fit.enough or pool == found.parts):
            continue
        carrying = [path for path in pool if fit.weights.get(path, 0.0) != 0]
        used = [path for path in pool if path in found.parts or path in carrying]
        idle = [path for path in found.parts if fit.weight(path) == 0]
        if len(carrying) == 1 and carrying[0] not in found.parts:
            return None  # another number repeats the total
        if len(carrying) == 1 and idle and not guessed:
            why = f"{total!r} is {carrying[0]!r} alone: {listed(idle)} may be only logged"
            return found.refused(why, found.parts, found.doubtful, carrying)
        if not fit.unique:
            why = f"several sets of weights of {listed(carrying)} give {total!r}"
            return found.refused(why, *_without_one(carrying, found.numbers), found.totals[:1])
        return found.found(used, total, idle if guessed and fit.enough else ())
    return None


def _unexplained(found: _Candidates) -> Proposal:
    """Return what a number named as a total is, if the others do not explain it."""
    total, parts = found.totals[0], found.parts
    if not parts or (
        found.kind in _GUESSED and len(parts) < 2 and not any(map(is_vocabulary, parts))
    ):
        return found.scalar()
    if found.kind != "other" and int(np.isfinite(found.numbers[total]).sum()) < _ENOUGH:
        return found.found(parts)
    more = found.doubtful
    why = (
        f"{total!r} is not a weighted sum of {listed(parts)}, so it may be a reward of its own, "
        "their product, or the total with a part that is not in the file"
    )
    both = [*found.totals, *parts], [*found.totals, *more]
    copies = _without_one(parts, found.numbers, 1 if found.kind == "other" else 2)
    return found.refused(why, parts, more, *copies, *both, found.totals[:1])


def _without_total(found: _Candidates) -> Proposal:
    parts = found.parts
    if not parts:
        return found.refused("no number has a name that fits a reward")
    if found.kind in ("every", "function"):
        return found.found(parts)
    weak = found.kind == "other" or is_measures(found.prefix)
    same = not any(_varies(found.numbers[path]) or len(found.numbers[path]) < 2 for path in parts)
    return found.refused("the numbers are constant") if weak and same else _by_names(found)


def _by_names(found: _Candidates) -> Proposal:
    """Return the rewards, or a refusal if some are in doubt by their names or values."""
    parts = found.parts
    more = [path for path in found.doubtful if path not in parts and found.kind == "named"]
    forms = list(filter(is_form, parts))
    forms = forms if len(forms) < len(parts) else []
    if found.kind == "other" and not found.described:
        forms += [path for path in parts if not is_vocabulary(path)]
    copies = _without_one(parts, found.numbers, 1 if found.kind == "other" else 2)
    if not (more or forms or copies):
        return found.found(parts)
    why = f"{listed([*forms, *more] or parts)} may be forms of other rewards, or only logged"
    sure = [path for path in parts if path not in forms]
    return found.refused(why, parts, sure, [*parts, *more], *copies, found.totals[:1])


def _without_one(paths: Sequence[str], numbers: Numbers, least: int = 1) -> list[list[str]]:
    """Return, for each field that `least` or more of the others explain, these others."""
    found = list[list[str]]()
    for path in paths:
        others = [each for each in paths if each != path]
        fit = explained(others, numbers, path)
        if fit is not None and fit.enough and sum(map(bool, fit.weights.values())) >= least:
            found.append(others)
    return found


@dataclass(frozen=True, slots=True)
class Fit:
    """Stores the weights with which fields add up to a total, up to a constant."""

    weights: Mapping[str, float]
    zeros: frozenset[str]
    """Fields that are missing in some rollouts, where they add nothing to the total."""
    tolerance: float
    enough: bool
    """Whether there are enough rollouts to trust the weights."""
    unique: bool
    """Whether no other weights give the same total."""

    def weight(self, path: str) -> float:
        """Return the weight of a field, 1 if unknown."""
        return self.weights.get(path, 1.0)


def explained(paths: Sequence[str], numbers: Numbers, total: str) -> Fit | None:
    """Return the weights with which fields explain a total, or None if they do not.

    The total must be their weighted sum plus a constant, up to a thousandth of its deviation. A
    field that is missing in some rollouts has weight 0 if the weights of the others are unique
    without it, and no other such field can be left out instead.
    """
    fit = _fit(paths, numbers, total)
    if fit is None or fit.unique:
        return fit
    without = {each: _fit([p for p in paths if p != each], numbers, total) for each in fit.zeros}
    alone = [(each, one) for each, one in without.items() if one is not None and one.unique]
    if len(alone) != 1:
        return fit
    ((idle, one),) = alone
    return replace(one, weights={**one.weights, idle: 0.0})


def _fit(paths: Sequence[str], numbers: Numbers, total: str) -> Fit | None:
    rows = np.flatnonzero(np.isfinite(numbers[total]))
    rows = rows[:: max(1, len(rows) // _COMPARED)]
    values = {p: np.nan_to_num(numbers[p][rows], posinf=0, neginf=0) for p in paths}
    varying = [p for p in paths if _varies(values[p])]
    if not 0 < len(varying) <= min(_ADDED_UP, len(rows) - 1):
        return None
    enough = len(rows) >= max(_ENOUGH, 3 * len(varying) + 3)
    whole = numbers[total][rows]
    added = np.stack([values[p] for p in varying], axis=-1)
    shift, middle = (added.mean(axis=0), whole.mean()) if enough else (0.0, 0.0)
    centred = added - shift
    size = np.abs(centred).max(axis=0)
    if max(size.max(), np.abs(whole).max()) > 1e30:
        return None
    design = centred / size
    weights = np.linalg.lstsq(design, whole - middle, rcond=_DEPENDENT)[0] / size
    tolerance = _EXACT * float(np.std(whole))
    if np.abs(whole - middle - centred @ weights).max() >= tolerance:
        return None
    weights = _rounded(weights, added, whole)
    carrying = design[:, weights != 0]
    unique = int(np.linalg.matrix_rank(carrying, rtol=_DEPENDENT)) == carrying.shape[1]
    return Fit(
        {path: float(w) for path, w in zip(varying, weights, strict=False)},
        frozenset(p for p in varying if not np.isfinite(numbers[p][rows]).all()),
        2 * tolerance,
        enough,
        unique or not enough,
    )


def _rounded(
    weights: Float[np.ndarray, " part"], added: Float[np.ndarray, "rollout part"], whole: Values
) -> Float[np.ndarray, " part"]:
    """Return the weights with as few digits as explain the total as well."""

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


def named_totals(names: Mapping[str, str], numbers: Numbers, known: Layout) -> list[str]:
    """Return the numbers that are a total by their names, and no rewards, the known one first."""
    other = {*names.values(), *_other_forms(numbers)}
    named = [p for p in numbers if p not in other and (p == known.total or may_be_total(p))]
    return sorted(named, key=lambda path: path != known.total)


def found_in_total(
    names: Mapping[str, str], numbers: Numbers, totals: Sequence[str]
) -> InTotal | None:
    """Return the weights of rewards in the first total that is their sum, or None."""
    paths = [path for path in names.values() if path in numbers]
    for total in totals:
        fit = explained(paths, numbers, total)
        if fit is None or not (fit.enough and fit.unique):
            continue
        if len(paths) == 1 or sum(map(bool, fit.weights.values())) > 1:
            weights = {n: fit.weight(path) for n, path in names.items() if path in numbers}
            zeros = frozenset(name for name, path in names.items() if path in fit.zeros)
            rows = np.isfinite(numbers[total])
            added = sum(fit.weight(path) * np.nan_to_num(numbers[path][rows]) for path in paths)
            constant = float(np.median(numbers[total][rows] - added))
            return InTotal(total, weights, zeros, constant, fit.tolerance)
    return None


def contradicting(names: Mapping[str, str], numbers: Numbers, totals: Collection[str]) -> str:
    """Return a number that is a total by its name and contains a reward, but is not the sum."""
    parts = [numbers[path] for path in names.values() if path in numbers]
    for total in filter(may_be_total, totals):
        enough = np.isfinite(numbers[total]).sum() >= _ENOUGH and _varies(numbers[total])
        if enough and any(_contains(numbers[total], part) for part in parts):
            return total
    return ""
