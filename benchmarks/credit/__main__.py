"""Measures the bias and variance of advantages per turn, by listing all groups of small agents.

python -m benchmarks.credit table     # 18 estimators, groups of 3 with 4 turns, of 8 with 3 turns
python -m benchmarks.credit sweep     # stopping rates, numbers of turns, sizes of groups
python -m benchmarks.credit module:attribute    # your own estimator, for each reward and turn

Prints Markdown tables. `table` and `sweep` are exact. Shares are of the length of the true
gradient, variances are relative to (a).
"""

import argparse

import numpy as np
from benchmarks.credit._agents import (
    TurnTask,
    exact_gradient,
    example_policy,
    example_tasks,
    list_groups,
    list_rollouts,
)
from benchmarks.credit._check import mean_gradient, no_signal, turn_bias, with_options
from benchmarks.credit._measure import rows_of
from benchmarks.credit._subjects import SUBJECTS, as_estimator

from gdpo._naming import find
from gdpo.advantages import TURN_ESTIMATORS

KINDS = ("dense", "outcome", "outcome + 1")


def tasks(rollouts):
    """Return tasks with one reward, and the state as a second reward with weight 0."""
    found = {task.name: task.rewards[..., 0] for task in example_tasks(rollouts)}
    return [
        TurnTask(name, np.stack([found[name], rollouts.states], axis=-1), (1.0, 0.0))
        for name in KINDS
    ]


def line(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*cells):
    line(*cells)
    line(*["---"] * len(cells))


def number(value):
    if np.isnan(value):
        return "none"
    return "0" if abs(value) < 1e-9 else f"{value:.2f}"


def joined(values):
    return ", ".join(map(number, values))


def rows_of_subject(name, rollouts, size):
    return rows_of(as_estimator(SUBJECTS[name]), rollouts, size=size, tasks=tasks)


def biases(subject, rollouts, groups):
    """Yield the bias for each task, NaN without a gradient. Variances would take longer."""
    for task in tasks(rollouts):
        wanted = exact_gradient(rollouts, task)
        mean = mean_gradient(subject, rollouts, task, *groups)
        has_gradient = np.linalg.norm(wanted) > 1e-9
        yield np.linalg.norm(turn_bias(mean, wanted, any_factor=False)) if has_gradient else np.nan


def own_table(name):
    """Print the bias for each kind of reward and each turn. The variance only without a bias."""
    estimator = with_options(find(name, TURN_ESTIMATORS, "estimator for turns"))
    rollouts = list_rollouts(example_policy())
    turns = [f"turn {turn + 1}" for turn in range(rollouts.actions.shape[1])]
    head("reward", "bias", "degrees", *turns, "variance")
    for row in rows_of(estimator, rollouts, size=3):
        numbers = (row.bias, row.degrees, *row.turn_bias, row.variance)
        line(row.reward, *map(number, numbers))


def table():
    four, three = list_rollouts(example_policy()), list_rollouts(example_policy(turns=3))
    eights = list_groups(three, 8)
    print("Probability of reaching each turn:", joined(four.reached))
    kinds = ", ".join(KINDS)
    head(
        "estimator",
        f"bias: {kinds}",
        f"degrees: {kinds}",
        f"variance: {kinds}",
        "G = 8, T = 3, bias",
        "no signal",
        "equal outcome",
    )
    for name, subject in SUBJECTS.items():
        rows = rows_of_subject(name, four, 3)
        line(
            name,
            joined(row.bias for row in rows),
            joined(row.degrees for row in rows),
            joined(row.variance for row in rows),
            joined(biases(as_estimator(subject), three, eights)),
            *map(number, no_signal(as_estimator(subject), 4, 3)),
        )


SWEPT = [
    name for name in SUBJECTS if name.split(":")[0] in ("b1", "c1", "d0", "d1", "D", "D'", "g")
]


def sweep():
    """Print the bias for several agents and sizes of groups, and for D also the variance."""
    settings = [
        *((f"stop {stop}", {"stop": stop}, 3) for stop in (0.1, 0.3, 0.5, 0.7)),
        *((f"{turns} turns", {"turns": turns}, 3) for turns in (1, 2, 3, 4)),
        *((f"G = {size}, 3 turns", {"turns": 3}, size) for size in (2, 4, 8)),
    ]
    print(f"Bias for {', '.join(KINDS)}; variance for D. Groups of 3, 4 turns, stop 0.4")
    head("setting", *SWEPT)
    for name, agent, size in settings:
        rollouts = list_rollouts(example_policy(**agent))
        groups, cells = list_groups(rollouts, size), []
        for each in SWEPT:
            if each.startswith("D:"):
                cells.append(joined(row.variance for row in rows_of_subject(each, rollouts, size)))
            else:
                cells.append(joined(biases(as_estimator(SUBJECTS[each]), rollouts, groups)))
        line(name, *cells)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.credit")
    parser.add_argument("what", help="table, sweep, or an estimator for turns")
    given = parser.parse_args()
    if given.what in (tables := {"table": table, "sweep": sweep}):
        tables[given.what]()
    else:
        own_table(given.what)


if __name__ == "__main__":
    main()
