"""Prints what was looked at after the results: which rewards, tasks and pairs they come from."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from benchmarks.forks._statistics import concordance, mean_of, over_warm_starts
from benchmarks.forks._tables import (
    AS_IT_IS,
    BANDS,
    LATER,
    LEARNED,
    State,
    no_noise,
    ordered,
    part_of_effect,
    per_warm_start,
)

ESTIMATORS = ("grpo", "gdpo")


def print_after(states: Sequence[State]) -> None:
    """Print the tables that were added after the results."""
    print("Added after the results:\n")
    _bands(states)
    _reported(states)
    _orders(states)
    _followed_back(states)


def _of(states: Sequence[State], value: Callable[[State], float]) -> str:
    return str(over_warm_starts(per_warm_start(states, value)))


def _bands(states: Sequence[State]) -> None:
    print("| influence share | `grpo` | `gdpo` | without `noise` | rewards, most frequent first |")
    print("|---|---|---|---|---|")
    for low, high in pairwise(BANDS):

        def inside(state: State, low: float = low, high: float = high) -> Any:
            return (state.of("share") >= low) & (state.of("share") < high)

        def mean(state: State, inside: Any = inside) -> float:
            return mean_of(state.own(LATER)[inside(state)])

        def without(state: State, inside: Any = inside) -> float:
            return mean_of(state.own(LATER)[inside(state) & no_noise(state)])

        cells = [_of([s for s in states if s.estimator == name], mean) for name in ESTIMATORS]
        cells.append(_of(states, without))
        counts: dict[str, int] = {}
        for state in states:
            for k in np.flatnonzero(inside(state)):
                key = f"{state.names[k]} of {state.task}"
                counts[key] = counts.get(key, 0) + 1
        most = sorted(counts, key=lambda key: -counts[key])
        learned = sum(int((inside(s) & (s.mean_in_range >= LEARNED)).sum()) for s in states)
        label = f"{100 * low:.0f} to {100 * min(high, 1):.0f} %" if low >= 0 else "below 5 %"
        shown = ", ".join(f"{counts[key]} {key}" for key in most)
        print(f"| {label} | {' | '.join(cells)} | {shown}; {learned} are learned |")
    print()


def _reported(states: Sequence[State]) -> None:
    print("| reported reward | states | part of its weight share | own effect | after the remedy |")
    print("|---|---|---|---|---|")
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    changed = 0
    for state in states:
        own = state.own(LATER)
        for k in state.findings():
            name = state.names[k]
            changed += state.rewards[name]["remedies"][0][0] != state.estimator
            remedied = state.effects[f"remedy for {name}"][name][str(LATER)][0][k]
            part = own[k] / np.abs(own).sum() * len(own)
            entry = (part, own[k], remedied / state.rewards[name]["std"])
            found.setdefault((state.task, name), []).append(entry)
    for (task, name), entries in sorted(found.items()):
        cells = " | ".join(f"{value:.2f}" for value in np.mean(entries, axis=0))
        print(f"| {name} of {task} | {len(entries)} | {cells} |")
    for task in sorted({task for task, _ in found}):
        chosen = [state for state in states if state.task == task]
        print(f"| {task}, over warm starts | | {_of(chosen, part_of_effect)} | | |")
    print(f"\nThe first remedy changes the estimator in {changed} states, else the weight.\n")


def _clear(state: State) -> float:
    """Return the concordance over pairs whose own effects differ by two standard errors."""
    entries = [state.effects[AS_IT_IS][name][str(LATER)] for name in state.names]
    std = state.of("std")
    errors = np.array([entry[1][k] for k, entry in enumerate(entries)])
    errors = errors / np.where(std > 0, std, np.inf)
    own = state.own(LATER)

    def counts(i: int, j: int) -> bool:
        return bool(abs(own[i] - own[j]) > 2 * np.hypot(errors[i], errors[j]))

    return concordance(state.of("share"), own, counts)


def _orders(states: Sequence[State]) -> None:
    columns: dict[str, Callable[[State], float]] = {
        "all pairs": ordered(LATER),
        "without `noise`": ordered(LATER, keep=no_noise),
        "effects differ by 2 standard errors": _clear,
    }
    print(f"| concordance after 10 steps | {' | '.join(columns)} |\n|---|---|---|---|")
    parts = {f"at step {at}": [s for s in states if s.step == at] for at in (10, 40, 80)}
    for name in ESTIMATORS:
        own = [s for s in states if s.estimator == name]
        parts |= {f"`{name}`": own, f"`{name}` at step 10": [s for s in own if s.step == 10]}
    for name, chosen in {"all": states, **parts}.items():
        print(f"| {name} | {' | '.join(_of(chosen, value) for value in columns.values())} |")
    print()


def _followed_back(states: Sequence[State]) -> None:
    """Print the share, at each point, of the rewards that are learned at the last one."""
    last = max(state.step for state in states)
    ends = {
        (state.task, state.warm_start, state.estimator): state.mean_in_range >= LEARNED
        for state in states
        if state.step == last
    }
    print(f"| rewards | step | share | varies in |\n|{'---|' * 4}")
    for learned in (True, False):
        for step in sorted({state.step for state in states}):

            def kept(state: State, key: str, *, learned: bool = learned) -> float:
                end = ends[state.task, state.warm_start, state.estimator]
                return mean_of(state.of(key)[end == learned])

            chosen = [state for state in states if state.step == step]
            cells = [_of(chosen, lambda s, key=key, kept=kept: kept(s, key)) for key in KEYS]
            word = f"learned at step {last}" if learned else f"not learned at step {last}"
            print(f"| {word} | {step} | {' | '.join(cells)} |")
    print()


KEYS = ("share", "varies")
