"""What a comparison would train, and what it can decide, told before anything is trained."""

from collections.abc import Sequence

from gdpo.experiments._answer import ALPHA, listed
from gdpo.experiments._comparison import FEWEST_SEEDS
from gdpo.experiments._grid import Cell, Grid
from gdpo.experiments._permutation import least_p
from gdpo.experiments._reading import run_name, unlike
from gdpo.recipes.recipe import RewardConfig

_MOST_SEEDS = 100
"""Up to which a number is looked for that could tell a difference."""


def described(grid: Grid, *, jobs: int) -> list[str]:
    """Sentences about the runs of a grid, an arm in each, and about what they can decide.

    Args:
        grid: Nothing of it need be there yet.
        jobs: Runs at a time.
    """
    arms = list(dict.fromkeys(cell.arm for cell in grid.cells))
    seeds = list(dict.fromkeys(cell.seed for cell in grid.cells))
    left = len(grid.open())
    return [
        f"{_count(len(grid.cells), 'run')} in {grid.folder}, {left} of them to do, {jobs} at a "
        f"time: {_count(len(arms), 'arm')} with {_count(len(seeds), 'seed')} "
        f"({', '.join(map(str, seeds))})",
        *(_arm(grid, [cell for cell in grid.cells if cell.arm == arm]) for arm in arms),
        *_decidable(grid),
    ]


def _arm(grid: Grid, cells: Sequence[Cell]) -> str:
    entries = zip(grid.rewards, cells[0].recipe.rewards, strict=True)
    rewards = ", ".join(f"{name} × {entry.weight:g}{_gate(entry)}" for name, entry in entries)
    done = sum(cell.done for cell in cells)
    folder = run_name(cells[0].arm, cells[0].seed) + ", …" * (len(cells) > 1)
    return f"  {cells[0].arm}: {rewards}; {done} of {len(cells)} done; {folder}"


def _gate(entry: RewardConfig) -> str:
    return "" if entry.gate is None else f" where {entry.gate.on} ≥ {entry.gate.at_least:g}"


def _decidable(grid: Grid) -> list[str]:
    """How many comparisons there are, and how many seeds they need."""
    first, *others = grid.plan.arms
    if not others:
        return [f"One arm: there is nothing to compare {first} with."]
    apart = unlike(grid.plan.arms, grid.rewards, {cell.arm: cell.recipe for cell in grid.cells})
    count, seeds = len(others) * len(grid.rewards) - len(apart), len(grid.plan.seeds)
    told = [
        f"What it can decide: {_count(len(others), 'arm')} against {first} in "
        f"{listed(grid.rewards)}: {_count(count, 'comparison')}."
    ]
    told += [
        f"{name} has another gate or other options than in {first} in {_count(otherwise, 'arm')}: "
        "there it is another quantity, and is not compared."
        for name in grid.rewards
        if (otherwise := sum(reward == name for _, reward in apart))
    ]
    return [*told, _power(seeds, count)] if count else told


def _power(seeds: int, count: int) -> str:
    """Whether so many seeds could tell a difference at all."""
    least = min(1.0, least_p(seeds, seeds) * count)
    could = f"With {_count(seeds, 'seed')} a p-value can be {least:.2g} at the least, corrected"
    if seeds >= FEWEST_SEEDS and least < ALPHA:
        return f"{could}: a clear difference can be found."
    enough = (n for n in range(FEWEST_SEEDS, _MOST_SEEDS) if least_p(n, n) * count < ALPHA)
    return f"{could}: no difference can be told. --seeds {next(enough, _MOST_SEEDS)} could."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
