"""Diagnoses each turn of multi-turn rollouts, and reports problems with the turns."""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from typing import Any

import numpy as np

from gdpo._files import plain
from gdpo._shapes import Bool
from gdpo.advantages import AdvantageRule, TurnCounts, TurnRewards
from gdpo.advantages.arrays import check_finite, turn_counts, wrong_axes
from gdpo.diagnostics._turns import (
    ByTurn,
    TurnSums,
    pooled_turns,
    to_go,
    turn_findings,
    turn_sums,
)
from gdpo.diagnostics.diagnosis import (
    LINES,
    Diagnosis,
    Finding,
    aligned,
    finding_lines,
    interval,
    percent,
)
from gdpo.diagnostics.findings import Thresholds
from gdpo.diagnostics.step import as_numpy, check_names, diagnose, weights_of
from gdpo.errors import ConfigError, DataError

MOST_TURNS = 100
"""Maximum number of turns that are diagnosed. Later turns only count in the returns-to-go."""

_LEAST = 2
"""Minimum number of rollouts of a group that took a turn for the group to be diagnosed."""


@dataclass(frozen=True, slots=True)
class TurnDiagnosis:
    """Stores the diagnosis of one turn."""

    turn: int
    """Number of the turn, counted from 1."""
    alive: float
    """Share of the rollouts that took the turn."""
    diagnosis: Diagnosis | None
    """The diagnosis of the groups in which at least two rollouts took the turn. Its rewards are
    what these rollouts earn from the turn on. None if there is no such group. It has no findings,
    because a reward need not have its weight share at every single turn."""


