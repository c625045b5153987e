r"""Diagnoses each turn of multi-turn rollouts.

$G_{i,t}$ is what rollout $i$ earns of a reward from turn $t$ on, and $R_i = G_{i,1}$ its total.
Groups in which fewer than two rollouts took a turn say nothing about it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, nan, sqrt
from typing import Any, NamedTuple

import numpy as np

from gdpo._files import plain
from gdpo._shapes import Bool, Float, Int
from gdpo.advantages import AdvantageRule, TurnCounts, TurnRewards
from gdpo.advantages.arrays import check_finite, rounded, turn_counts, wrong_axes
from gdpo.advantages.stages import SAMPLES, mean, standardize
from gdpo.diagnostics.diagnosis import (
    LINES,
    Diagnosis,
    Finding,
    Kind,
    aligned,
    finding_lines,
    interval,
    percent,
    times,
)
from gdpo.diagnostics.findings import Thresholds, finding, in_order
from gdpo.diagnostics.influence import NORMAL_95, Influence, PromptWeights, pooled
from gdpo.diagnostics.step import as_numpy, check_names, diagnose, weights_of
from gdpo.errors import ConfigError, DataError

MOST_TURNS = 100
"""Maximum number of turns that are diagnosed. Later turns only count in the returns-to-go."""

_LEAST = 2
"""Minimum number of rollouts of a group that took a turn for the group to be diagnosed."""

ToGo = Float[np.ndarray, "prompt sample turn reward"]
Counts = Int[np.ndarray, "prompt sample"]
ByTurn = Float[np.ndarray, "prompt sample turn"]

_TURNS = 2

_ROUNDING = 1e-9
"""Relative difference by which a product may differ from an integer."""


class _Pairs(NamedTuple):
    """Stores sums over the groups in which both a value z and the number of turns y vary.

    In a group, P is the sum of z y, both standardized within the group, and d the root of Σz² Σy².
    """

    groups: float
    product: float
    """Sum of P."""
    degrees: float
    """Sum of d."""
    squares: float
    """Sum of P²."""
    mixed: float
    """Sum of P d."""
    degrees_squares: float
    """Sum of d²."""

    @property
    def correlation(self) -> float:
        return self.product / self.degrees if self.degrees > 0 else nan

    @property
    def error(self) -> float:
        r"""Return the standard error of $\rho$ over $n$ groups, or NaN for fewer than two groups.

        $$ \frac{1}{\sum d} \sqrt{\frac{n}{n - 1} \sum (P - \rho d)^2} $$
        """
        n, rho = self.groups, self.correlation
        if n < 2 or rho != rho:
            return nan
        rest = self.squares - 2 * rho * self.mixed + rho * rho * self.degrees_squares
        return sqrt(n / (n - 1) * max(rest, 0.0)) / self.degrees

    @property
    def margin(self) -> float:
        return NORMAL_95 * self.error

    def stands_out(self, errors: float) -> bool:
        return abs(self.correlation) > 0 and abs(self.correlation) >= errors * self.error


class _Payments(NamedTuple):
    rollouts: float
    turns: float
    paid: float
    """Number of turns with a positive value."""
    earlier: float
    """Number of turns with a value other than 0 before the last turn of a rollout."""
    total: float
    lowest: float
    """Lowest total. Infinite if the reward never applies."""
    highest: float
    with_turns: _Pairs
    """Relation of the total, without the weight, with the number of turns."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnSums:
    """Stores the sums of one step or of several pooled steps."""

    groups: int
    alive: Int[np.ndarray, " turn"]
    """Number of rollouts that took each turn that was diagnosed."""
    influences: tuple[Influence | None, ...]
    """Influence sums of each turn. None if no group has two rollouts that took the turn."""
    rewards: Mapping[str, _Payments]
    advantages: _Pairs
    """Relation of a rollout's mean advantage with the number of turns."""

    @property
    def rollouts(self) -> int:
        """Return the number of rollouts that took a turn."""
        return int(self.alive[0])


