"""Prints the results of the forked runs: the hypotheses, and what else was measured."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.forks._fork import HORIZONS
from benchmarks.forks._statistics import Mean, concordance, mean_of, over_warm_starts
from benchmarks.forks._toys import COSINES, toy_concordances

AS_IT_IS = "as it is"
LIMITS = {1: 0.8, 10: 0.65}
LEARNED, _SPARSE, LATER = 0.8, 0.2, 10


@dataclass(frozen=True, slots=True)
class State:
    """Stores one state of a run, and the effects of its rewards from there on."""

    task: str
    warm_start: int
    estimator: str
    step: int
    names: tuple[str, ...]
    ranges: Mapping[str, Sequence[float]]
    rewards: Mapping[str, Mapping[str, Any]]
    effects: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def of(self, key: str) -> Any:
        """Return one fact of each reward."""
        return np.array([self.rewards[name][key] for name in self.names])

    @property
    def mean_in_range(self) -> Any:
        """Return the mean of each reward as a part of its range."""
        low, high = np.array([self.ranges[name] for name in self.names]).T
        return (self.of("mean") - low) / (high - low)

    def own(self, horizon: int, arm: str = AS_IT_IS, unit: str = "std") -> Any:
        """Return the effect of each reward on itself. 0: it does not vary at the state."""
        effects = np.array(
            [self.effects[arm][n][str(horizon)][0][k] for k, n in enumerate(self.names)]
        )
        if unit == "range":
            low, high = np.array([self.ranges[name] for name in self.names]).T
            return effects / (high - low)
        std = self.of("std")
        return effects / np.where(std > 0, std, np.inf)

    def findings(self) -> Iterable[int]:
        """Yield the place of each reward with less influence than its weight, by a finding."""
        return (k for k, name in enumerate(self.names) if self.rewards[name]["finding"])


def read_states(folder: Path) -> tuple[list[State], list[Any]]:
    """Return the states of all records, and the records."""
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    states = [
        State(
            record["task"],
            record["warm_start"],
            record["estimator"],
            state["step"],
            tuple(state["rewards"]),
            record["rewards"],
            state["rewards"],
            state["effects"],
        )
        for record in records
        for state in record["states"]
    ]
    return states, records


def per_warm_start(states: Sequence[State], value: Callable[[State], float]) -> list[float]:
    """Return the mean over tasks of the mean over states, for each warm start."""
    tasks, starts = sorted({s.task for s in states}), sorted({s.warm_start for s in states})
    return [
        mean_of(
            [
                mean_of([value(s) for s in states if (s.task, s.warm_start) == (task, start)])
                for task in tasks
            ]
        )
        for start in starts
    ]


def ordered(
    horizon: int,
    *,
    arm: str = AS_IT_IS,
    unit: str = "std",
    keep: Callable[[State], Any] | None = None,
    apart: bool = False,
) -> Callable[[State], float]:
    """Return a function of a state that returns its concordance.

    Args:
        horizon: Further steps.
        arm: Which forks.
        unit: Unit of the own effects, `std` or `range`.
        keep: Function that returns which rewards may be in a pair. None: all.
        apart: Whether only pairs count whose intervals of the share do not overlap.
    """

    def value(state: State) -> float:
        if arm not in state.effects:
            return float("nan")
        kept = np.ones(len(state.names), bool) if keep is None else keep(state)
        shares, margins = state.of("share"), state.of("margin")

        def counts(i: int, j: int) -> bool:
            clear = abs(shares[i] - shares[j]) > margins[i] + margins[j]
            return bool(kept[i] and kept[j] and (clear or not apart))

        return concordance(shares, state.own(horizon, arm, unit), counts)

    return value


def no_noise(state: State) -> Any:
    """Return which rewards are not the noise."""
    return np.array([name != "noise" for name in state.names])


def part_of_effect(state: State, *, reported: bool = True) -> float:
    """Return the mean effect share of the reported rewards, divided by their weight share."""
    own = state.own(LATER)
    total = np.abs(own).sum()
    found = set(state.findings())
    chosen = [k for k in range(len(own)) if (k in found) == reported]
    return mean_of([own[k] / total * len(own) for k in chosen]) if total else np.nan


def remedied(state: State, *, before: bool = False) -> float:
    """Return by how much the own effect of the reported rewards rises after the first remedy.

    With `before`, return their own effect without it.
    """
    found = []
    for name, at in state.effects.items():
        reward = name.removeprefix("remedy for ")
        if reward == name:
            continue
        k = state.names.index(reward)
        now = state.own(LATER)[k]
        after = at[reward][str(LATER)][0][k] / state.rewards[reward]["std"]
        found.append(now if before else after - now)
    return mean_of(found)


def verdict(*, above: bool, below: bool) -> str:
    """Return the word for a hypothesis."""
    return "supported" if above else "refuted" if below else "undecided"


def print_tables(folder: Path) -> None:
    """Print the results of the records in a folder."""
    states, records = read_states(folder)
    equal = [each for record in records for each in record["unchanged forks equal"]]
    print(
        f"{len(records)} runs, {len(states)} states, {sum(equal)} of {len(equal)} unchanged forks"
    )
    print("have the weights of their run, bit for bit\n")
    _hypotheses(states)
    _h4(states)
    _details(states)
    _findings(states)
    _points(states)
    _learned(states)
    _times(records)


def _hypotheses(states: Sequence[State]) -> None:
    def of(value: Callable[[State], float]) -> Mean:
        return over_warm_starts(per_warm_start(states, value))

    print("| hypothesis | number | result | |\n|---|---|---|---|")
    h1 = {h: of(ordered(h)) for h in LIMITS}
    word = verdict(
        above=all(h1[h].low > limit for h, limit in LIMITS.items()),
        below=any(h1[h].high < limit for h, limit in LIMITS.items()),
    )
    for h, limit in LIMITS.items():
        print(f"| H1 | concordance, {h} further steps (above {limit}) | {h1[h]} | {word} |")
    part, rise = of(part_of_effect), of(remedied)
    word = verdict(above=part.high < 0.5, below=part.low > 0.5)
    print(f"| H2 | effect share of reported rewards / weight share (below 0.5) | {part} | {word} |")
    others = of(lambda state: part_of_effect(state, reported=False))
    print(f"| | the same for rewards without a finding | {others} | |")
    present = of(lambda state: remedied(state, before=True))
    print(f"| | own effect before the remedy | {present} | |")
    word = verdict(above=rise.low > 0, below=rise.high < 0)
    print(f"| H3 | own effect after the remedy minus before (above 0) | {rise} | {word} |\n")


def _difference(states: Sequence[State], value: Any, other: Any) -> Mean:
    ours, theirs = (per_warm_start(states, each) for each in (value, other))
    return over_warm_starts([a - b for a, b in zip(ours, theirs, strict=True)])


def _h4(states: Sequence[State]) -> None:
    def live(state: State) -> Any:
        return state.of("varies") >= _SPARSE

    def unlearned(state: State) -> Any:
        return state.mean_in_range < LEARNED

    usual = ordered(LATER)
    print("| H4: without | concordance after 10 steps | difference |\n|---|---|---|")
    for name, keep in (("saturation", unlearned), ("sparse groups", live), ("noise", no_noise)):
        value = ordered(LATER, keep=keep)
        mean = over_warm_starts(per_warm_start(states, value))
        print(f"| {name} | {mean} | {_difference(states, value, usual)} |")
    for name, arm in (("Adam's state", "fresh optimizer"), ("clipping", "no clipping")):
        there = [state for state in states if arm in state.effects]
        if not there:
            print(f"| {name} | no fork | |")
            continue
        value = ordered(LATER, arm=arm)
        mean = over_warm_starts(per_warm_start(there, value))
        shown = f"{mean}, {len(there)} states"
        print(f"| {name} | {shown} | {_difference(there, value, usual)} |")
    apart, shared = (toy_concordances(cosine) for cosine in COSINES)
    difference = over_warm_starts([a - b for a, b in zip(apart, shared, strict=True)])
    print(f"| shared parameters (toy) | {over_warm_starts(apart)} | {difference} |\n")


def _details(states: Sequence[State]) -> None:
    heads = " | ".join(f"{h} steps" for h in HORIZONS)
    print(f"| concordance | {heads} |\n|---|{'---|' * len(HORIZONS)}")
    tasks = sorted({state.task for state in states})
    parts: dict[str, list[State]] = {task: [s for s in states if s.task == task] for task in tasks}
    parts |= {name: [s for s in states if s.estimator == name] for name in ("grpo", "gdpo")}
    steps = sorted({state.step for state in states})
    parts |= {f"at step {at}": [s for s in states if s.step == at] for at in steps}
    rows: list[tuple[str, Sequence[State], dict[str, Any]]] = [("all", states, {})]
    rows += [(name, part, {}) for name, part in parts.items()]
    rows += [
        ("in units of the range", states, {"unit": "range"}),
        ("shares clearly apart", states, {"apart": True}),
    ]
    for name, chosen, how in rows:
        cells = [over_warm_starts(per_warm_start(chosen, ordered(h, **how))) for h in HORIZONS]
        print(f"| {name} | {' | '.join(map(str, cells))} |")
    print()


BANDS = (-1.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.01)


def _findings(states: Sequence[State]) -> None:
    """Print the mean own effect by influence share, and for each task and estimator."""
    print("| influence share | rewards | own effect after 1 | 5 | 10 | 20 steps |")
    print("|---|---|---|---|---|---|")
    for low, high in pairwise(BANDS):

        def inside(state: State, low: float = low, high: float = high) -> Any:
            return (state.of("share") >= low) & (state.of("share") < high)

        count = sum(int(inside(state).sum()) for state in states)
        cells = []
        for h in HORIZONS:
            values = per_warm_start(
                states, lambda s, h=h, inside=inside: mean_of(s.own(h)[inside(s)])
            )
            cells.append(str(over_warm_starts(values, 3)))
        label = f"{100 * low:.0f} to {100 * min(high, 1):.0f} %" if low >= 0 else "below 5 %"
        print(f"| {label} | {count} | {' | '.join(cells)} |")
    print("\n| task | estimator | reward | share | own effect after 10 steps | on the others |")
    print("|---|---|---|---|---|---|")
    for task, estimator in sorted({(s.task, s.estimator) for s in states}):
        chosen = [s for s in states if (s.task, s.estimator) == (task, estimator)]
        for k, name in enumerate(chosen[0].names):
            share = over_warm_starts(per_warm_start(chosen, lambda s, k=k: s.of("share")[k]))
            own = over_warm_starts(per_warm_start(chosen, lambda s, k=k: s.own(LATER)[k]))
            others = over_warm_starts(per_warm_start(chosen, lambda s, k=k: _cross(s, k)))
            print(f"| {task} | `{estimator}` | {name} | {share} | {own} | {others} |")
    print()


def _cross(state: State, k: int) -> float:
    """Return the mean effect of a reward on the others, in their standard deviations."""
    effects = np.array(state.effects[AS_IT_IS][state.names[k]][str(LATER)][0])
    std = state.of("std")
    others = [i for i in range(len(effects)) if i != k and std[i] > 0]
    return mean_of(effects[others] / std[others])


def _points(states: Sequence[State]) -> None:
    """Print what each reward has and does at each point of a task's runs."""
    print("| task | estimator | step | concordance | share and own effect after 10 steps |")
    print("|---|---|---|---|---|")
    places = {(s.task, s.estimator, s.step) for s in states}
    for key in sorted(places, key=lambda at: (at[0], at[1] != "grpo", at[2])):
        chosen = [s for s in states if (s.task, s.estimator, s.step) == key]
        order = over_warm_starts(per_warm_start(chosen, ordered(LATER)))
        share = np.mean([s.of("share") for s in chosen], axis=0)
        own = np.mean([s.own(LATER) for s in chosen], axis=0)
        cells = [
            f"{name} {100 * part:.0f} %, {effect:.2f}"
            for name, part, effect in zip(chosen[0].names, share, own, strict=True)
        ]
        task, estimator, step = key
        print(f"| {task} | `{estimator}` | {step} | {order.mean:.2f} | {'; '.join(cells)} |")
    print()


