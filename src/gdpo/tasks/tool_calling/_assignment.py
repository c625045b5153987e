"""The best one-to-one assignment of rows to columns, exactly."""

from collections.abc import Sequence
from math import inf


def best_total(weights: Sequence[Sequence[float]]) -> float:
    """The largest sum of weights when no row and no column is used twice.

    The Hungarian method with potentials, one augmenting path per row: O(rows² x (rows + columns)).

    Args:
        weights: `[row][column]`, all at least 0, rows of equal length.
    """
    rows = len(weights)
    if not rows or not weights[0]:
        return 0.0
    # As many empty columns as there are rows let any row stay alone. Costs are negative weights.
    costs = [[-weight for weight in row] + [0.0] * rows for row in weights]
    columns = len(costs[0])
    row_potential = [0.0] * rows
    column_potential = [0.0] * columns
    owner = [-1] * columns
    for row in range(rows):
        _augment(costs, row, owner, row_potential, column_potential)
    # Summed from the weights and not from the potentials, so that whole numbers stay whole.
    real = range(len(weights[0]))
    return sum((weights[owner[column]][column] for column in real if owner[column] >= 0), 0.0)


def _augment(
    costs: Sequence[Sequence[float]],
    row: int,
    owner: list[int],
    row_potential: list[float],
    column_potential: list[float],
) -> None:
    """Give `row` a column along the shortest augmenting path, and keep the potentials feasible."""
    columns = len(owner)
    distance = [inf] * columns
    came_from = [-1] * columns
    done: list[int] = []
    open_columns = set(range(columns))
    current, column, reached = row, -1, 0.0
    while current >= 0:
        for j in open_columns:
            through = reached + costs[current][j] - row_potential[current] - column_potential[j]
            if through < distance[j]:
                distance[j], came_from[j] = through, column
        column = min(open_columns, key=lambda j: (distance[j], j))
        reached = distance[column]
        open_columns.remove(column)
        done.append(column)
        current = owner[column]
    row_potential[row] += reached
    for j in done[:-1]:
        row_potential[owner[j]] += reached - distance[j]
        column_potential[j] -= reached - distance[j]
    while column >= 0:
        previous = came_from[column]
        owner[column] = owner[previous] if previous >= 0 else row
        column = previous
