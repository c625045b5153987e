"""Reads the rows of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gdpo.errors import DataError
from gdpo.lab.recipes.recipe import DataConfig
from gdpo.lab.tasks import Problem, Task, load_problems
from gdpo.rewards.weights_column import applies, weights_of_cells


@dataclass(frozen=True, slots=True)
class Rows:
    """Stores the rows, in the order of the sources."""

    problems: tuple[Problem, ...]
    places: tuple[str, ...]
    """Location of each problem, such as `row 3 of train.jsonl`."""
    read: dict[str, int]
    """Number of rows read from each source."""
    left_out: str | None = None
    """A sentence about rows whose prompt exceeds `data.max_prompt_length`. None: all are used."""

    def no_longer_than(self, limit: int, lengths: Sequence[int]) -> "Rows":
        """Return a copy without the rows whose prompt is too long."""
        kept = [i for i, length in enumerate(lengths) if length <= limit]
        longer = len(lengths) - len(kept)
        said = f"{longer:,} longer than data.max_prompt_length; {len(kept):,} rows remain"
        return replace(
            self,
            problems=tuple(self.problems[i] for i in kept),
            places=tuple(self.places[i] for i in kept),
            left_out=f"rows left out: {said}" if longer else None,
        )


def read_data(task: Task, data: DataConfig) -> Rows:
    """Read all sources with the task, in order.

    Raises:
        DataError: If a source cannot be read.
        MissingExtraError: If a source is on the Hub and `datasets` is not installed.
    """
    problems: list[Problem] = []
    read: dict[str, int] = {}
    places: list[str] = []
    for source in data.sources:
        found = load_problems(
            task,
            source,
            subset=data.subset,
            split=data.split,
            limit=data.limit,
            weights_column=data.weights_column,
        )
        problems += found
        read[source] = read.get(source, 0) + len(found)
        places += [f"row {number} of {source}" for number in range(1, len(found) + 1)]
    return Rows(tuple(problems), tuple(places), read)


def check_weights(rows: Rows, column: str, names: Sequence[str]) -> str:
    """Check the weights of rows read with `weights_column`. Return a note about them.

    Raises:
        DataError: If a cell is not a mapping from reward names to finite numbers, or no cell has a
            weight other than 0.
    """
    cells = [problem.weights for problem in rows.problems]
    ones = [1.0] * len(names)
    weights = weights_of_cells(cells, names, ones, column=column, places=rows.places)
    if not np.any(np.nan_to_num(weights)):
        raise DataError(
            f"column {column!r}: no row gives a reward a weight other than 0, so nothing would be "
            f"trained. Write, for example, {{{names[0]!r}: 1.0}}, or null for the recipe's weights"
        )
    given = sum(cell is not None for cell in cells)
    counts = (f"{name} {sum(applies(cell, name) for cell in cells):,}" for name in names)
    return (
        f"column {column!r} has weights in {given:,} of {len(cells):,} rows; rows to which each "
        f"reward applies: {', '.join(counts)}"
    )
