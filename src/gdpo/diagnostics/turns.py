r"""Diagnoses each turn of multi-turn rollouts.

$G_{i,t} = \sum_{s \ge t} r_{i,s}$ is what rollout $i$ earns of a reward from turn $t$ on. Groups in
which fewer than two rollouts took a turn say nothing about it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any

import numpy as np

from gdpo._files import plain
from gdpo._shapes import Bool, Float
from gdpo.advantages import AdvantageRule, TurnCounts, TurnRewards
from gdpo.advantages.arrays import as_numpy, check_finite, turn_counts, wrong_axes
from gdpo.diagnostics.diagnosis import aligned, interval, percent
from gdpo.diagnostics.influence import Influence, PreparedStep, influence_of, pooled
from gdpo.diagnostics.looks import reward_of
from gdpo.diagnostics.step import check_names, weights_of
from gdpo.errors import ConfigError, DataError

MOST_TURNS = 100
"""Maximum number of turns that are diagnosed. Later turns only count in the returns-to-go."""

_LEAST = 2
"""Minimum number of rollouts of a group that took a turn for the group to be diagnosed."""

_TURNS = 2


@dataclass(frozen=True, slots=True)
class RewardAtTurn:
    """Stores the numbers of one reward at one turn. NaN: no data."""

    name: str
    groups: int
    """Number of groups with the reward in which at least two rollouts took the turn."""
    zero_variance_groups: float
    """Share of these groups in which all rollouts earn the same from the turn on."""
    influence_share: float
    influence_margin: float

    @staticmethod
    def of(influence: Influence | None, name: str) -> "RewardAtTurn":
        """Return the numbers of one reward from the sums of a turn."""
        if influence is None or name not in influence.names:
            return RewardAtTurn(name, 0, nan, nan, nan)
        at = reward_of(influence, name, margins=True)
        shares = (at.share, at.margin) if at.groups else (nan, nan)
        return RewardAtTurn(name, at.groups, at.zero_variance, *shares)


@dataclass(frozen=True, slots=True)
class TurnDiagnosis:
    """Stores the numbers of one turn."""

    turn: int
    """Number of the turn, counted from 1."""
    rollouts: int
    """Number of rollouts that took the turn."""
    alive: float
    """Share of the rollouts with turns that took the turn."""
    groups: int
    """Number of groups in which at least two rollouts took the turn."""
    rewards: tuple[RewardAtTurn, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TurnsDiagnosis:
    """Stores the diagnosis of each turn of a batch, or of several pooled batches."""

    names: tuple[str, ...]
    rollouts: tuple[int, ...]
    """Number of rollouts that took each turn that was diagnosed."""
    influences: tuple[Influence | None, ...]
    """Influence sums of each turn. None if no group has two rollouts that took the turn."""

    @property
    def turns(self) -> tuple[TurnDiagnosis, ...]:
        """Return the numbers of each turn."""
        return tuple(
            TurnDiagnosis(
                turn=turn,
                rollouts=count,
                alive=count / self.rollouts[0],
                groups=0 if influence is None else influence.groups,
                rewards=tuple(RewardAtTurn.of(influence, name) for name in self.names),
            )
            for turn, (count, influence) in enumerate(
                zip(self.rollouts, self.influences, strict=True), start=1
            )
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as dicts, lists, numbers and strings for JSON. NaN becomes None."""
        return {"turns": [plain(asdict(turn)) for turn in self.turns]}

    def summary(self) -> str:
        """Return a table for a terminal, with a row for each turn."""
        pairs = [(f"{name}: zero-variance", "influence share") for name in self.names]
        rows = [["turn", "alive", "groups", *(cell for pair in pairs for cell in pair)]]
        for each in self.turns:
            cells = [str(each.turn), percent(each.alive), f"{each.groups:,}"]
            for at in each.rewards:
                cells.append(percent(at.zero_variance_groups))
                cells.append(interval(at.influence_share, at.influence_margin))
            rows.append(cells)
        return "\n".join(aligned(rows))

    __str__ = summary