@dataclass(frozen=True, slots=True)
class TurnsDiagnosis:
    """Stores the diagnosis of each turn of a batch, and the findings about turns."""

    turns: tuple[TurnDiagnosis, ...]
    sums: TurnSums = field(compare=False, repr=False)
    """The sums behind the findings. They can be pooled over steps."""
    findings: tuple[Finding, ...] = ()
    """The findings about turns, worst first."""

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as dicts, lists, numbers and strings for JSON. NaN becomes None."""
        turns = [
            {
                "turn": each.turn,
                "alive": each.alive,
                "diagnosis": None if each.diagnosis is None else each.diagnosis.as_dict(),
            }
            for each in self.turns
        ]
        return {"turns": turns, "findings": [plain(asdict(each)) for each in self.findings]}

    def summary(self) -> str:
        """Return text for a terminal: a table with a row for each turn, and the findings."""
        pairs = [(f"{name}: zero-variance", "influence share") for name in self.sums.rewards]
        rows = [("turn", "alive", "groups", *(cell for pair in pairs for cell in pair))]
        rows += [self._cells(each) for each in self.turns]
        lines = aligned(rows)
        return "\n".join([*lines, *finding_lines(self.findings, LINES - len(lines))])

    def __str__(self) -> str:
        return self.summary()

    def _cells(self, each: TurnDiagnosis) -> tuple[str, ...]:
        head = (str(each.turn), percent(each.alive))
        if each.diagnosis is None:
            return (*head, "0", *("–" for _ in self.sums.rewards for _ in range(2)))
        cells: list[str] = []
        for reward in each.diagnosis.rewards:
            constant, share = reward.zero_variance_groups, reward.influence_share
            margin = nan if reward.influence_margin is None else reward.influence_margin
            cells.append("–" if constant is None else percent(constant))
            cells.append("–" if share is None else interval(share, margin))
        return (*head, f"{each.diagnosis.prompts:,}", *cells)


def diagnose_turns(
    rewards: TurnRewards,
    weights: Any,
    names: Sequence[str],
    *,
    turns: TurnCounts,
    estimator: str | None = "turn_gdpo",
    advantages: Any = None,
    thresholds: Thresholds | None = None,
) -> TurnsDiagnosis:
    r"""Measure the influence of each reward at each turn, and report problems with the turns.

    A turn is diagnosed like a batch whose rewards are the returns-to-go of the rollouts that took
    the turn,

    $$ G_{i,t} = \sum_{s \ge t} r_{i,s}, $$

    with the advantages of the turn. Groups in which fewer than two rollouts took the turn are left
    out. Only the first 100 turns are diagnosed.

    Args:
        rewards: Raw rewards, `[prompt, sample, turn, reward]`, as in `diagnose`. Values beyond a
            rollout's last turn are ignored. If a reward is NaN at a turn that was taken, it is left
            out for the whole rollout.
        weights: As in `diagnose`.
        names: One name per reward.
        turns: Number of turns that each rollout took, `[prompt, sample]`. 0: padding, no rollout.
        estimator: As in `diagnose`: a key in `TURN_ESTIMATORS`, or an estimator for rollouts, whose
            advantage from the totals then counts for every turn.
        advantages: Advantages that were used in training, `[prompt, sample, turn]`, or `[prompt,
            sample]` if all turns of a rollout have the same. None: the estimator computes them.
        thresholds: As in `diagnose`.

    Returns:
        A frozen `TurnsDiagnosis`, which can be printed.

    Raises:
        DataError: If a reward is infinite, the rewards do not have four axes, no rollout took a
            turn, or the advantages do not match the rewards.
        ConfigError: If the names, turns, weights or estimator do not match the rewards.

    Examples:
        A reward of about 1 for each turn makes longer rollouts better.

        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> turns, rewards = random.integers(1, 4, (64, 8)), 1 + random.random((64, 8, 3, 1)) / 9
        >>> diagnosis = diagnose_turns(rewards, None, ["format"], turns=turns)
        >>> [(turn.turn, round(turn.alive, 2)) for turn in diagnosis.turns]
        [(1, 1.0), (2, 0.69), (3, 0.37)]
        >>> [(finding.kind.value, finding.rewards) for finding in diagnosis.findings]
        [('turn_count', ('format',))]
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
    w = weights_of(names, weights)
    by_prompt = np.asarray(w, np.float64).reshape(-1, len(names))
    earned = to_go(r, taken, np.isnan(by_prompt))
    if advantages is None:
        advantages = _computed(estimator, r, earned[:, :, 0], w, names, counts)
    a = _of_each_turn(advantages, taken)
    found: list[TurnDiagnosis] = []
    for turn in range(min(r.shape[2], MOST_TURNS)):
        here, diagnosis = taken[:, :, turn], None
        groups = np.sum(here, axis=1) >= _LEAST
        if np.any(groups):
            diagnosis = diagnose(
                earned[groups, :, turn],
                w[groups] if np.ndim(w) > 1 else w,
                names,
                estimator=estimator,
                advantages=a[groups, :, turn],
            )
            diagnosis = replace(diagnosis, findings=())
        alive = float(np.sum(here) / np.sum(taken[:, :, 0]))
        found.append(TurnDiagnosis(turn + 1, alive, diagnosis))
    sums = turn_sums(
        r,
        earned,
        advantages=a,
        counts=counts,
        weights=np.nan_to_num(by_prompt),
        names=names,
        influences=[None if t.diagnosis is None else t.diagnosis.influence for t in found],
    )
    return TurnsDiagnosis(tuple(found), sums, turn_findings(sums, thresholds or Thresholds()))


def _computed(
    estimator: str | None, rewards: Any, totals: Any, weights: Any, names: Sequence[str], turns: Any
) -> Any:
    if estimator is None:
        raise ConfigError("diagnose_turns needs estimator= or advantages=: pass one of them")
    rule = AdvantageRule(estimator, names, turns=True)
    return rule(rewards, weights, turns=turns) if rule.wants_turns else rule(totals, weights)


def _of_each_turn(advantages: Any, taken: Bool[np.ndarray, "prompt sample turn"]) -> ByTurn:
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


class TurnWindow:
    """Keeps the sums of the most recent steps that contain a given number of groups."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or Thresholds()
        self._steps: deque[TurnSums] = deque()

    def add(self, step: TurnSums) -> tuple[Finding, ...]:
        """Add the next step, drop old steps, and return the findings over the window."""
        self._steps.append(step)
        groups = sum(each.groups for each in self._steps)
        while groups - self._steps[0].groups >= self._thresholds.window:
            groups -= self._steps.popleft().groups
        return turn_findings(pooled_turns(tuple(self._steps)), self._thresholds)