@dataclass(frozen=True, slots=True)
class TurnDiagnosis:
    """Stores the diagnosis of one turn."""

    turn: int
    """Number of the turn, counted from 1."""
    alive: float
    """Share of the rollouts that took the turn."""
    diagnosis: Diagnosis | None
    """The diagnosis of the groups in which at least two rollouts took the turn, or None. Its
    rewards are what they earn from the turn on. It has no findings, because a reward need not have
    its weight share at every single turn."""


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
    r"""Measure the influence of each reward at each turn, and report problems.

    A turn is diagnosed like a batch of the returns-to-go of the rollouts that took the turn,

    $$ G_{i,t} = \sum_{s \ge t} r_{i,s}, $$

    with the advantages of the turn. Only the first 100 turns are diagnosed.

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
        thresholds: As in `diagnose`.

    Returns:
        A frozen `TurnsDiagnosis`, which can be printed.

    Raises:
        DataError: If a reward is infinite, the rewards do not have four axes, no rollout took a
            turn, or the advantages do not fit.
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
    sums = _turn_sums(
        r,
        earned,
        advantages=a,
        counts=counts,
        weights=np.nan_to_num(by_prompt),
        names=names,
        influences=[None if t.diagnosis is None else t.diagnosis.influence for t in found],
    )
    return TurnsDiagnosis(tuple(found), sums, _turn_findings(sums, thresholds or Thresholds()))


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


def to_go(
    rewards: Float[np.ndarray, "prompt sample turn reward"],
    taken: Bool[np.ndarray, "prompt sample turn"],
    absent: Bool[np.ndarray, "prompt_or_1 reward"],
) -> ToGo:
    """Return what each rollout earns from each turn on, in the precision of the rewards.

    NaN where the turn was not taken, and for the whole rollout if the reward is NaN at a turn that
    was taken, or `absent` for the prompt.
    """
    there = taken[..., None]
    lacking = np.any(there & np.isnan(rewards), axis=_TURNS, keepdims=True)
    known = there & ~(lacking | absent[:, None, None, :])
    backwards = np.flip(np.where(known, rewards, 0.0), axis=_TURNS)
    sums = np.flip(np.cumsum(backwards, axis=_TURNS, dtype=np.float64), axis=_TURNS)
    return np.where(known, sums, nan).astype(rewards.dtype, copy=False)


def _turn_sums(
    rewards: Float[np.ndarray, "prompt sample turn reward"],
    earned: ToGo,
    *,
    advantages: ByTurn,
    counts: Counts,
    weights: PromptWeights,
    names: Sequence[str],
    influences: Sequence[Influence | None],
) -> TurnSums:
    taken, known = np.arange(earned.shape[_TURNS]) < counts[..., None], ~np.isnan(earned)
    further = np.concatenate([known[:, :, 1:], np.zeros_like(known[:, :, :1])], axis=_TURNS)
    paid = np.where(known, rewards, 0.0) * weights[:, None, None, :]
    totals = earned[:, :, 0, :].astype(np.float64) * weights[:, None, :]
    each = mean(np.where(taken, advantages, nan), over=_TURNS)
    *pairs, of_advantages = _with_turns(
        np.concatenate([earned[:, :, 0, :], each], axis=-1).astype(earned.dtype), counts
    )
    counted = (known[:, :, :1], known, known & (paid > 0), known & further & (paid != 0))
    columns = (
        *(np.sum(where, axis=(0, 1, 2)).astype(np.float64) for where in counted),
        np.nansum(totals, axis=(0, 1)),
        np.min(np.where(np.isnan(totals), inf, totals), axis=(0, 1)),
        np.max(np.where(np.isnan(totals), -inf, totals), axis=(0, 1)),
    )
    rows = np.stack(columns, axis=-1).tolist()
    return TurnSums(
        groups=int(np.sum(np.any(taken, axis=(1, 2)))),
        alive=np.sum(taken[:, :, : len(influences)], axis=(0, 1)),
        influences=tuple(influences),
        rewards={
            n: _Payments(*row, with_turns=p) for n, row, p in zip(names, rows, pairs, strict=True)
        },
        advantages=of_advantages,
    )


def _with_turns(values: Float[np.ndarray, "prompt sample value"], counts: Counts) -> list[_Pairs]:
    lengths = np.where(np.isnan(values), nan, counts[..., None].astype(np.float64))
    z, y = (
        np.nan_to_num(standardize(rounded(each), over=SAMPLES).values) for each in (values, lengths)
    )
    product = np.sum(z * y, axis=SAMPLES)
    degrees = np.sqrt(np.sum(z * z, axis=SAMPLES) * np.sum(y * y, axis=SAMPLES))
    columns = (degrees > 0, product, degrees, product**2, product * degrees, degrees**2)
    sums = [np.sum(each, axis=0, dtype=np.float64).tolist() for each in columns]
    return [_Pairs(*row) for row in zip(*sums, strict=True)]


def pooled_turns(steps: Sequence[TurnSums]) -> TurnSums:
    """Return the sums over several steps."""
    by_name: dict[str, list[_Payments]] = {}
    for step in steps:
        for name, payments in step.rewards.items():
            by_name.setdefault(name, []).append(payments)
    longest = max(len(step.alive) for step in steps)
    influences: list[Influence | None] = []
    for turn in range(longest):
        at_turn = [s.influences[turn] for s in steps if turn < len(s.influences)]
        known = [each for each in at_turn if each is not None]
        influences.append(pooled(known) if known else None)
    return TurnSums(
        groups=sum(step.groups for step in steps),
        alive=np.sum([np.pad(s.alive, (0, longest - len(s.alive))) for s in steps], axis=0),
        influences=tuple(influences),
        rewards={
            name: _Payments(
                *np.sum([payments[:5] for payments in each], axis=0).tolist(),
                lowest=min(payments.lowest for payments in each),
                highest=max(payments.highest for payments in each),
                with_turns=_pairs_of([payments.with_turns for payments in each]),
            )
            for name, each in by_name.items()
        },
        advantages=_pairs_of([step.advantages for step in steps]),
    )


def _pairs_of(steps: Sequence[_Pairs]) -> _Pairs:
    return _Pairs(*np.sum(steps, axis=0).tolist())


def _turn_findings(sums: TurnSums, thresholds: Thresholds) -> tuple[Finding, ...]:
    found = list(_standing_out(sums, thresholds))
    paid = list(_paid_per_turn(sums, thresholds, found))
    named = {name for finding in paid for name in finding.rewards}
    counts = [_turn_count(sums, *each) for each in found if each[0] not in named]
    return in_order([*paid, *_constant_turns(sums, thresholds), *counts])


def _constant_turns(sums: TurnSums, thresholds: Thresholds) -> Iterator[Finding]:
    # How many groups reach each turn, and in how many of them the most varying reward varies.
    counts = np.zeros((len(sums.alive), 2))
    for turn, each in enumerate(sums.influences):
        if each is not None:
            trained = each.sums.weight != 0
            columns = np.stack([each.sums.applies, each.sums.live])
            counts[turn] = np.max(columns, axis=1, where=trained, initial=0.0)
    groups, varying = np.cumsum(counts[::-1], axis=0)[::-1].T
    most = 1 - thresholds.constant_turns
    # So that it cannot be due to few groups, the turn itself may have two more that vary.
    certain = 2 + counts[:, 1] <= most * counts[:, 0] * (1 + _ROUNDING)
    constant = np.flatnonzero(certain & (varying <= most * groups))
    first = int(constant[0]) if len(constant) else 0
    if first == 0:
        return
    share = float(np.sum(sums.alive[first:]) / np.sum(sums.alive))
    influence = sums.influences[first]
    reached = 0 if influence is None else influence.groups
    yield finding(
        Kind.CONSTANT_TURNS,
        (),
        {"turn": float(first), "share": share, "groups": float(reached)},
        turn=first,
        next=first + 1,
        least=percent(thresholds.constant_turns),
        groups=f"{reached:,}",
        share=percent(share),
    )


def _paid_per_turn(
    sums: TurnSums, thresholds: Thresholds, found: Sequence[tuple[str, int]]
) -> Iterator[Finding]:
    """Yield a finding for each reward that favors longer rollouts and outweighs the outcome."""
    ends = {name: end for name, each in sums.rewards.items() if (end := _end(each, thresholds))}
    worth = sum(ends.values())
    for name, sign in found if worth > 0 else ():
        each = sums.rewards[name]
        share, mean = each.paid / each.turns, each.total / each.rollouts
        if sign < 0 or share < thresholds.paid_turns or mean < thresholds.paid_ratio * worth:
            continue
        yield finding(
            Kind.PAID_PER_TURN,
            (name,),
            {
                "paid": share,
                "total": mean,
                "end": worth,
                "ratio": mean / worth,
                **_evidence(each.with_turns),
            },
            paid=percent(share),
            total=f"{mean:.3g}",
            ratio=times(mean / worth),
            ends=", ".join(f"`{end}`" for end in ends),
            worth=f"{worth:.3g}",
            correlation=_signed(each.with_turns),
            factor=f"{worth / mean / 2:.2g}",
        )


def _end(each: _Payments, thresholds: Thresholds) -> float:
    """Return the range of the total of a reward that is paid at the end only, or 0."""
    before = each.turns - each.rollouts
    at_the_end = before > 0 and each.earlier <= (1 - thresholds.paid_turns) * before
    return each.highest - each.lowest if at_the_end and each.highest > each.lowest else 0.0


def _turn_count(sums: TurnSums, name: str, sign: int) -> Finding:
    pairs, which = sums.rewards[name].with_turns, "more" if sign > 0 else "fewer"
    remedy = (
        f"give `{name}` once, at the last turn, or subtract a cost for each turn"
        if sign > 0
        else f"lower the weight of `{name}`, or give it only to rollouts that succeed"
    )
    return finding(
        Kind.TURN_COUNT,
        (name,),
        {**_evidence(pairs), "advantages": sums.advantages.correlation},
        which=which,
        groups=f"{pairs.groups:,.0f}",
        correlation=_signed(pairs),
        advantages=_signed(sums.advantages),
        remedy=remedy,
    )


def _standing_out(sums: TurnSums, thresholds: Thresholds) -> Iterator[tuple[str, int]]:
    """Yield each reward through which the advantages favor more turns (1) or fewer turns (-1).

    The correlation of its total with the number of turns is at least `turn_count`, clearly not 0,
    and, in the direction of its weight, of the sign of that of the advantages. It has an influence.
    """
    first, advantages = sums.influences[0], sums.advantages
    if first is None or not advantages.stands_out(3.0):
        return
    shares = dict(zip(first.names, first.shares.tolist(), strict=True))
    weights = dict(zip(first.names, first.sums.weight.tolist(), strict=True))
    for name, each in sums.rewards.items():
        pairs, weight = each.with_turns, weights.get(name, 0.0)
        known = pairs.groups >= thresholds.turn_count_groups and weight != 0
        if not known or abs(pairs.correlation) < thresholds.turn_count:
            continue
        sign = 1 if (pairs.correlation > 0) == (weight > 0) else -1
        influences = shares[name] >= thresholds.turn_count_influence
        agrees = sign * advantages.correlation > 0
        if influences and agrees and pairs.stands_out(3.0):
            yield name, sign


def _signed(pairs: _Pairs) -> str:
    return f"{pairs.correlation:.2f} ± {pairs.margin:.2f}".replace("-", "−")


def _evidence(pairs: _Pairs) -> dict[str, float]:
    return {"correlation": pairs.correlation, "margin": pairs.margin, "groups": pairs.groups}


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
        return _turn_findings(pooled_turns(tuple(self._steps)), self._thresholds)