def diagnose_turns(
    rewards: TurnRewards,
    weights: Any,
    names: Sequence[str],
    *,
    turns: TurnCounts,
    estimator: str | None = "turn_gdpo",
    advantages: Any = None,
) -> TurnsDiagnosis:
    r"""Measure the influence of each reward at each turn.

    A turn is diagnosed like a batch of the returns-to-go of the rollouts that took the turn, with
    the advantages of the turn. Only the first 100 turns are diagnosed.

    Args:
        rewards: Raw rewards, `[prompt, sample, turn, reward]`. Values beyond a rollout's last turn
            are ignored. A reward that is NaN at an earlier turn is left out for the whole rollout.
        weights: As in `diagnose`.
        names: One name per reward.
        turns: Number of turns of each rollout, `[prompt, sample]`. 0: padding.
        estimator: As in `diagnose`: a key in `TURN_ESTIMATORS`, or an estimator for rollouts, whose
            advantage then counts for every turn.
        advantages: Advantages used in training, `[prompt, sample, turn]`, or `[prompt, sample]` if
            all turns of a rollout have the same. None: the estimator computes them.

    Returns:
        A frozen `TurnsDiagnosis`, which can be printed.

    Raises:
        DataError: If a reward is infinite, the rewards do not have four axes, no rollout took a
            turn, or the advantages do not fit.
        ConfigError: If the names, turns, weights or estimator do not match the rewards.

    Examples:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> turns, rewards = random.integers(1, 4, (64, 8)), random.random((64, 8, 3, 1))
        >>> diagnosis = diagnose_turns(rewards, None, ["format"], turns=turns)
        >>> [(turn.turn, round(turn.alive, 2), turn.groups) for turn in diagnosis.turns]
        [(1, 1.0, 64), (2, 0.69, 64), (3, 0.37, 59)]
    """
    r = as_numpy(rewards)
    if r.ndim != 4 or 0 in r.shape:
        raise wrong_axes(r, "prompt", "sample", "turn", "reward")
    check_names(names, r)
    given = turns if isinstance(turns, Sequence) else as_numpy(turns)
    counts = turn_counts(given, r).astype(np.int64)
    if not np.any(counts):
        raise DataError("turns are all 0, so there is nothing to diagnose: pass at least one turn")
    r = r[:, :, : int(counts.max())]
    r = r if r.dtype.kind == "f" else r.astype(np.float64)
    taken = np.arange(r.shape[2]) < counts[..., None]
    r = np.where(taken[..., None], r, r.dtype.type(0))
    check_finite(r, names)
    w, earned = weights_of(names, weights), _to_go(r, taken)
    if advantages is None:
        if estimator is None:
            raise ConfigError("diagnose_turns needs estimator= or advantages=: pass one of them")
        rule = AdvantageRule(estimator, names, turns=True)
        totals = earned[:, :, 0]
        advantages = rule(r, w, turns=counts) if rule.wants_turns else rule(totals, w)
    a = _of_each_turn(advantages, taken)
    influences: list[Influence | None] = []
    for turn in range(min(r.shape[2], MOST_TURNS)):
        groups = np.sum(taken[:, :, turn], axis=1) >= _LEAST
        if not np.any(groups):
            influences.append(None)
            continue
        step = PreparedStep.of(earned[groups, :, turn], w[groups] if np.ndim(w) > 1 else w)
        influences.append(influence_of(a[groups, :, turn], step, names))
    rollouts = np.sum(taken, axis=(0, 1)).tolist()[: len(influences)]
    return TurnsDiagnosis(tuple(names), tuple(rollouts), tuple(influences))


def _of_each_turn(
    advantages: Any, taken: Bool[np.ndarray, "prompt sample turn"]
) -> Float[np.ndarray, "prompt sample turn"]:
    a, shape = as_numpy(advantages), taken.shape
    if a.ndim == 3:
        a = a[:, :, : shape[2]]
    elif a.ndim == 2:
        a = np.repeat(a[..., None], shape[2], axis=2)
    if a.shape != shape or not np.all(np.isfinite(a[taken])):
        raise DataError(
            f"advantages must have the shape {shape} [prompt, sample, turn] or {shape[:2]}, like "
            "the rewards, and be finite at all turns that were taken; got an array of shape "
            f"{np.shape(advantages)}. Pass one finite number per turn, or per rollout"
        )
    return np.where(taken, a, 0.0).astype(np.float64)


def _to_go(
    rewards: Float[np.ndarray, "prompt sample turn reward"],
    taken: Bool[np.ndarray, "prompt sample turn"],
) -> Float[np.ndarray, "prompt sample turn reward"]:
    """Return what each rollout earns from each turn on, in the precision of the rewards.

    NaN where the turn was not taken, and for the whole rollout if the reward is NaN at a turn.
    """
    there = taken[..., None]
    known = there & ~np.any(there & np.isnan(rewards), axis=_TURNS, keepdims=True)
    backwards = np.flip(np.where(known, rewards, 0.0), axis=_TURNS)
    sums = np.flip(np.cumsum(backwards, axis=_TURNS, dtype=np.float64), axis=_TURNS)
    return np.where(known, sums, nan).astype(rewards.dtype, copy=False)


def pooled_turns(steps: Sequence[TurnsDiagnosis]) -> TurnsDiagnosis:
    """Return the diagnosis over several steps."""
    longest = max(len(step.rollouts) for step in steps)
    influences: list[Influence | None] = []
    for turn in range(longest):
        at_turn = [step.influences[turn] for step in steps if turn < len(step.influences)]
        influences.append(pooled(at_turn) if any(at_turn) else None)
    rollouts = np.sum([np.pad(s.rollouts, (0, longest - len(s.rollouts))) for s in steps], axis=0)
    names = dict.fromkeys(name for step in steps for name in step.names)
    return TurnsDiagnosis(tuple(names), tuple(rollouts.tolist()), tuple(influences))