def _learned(states: Sequence[State]) -> None:
    """Print what learned and other rewards look like at each point."""
    print("| rewards | step | number | share | varies in | own effect after 10 steps |")
    print("|---|---|---|---|---|---|")
    for learned in (True, False):
        for step in sorted({state.step for state in states}):
            chosen = [s for s in states if s.step == step]

            def kept(state: State, *, learned: bool = learned) -> Any:
                return (state.mean_in_range >= LEARNED) == learned

            count = sum(int(kept(state).sum()) for state in chosen)
            if not count:
                continue
            cells = [
                over_warm_starts(per_warm_start(chosen, value))
                for value in (
                    lambda s, kept=kept: mean_of(s.of("share")[kept(s)]),
                    lambda s, kept=kept: mean_of(s.of("varies")[kept(s)]),
                    lambda s, kept=kept: mean_of(s.own(LATER)[kept(s)]),
                )
            ]
            word = "learned" if learned else "not learned"
            print(f"| {word} | {step} | {count} | {' | '.join(map(str, cells))} |")
    print()


def _times(records: Sequence[Any]) -> None:
    """Print the CPU time of a fork, as a part of the time of its steps."""
    spent = [record["seconds"] for record in records]
    whole, steps = (sum(each[key] for each in spent) for key in ("forks", "steps of forks"))
    print(f"CPU seconds of all forks: {whole:,.0f}, of which steps: {steps:,.0f}")
