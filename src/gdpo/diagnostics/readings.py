r"""Says what the weights of a run may mean, and which setting gives each meaning.

Weights that the user gives, or that differ from each other, are the purpose of a run. Equal weights
are the default of every trainer, so the sizes of the rewards may say what matters instead. The size
of reward k is $\lvert w_k \rvert (h_k - l_k)$, with its declared range, or the range of its values.

| meaning | weights of `gdpo` |
|---|---|
| weights | as they are |
| equal | 1 for each reward. At most its size for a dense one, and its size and 0.3 for a penalty |
| sizes | its size |

Sizes are relative to the largest one, and for a dense reward or a penalty to the largest of the
others. A reward is graded if its standard deviation in a group is below 30 % of its range, as for a
length or a judge. It is dense if it is graded and varies in 90 % of its groups, and a penalty if
its best value is 0 or less. If such a reward is raised against sparse ones, a policy can give up
those to earn it: an empty answer has no length (docs/explanation/following_the_verdict.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from gdpo._text import quoted
from gdpo.advantages import ESTIMATORS
from gdpo.diagnostics.diagnosis import Range, Scored, interval
from gdpo.diagnostics.influence import Influence, PreparedStep, Vector, influence_of, pooled

EARNED_ALONE = "a policy can earn it by giving up the others"
"""Why a dense reward or a graded penalty is not raised."""


class Meaning(StrEnum):
    """Lists what may say how much each reward matters."""

    WEIGHTS = "weights"
    """The weights, which the user gave or which differ."""
    EQUAL = "equal"
    """Nothing: all rewards matter equally."""
    SIZES = "sizes"
    """The sizes of the rewards."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Stores one meaning of the weights, with the setting that gives it."""

    meaning: Meaning
    weights: Mapping[str, float]
    """Weights of all rewards, the largest of which is 1 or -1."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Size of each reward, in its unit. NaN: unknown."""
    dense: tuple[str, ...] = ()
    """Dense rewards and graded penalties."""
    less: tuple[str, ...] = ()
    """Those that count less than the others, if all should count equally."""
    estimator: str = "gdpo"
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Influence share of every reward with this setting, and its margin. Empty: not replayed."""
    groups: int = 0
    """Number of groups on which the setting was replayed."""
    needed: bool = True
    """Whether this meaning calls for a change. Sizes do not: GRPO adds the rewards with them, and
    no script gained from GDPO with these weights (docs/explanation/following_the_verdict.md)."""

    @property
    def condition(self) -> str:
        """Return when this reading is right, as a clause."""
        if self.meaning is Meaning.SIZES:
            sizes = " : ".join(f"{float(f'{s:.2g}'):g}" for s in self.sizes.values() if s)
            return f"if the sizes of the rewards say what matters ({sizes})"
        if self.meaning is Meaning.WEIGHTS:
            return "if the weights say what matters"
        if not self.less:
            return "if the rewards should count equally"
        less = f"but {quoted(self.less)} less: {EARNED_ALONE}"
        return f"if the rewards should count equally ({less})"

    @property
    def small(self) -> tuple[str, ...]:
        """Those of `less` whose size is below that of the largest other reward."""
        largest = max((s for name, s in self.sizes.items() if name not in self.dense), default=0.0)
        return tuple(name for name in self.less if self.sizes[name] < largest)

    @property
    def setting(self) -> str:
        """Return the setting, as in the arguments of a trainer."""
        weights = ", ".join(f"{weight:.2g}" for weight in self.weights.values())
        return f"{self.estimator} with reward_weights=[{weights}]"

    @property
    def advice(self) -> str:
        """Return the setting, and the influence share that it gives every reward."""
        if not self.needed:
            return "nothing to do"
        shares = ", ".join(f"`{name}` {interval(*each)}" for name, each in self.shares.items())
        return f"{self.setting} ({shares})" if shares else self.setting

    def __str__(self) -> str:
        return f"{self.condition}: {self.advice}"


def readings_of(
    influence: Influence, ranges: Mapping[str, Range], purpose: Meaning | None = None
) -> tuple[Reading, ...]:
    """Return what the weights of these groups may mean: one reading, or two. A single reward: none.

    `purpose` is what the user answered, if anything. A weight that changes counts with its mean.
    """
    weights, names = influence.sums.weight / influence.groups, influence.names
    trained = weights != 0
    if np.count_nonzero(trained) < 2:
        return ()
    known = np.array([ranges.get(name, Range())[:2] for name in names])
    width = known[:, 1] - known[:, 0]
    size = weights / np.max(np.abs(weights)) * width
    dense, penalty = (trained & each for each in _graded(influence, known))
    most = _most(np.abs(size), dense, penalty, trained)
    facts = {
        "sizes": dict(zip(names, np.abs(size).tolist(), strict=True)),
        "dense": tuple(names[k] for k in np.flatnonzero(dense | penalty)),
        "less": tuple(names[k] for k in np.flatnonzero(most < 1)),
    }
    used = np.abs(weights)[trained]
    differ = np.ptp(used) > 1e-6 * np.max(used)
    if purpose is Meaning.WEIGHTS or (differ and purpose is None):
        return (_reading(Meaning.WEIGHTS, names, weights, **facts),)
    by_size = _reading(Meaning.SIZES, names, size, needed=False, **facts)
    equal = _reading(Meaning.EQUAL, names, np.sign(weights) * most, **facts)
    every = np.all(width[trained] > 0)
    pairs = (np.array(list(each.weights.values()))[trained] for each in (equal, by_size))
    alike = every and np.allclose(*pairs, rtol=_SAME)
    if purpose is Meaning.SIZES:
        return (equal if alike else by_size,) if every else ()
    return (equal, by_size) if every and not alike else (equal,)


def _most(size: Vector, dense: Any, penalty: Any, trained: Any) -> Vector:
    """Return the weight of each reward if all should count equally: at most 1."""
    most, others = np.ones(len(size)), trained & ~penalty & (size > 0)
    if np.any(others & ~dense):
        others &= ~dense
        most = np.where(dense, np.fmin(size / np.max(size[others]), most), most)
    if np.any(others):
        most = np.where(penalty, np.fmin(size / np.max(size[others]), _PENALTY), most)
    return most


def _graded(influence: Influence, ranges: Any) -> tuple[Any, Any]:
    """Return which rewards are dense, and which are graded penalties."""
    sums, (low, high) = influence.sums, ranges.T
    with np.errstate(all="ignore"):
        graded = sums.std < _SPREAD * (high - low) * sums.live
        best = np.where(sums.weight > 0, high, -low)
        return graded & (sums.live >= _LIVE * sums.applies), graded & (best <= 0)


_LIVE, _SPREAD = 0.9, 0.3
"""Limits of a dense reward: its share of varying groups, and its relative standard deviation. With
two values that are equally likely, the latter is 0.5, and for evenly spread values 0.29."""

_PENALTY = 0.3
"""Largest weight of a graded penalty beside other rewards. With 1, trial runs ended with empty
answers (research/preregistration/2026-11-29-advice.md)."""

_SAME = 0.5
"""Relative difference of weights up to which two readings are the same."""


def _reading(meaning: Meaning, names: Sequence[str], weights: Vector, **facts: Any) -> Reading:
    largest = np.nanmax(np.abs(weights), initial=0.0) or 1.0
    rounded = (float(f"{weight:.2g}") for weight in np.nan_to_num(weights / largest))
    return Reading(meaning, dict(zip(names, rounded, strict=True)), **facts)


def replayed(reading: Reading, steps: Sequence[Scored]) -> Reading:
    """Return the reading with the influence shares that its setting gives on these steps."""
    parts: list[Influence] = []
    for step in steps:
        # A weight is 0 for prompts to which its reward does not apply.
        applies = np.isfinite(np.array(step.weights, np.float64))
        weights = np.where(applies, [reading.weights[name] for name in step.names], np.nan)
        advantages = np.asarray(ESTIMATORS[reading.estimator](step.rewards, weights), np.float64)
        prepared = PreparedStep.of(step.rewards, weights)
        parts.append(influence_of(advantages, prepared, step.names))
    if not parts:
        return reading
    found = pooled(parts)
    shares = {name: (share, margin) for name, (_, share, margin) in found.by_reward.items()}
    return replace(reading, shares=shares, groups=found.groups)


_MOST_VALUES = 2**18
"""Number of reward values above which every second step is dropped, so that a replay is fast."""


@dataclass(slots=True)
class ScoredSteps:
    """Keeps the rewards of steps for a replay, evenly thinned if too many."""

    steps: list[Scored] = field(default_factory=list)
    """The steps that are kept, in the order in which they were added."""
    _every: int = 1
    _added: int = 0
    _values: int = 0

    def add(self, step: Scored) -> None:
        """Keep the next step, unless it is thinned out."""
        self._added += 1
        if (self._added - 1) % self._every:
            return
        self.steps.append(step)
        self._values += step.rewards.size
        while self._values > _MOST_VALUES and len(self.steps) > 1:
            self._every *= 2
            self.steps = self.steps[::2]
            self._values = sum(kept.rewards.size for kept in self.steps)
