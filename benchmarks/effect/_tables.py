"""Prints the registered hypotheses, and how well each number orders what was learned."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks._shown import row
from benchmarks.effect._account import LATER, LEFT_OUT, LENGTHS
from benchmarks.forks._statistics import over_warm_starts
from benchmarks.forks._tables import AS_IT_IS, State, read_states

ERRORS = 2.0
"""Standard errors beyond which two values differ, and a value is clear."""

MOVES = 0.05
"""Own effect over ten steps, in std, above which a reward moves."""


class Case(NamedTuple):
    """Stores a state of a run, with its predictions and accounts."""

    state: State
    predicted: Mapping[str, Any]
    account: Mapping[str, Any]
    changes: Mapping[str, Any]

    @property
    def std(self) -> Any:
        """Standard deviation of each reward within groups. Infinite: it does not vary."""
        std = self.state.of("std")
        return np.where(std > 0, std, np.inf)

    def own(self, horizon: int) -> tuple[Any, Any]:
        """Return the recorded own effect of each reward and its error, in its std."""
        values, errors = self.cross(horizon)
        return np.diag(values), np.diag(errors)

    def cross(self, horizon: int) -> tuple[Any, Any]:
        """Return the recorded effect of reward k on reward j, `[j, k]`, and its error."""
        effects = self.state.effects[AS_IT_IS]
        found = np.array([effects[name][str(horizon)] for name in self.state.names])
        values, errors = found.transpose(1, 2, 0) / self.std[:, None]
        return values, errors

    def parts(self, way: str, length: int) -> tuple[Any, Any]:
        """Return the account, `[reward, K + 2]`, and its error, in std."""
        found = self.account[way][str(length)]
        return tuple(np.array(found[key]) / self.std[:, None] for key in ("value", "error"))

    def changed(self, length: int) -> tuple[Any, Any]:
        """Return the measured change of each reward, and its error, in its std."""
        value, error = self.changes[str(length)]
        return np.array(value) / self.std, np.array(error) / self.std


Predictor = Callable[[Case], Any]

PREDICTORS: dict[str, Predictor] = {
    "influence share": lambda case: case.state.of("share"),
    "**effect**": lambda case: np.diag(case.predicted["effect"]),
    "effect, plain gradient": lambda case: np.array(case.predicted["plain gradient"]),
    "share × cosine between halves": lambda case: (
        case.state.of("share") * np.array(case.predicted["cosine"])
    ),
    "slope of the last 10 training batches": lambda case: np.array(case.predicted["visible slope"]),
    "covariance with the advantages": lambda case: np.array(case.predicted["covariance"]),
    "gradient norm": lambda case: np.array(case.predicted["gradient norm"]),
    "ten frozen steps, logistic": lambda case: np.array(case.predicted["logistic"]),
    **{
        f"account of {length} steps, {way}": lambda case, way=way, length=length: np.diag(
            case.parts(way, length)[0]
        )
        for length in LENGTHS
        for way in (LATER, LEFT_OUT)
    },
    "recorded effect of 1 step": lambda case: case.own(1)[0],
}
"""What may order the own effects of the rewards of a state. The account sees the later steps."""


def read_cases(folder: Path) -> list[Case]:
    """Return the states of all records."""
    states, records = read_states(folder)
    found = [state for record in records for state in record["states"]]
    return [
        Case(state, each["predicted"], each["account"], each["changes"])
        for state, each in zip(states, found, strict=True)
    ]


def pairs(case: Case, predictor: Predictor, horizon: int, *, noise: bool = True) -> list[float]:
    """Return for each clear pair of rewards whether the predictor orders it as the forks do.

    A pair is clear if its recorded effects differ by `ERRORS` standard errors. 0.5: the predictor
    has equal values. `noise`: with pairs of which one reward is noise.
    """
    said, (own, error) = predictor(case), case.own(horizon)
    kept = [i for i, name in enumerate(case.state.names) if noise or name != "noise"]
    return [
        float((1 + np.sign((said[i] - said[j]) * (own[i] - own[j]))) / 2)
        for i, j in combinations(kept, 2)
        if abs(own[i] - own[j]) > ERRORS * np.hypot(error[i], error[j])
    ]


def shares(cases: Sequence[Case], predictor: Predictor, horizon: int, **which: Any) -> list[float]:
    """Return the share of rightly ordered pairs of each warm start. NaN: it has no pair."""
    found = []
    for start in sorted({case.state.warm_start for case in cases}):
        own = [case for case in cases if case.state.warm_start == start]
        of_start = [each for case in own for each in pairs(case, predictor, horizon, **which)]
        found.append(float(np.mean(of_start)) if of_start else np.nan)
    return found


def print_tables(folder: Path) -> None:
    """Print the tables, as Markdown."""
    cases = read_cases(folder)
    starts = {case.state.warm_start for case in cases}
    print(f"{len(cases)} states, {len(starts)} warm starts\n")
    _hypotheses(cases)
    print()
    _order(cases)
    print()
    _totals(cases)


def _hypotheses(cases: Sequence[Case]) -> None:
    row("", ["hypothesis", "result", "supported"], head=True)
    for name, text, result, holds in _decided(cases):
        row(name, [text, result, "yes" if holds else "**no**"])


def _decided(cases: Sequence[Case]) -> Iterator[tuple[str, str, str, bool]]:
    effect, share = PREDICTORS["**effect**"], PREDICTORS["influence share"]
    ordered = over_warm_starts(shares(cases, effect, 1))
    more = over_warm_starts(_more(cases, share, 1))
    yield (
        "H1",
        "of the pairs that clearly differ after 1 step, the effect orders at least 0.9, and more "
        "than the share does",
        f"{ordered}; more than the share by {more}",
        ordered.mean >= 0.9 and more.low > 0,
    )
    early = [case for case in cases if (case.state.estimator, case.state.step) == ("gdpo", 10)]
    of_early = over_warm_starts(shares(early, effect, 1))
    yield "H2", "the same for `gdpo` at step 10: at least 0.8", str(of_early), of_early.mean >= 0.8
    of_noise, of_moving = list(_unseen(cases, noise=True)), list(_unseen(cases, noise=False))
    yield (
        "H3",
        "no effect is seen in at least 95 % of noise, and in at most 20 % of rewards that move",
        f"{_part(of_noise)}; {_part(of_moving)}",
        bool(np.mean(of_noise) >= 0.95 and np.mean(of_moving) <= 0.2),
    )
    negative = list(_lowered(cases))
    yield (
        "H4",
        "where the effect says that one reward lowers another one, and the forks are clear, at "
        "least 80 % of the forks agree",
        _part(negative),
        bool(negative) and float(np.mean(negative)) >= 0.8,
    )
    ratio = _sum(cases, lambda case: case.own(1)[0]) / _sum(cases, effect)
    yield (
        "H5",
        "after 1 step, the recorded effects add up to 0.8 to 1.25 times the predicted ones",
        f"{ratio:.2f}",
        0.8 <= ratio <= 1.25,
    )
    for way in (LATER, LEFT_OUT):
        yield from _of_account(cases, way)


def _of_account(cases: Sequence[Case], way: str) -> Iterator[tuple[str, str, str, bool]]:
    for length in LENGTHS:
        within, slope, _ = _total(cases, way, length)
        said = list(_called(cases, way, length))
        signs = list(_signs(cases, way, length))
        holds = bool(np.mean(within) >= 0.9 and 0.9 <= slope <= 1.1)
        holds = holds and float(np.mean(said)) >= 0.85 and float(np.mean(signs)) >= 0.85
        result = f"{_part(within)}, {slope:.2f}; {_part(said)}; {_part(signs)}"
        yield f"H6, {length} steps", way, result, holds


def _unseen(cases: Sequence[Case], *, noise: bool, groups: int = 256) -> Iterator[bool]:
    """Yield for each noise, or each reward that moves, whether no effect of it is seen."""
    for case in cases:
        own, error = case.own(10)
        for k, name in enumerate(case.state.names):
            moves = own[k] > max(MOVES, ERRORS * error[k])
            if (name == "noise") if noise else (name != "noise" and moves):
                yield from (name in unseen for unseen in case.predicted["unseen"][str(groups)])


def _lowered(cases: Sequence[Case], horizon: int = 1) -> Iterator[bool]:
    """Yield whether what the effect says to be lowered is, where the forks are clear."""
    for case in cases:
        values, errors = case.cross(horizon)
        for lower, lowered in case.predicted["lowers"]:
            k, j = case.state.names.index(lower), case.state.names.index(lowered)
            if abs(values[j, k]) > ERRORS * errors[j, k]:
                yield bool(values[j, k] < 0)


def _total(cases: Sequence[Case], way: str, length: int) -> tuple[list[bool], float, float]:
    """Return whether each total agrees with the measured change, and slope and correlation."""
    within: list[bool] = []
    totals: list[float] = []
    changes: list[float] = []
    for case in cases:
        (value, error), (changed, apart) = case.parts(way, length), case.changed(length)
        count = len(changed)
        for k, name in enumerate(case.state.names):
            if name != "noise" and np.isfinite(case.std[k]):
                off = ERRORS * np.hypot(error[k, count], apart[k])
                within.append(bool(abs(value[k, count] - changed[k]) <= off))
                totals.append(value[k, count])
                changes.append(changed[k])
    x, y = np.array(totals), np.array(changes)
    return within, float(x @ y / (x @ x)), float(np.corrcoef(x, y)[0, 1])


def _called(cases: Sequence[Case], way: str, length: int) -> Iterator[bool]:
    """Yield for each pair whose own parts clearly differ whether the forks order it so."""
    for case in cases:
        (value, error), (own, _) = case.parts(way, length), case.own(length)
        for i, j in combinations(range(len(own)), 2):
            apart = value[i, i] - value[j, j]
            if abs(apart) > ERRORS * np.hypot(error[i, i], error[j, j]):
                yield bool(apart * (own[i] - own[j]) > 0)


def _signs(cases: Sequence[Case], way: str, length: int) -> Iterator[bool]:
    """Yield for each cross part that is clear in both whether it has the sign of the forks."""
    for case in cases:
        (value, error), (cross, apart) = case.parts(way, length), case.cross(length)
        for j, k in np.ndindex(cross.shape):
            clear = abs(value[j, k]) > ERRORS * error[j, k]
            if j != k and clear and abs(cross[j, k]) > ERRORS * apart[j, k]:
                yield bool(value[j, k] * cross[j, k] > 0)


def _order(cases: Sequence[Case]) -> None:
    effect, horizons = PREDICTORS["**effect**"], (1, 5, 10, 20)
    heads = [f"{horizon} step{'s' * (horizon > 1)}" for horizon in horizons]
    row("clear pairs in the right order after", heads, head=True)
    for name, predictor in PREDICTORS.items():
        cells = []
        for horizon in horizons:
            found = [each for case in cases for each in pairs(case, predictor, horizon)]
            mean = over_warm_starts(shares(cases, predictor, horizon))
            cells.append(f"{mean}, {sum(found):g} of {len(found)}")
        row(name, cells)
    print()
    row("the effect orders more than", heads, head=True)
    for name, predictor in PREDICTORS.items():
        if predictor is not effect:
            row(name, [over_warm_starts(_more(cases, predictor, h)) for h in horizons])
    print()
    _subsets(cases)


def _more(cases: Sequence[Case], predictor: Predictor, horizon: int) -> list[float]:
    """Return for each warm start how much larger a share of the pairs the effect orders."""
    of_effect = shares(cases, PREDICTORS["**effect**"], horizon)
    both = zip(of_effect, shares(cases, predictor, horizon), strict=True)
    return [one - other for one, other in both]


def _subsets(cases: Sequence[Case]) -> None:
    both = (PREDICTORS["**effect**"], PREDICTORS["influence share"])
    heads = [f"{n}, step {h}" for h in (1, 5, 10) for n in ("effect", "share")]
    row("clear pairs", heads, head=True)
    kinds: dict[str, Callable[[State], bool]] = {
        **{t: lambda state, t=t: state.task == t for t in ("sums", "tools", "stories")},
        **{f"`{e}`": lambda state, e=e: state.estimator == e for e in ("grpo", "gdpo")},
        **{f"step {step}": lambda state, step=step: state.step == step for step in (10, 40, 80)},
        "`gdpo`, step 10": lambda state: (state.estimator, state.step) == ("gdpo", 10),
    }
    for name, kind in kinds.items():
        own = [case for case in cases if kind(case.state)]
        row(name, [over_warm_starts(shares(own, p, h)) for h in (1, 5, 10) for p in both])
    found = [over_warm_starts(shares(cases, p, h, noise=False)) for h in (1, 5, 10) for p in both]
    row("without pairs with noise", found)
    print()
    row("1 step", ["recorded / predicted own effects", "within 2 se"], head=True)
    for name in ("sums", "tools", "stories"):
        own = [case for case in cases if case.state.task == name]
        ratio = _sum(own, lambda case: case.own(1)[0]) / _sum(own, both[0])
        row(name, [f"{ratio:.2f}", _part(list(_sized(own)))])
    print()
    row("lowers another reward", ["by the effect", "clear in the forks", "negative"], head=True)
    said = sum(len(case.predicted["lowers"]) for case in cases)
    for horizon in (1, 10):
        lowered = list(_lowered(cases, horizon))
        row(f"forks after step {horizon}", [said, len(lowered), _part(lowered)])
    every = [
        each < 0
        for case in cases
        for (j, k), each in np.ndenumerate(case.cross(1)[0])
        if j != k and abs(each) > ERRORS * case.cross(1)[1][j, k]
    ]
    row("every clear cross effect of 1 step", ["", len(every), _part(every)])


def _sized(cases: Sequence[Case]) -> Iterator[bool]:
    """Yield for each own effect of 1 step whether it is within two standard errors."""
    for case in cases:
        own, error = case.own(1)
        predicted, apart = (np.diag(case.predicted[key]) for key in ("effect", "errors"))
        yield from (abs(own - predicted) <= ERRORS * np.hypot(error, apart)).tolist()


def _totals(cases: Sequence[Case]) -> None:
    heads = ["steps", "total: within 2 se", "slope", "correlation", "own parts: correlation"]
    row("account", heads, head=True)
    for way in (LATER, LEFT_OUT):
        for length in LENGTHS:
            within, slope, correlation = _total(cases, way, length)
            own = [np.diag(case.parts(way, length)[0]) for case in cases]
            forks = [case.own(length)[0] for case in cases]
            of_own = np.corrcoef(np.concatenate(own), np.concatenate(forks))[0, 1]
            row(way, [length, _part(within), f"{slope:.2f}", f"{correlation:.2f}", f"{of_own:.2f}"])
    print()
    row("no effect seen", ["of noise", "of a reward that moves"], head=True)
    for groups in (256, 128):
        found = [list(_unseen(cases, noise=each, groups=groups)) for each in (True, False)]
        row(f"{groups} groups", map(_part, found))


def _sum(cases: Sequence[Case], value: Callable[[Case], Any]) -> float:
    return float(sum(np.sum(value(case)) for case in cases))


def _part(found: Sequence[bool]) -> str:
    """Return a share with its counts."""
    return f"{sum(found)} of {len(found)} ({np.mean(found):.0%})" if found else "none"
