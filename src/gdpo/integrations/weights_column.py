"""Reads a dataset column with weights of each prompt.

A cell is a mapping from reward name to a number, which multiplies the configured weight. A reward
that is not in the mapping, or whose number is null, does not apply to the prompt. (Arrow stores a
missing key as null, so both mean the same.) A cell that is null as a whole keeps the configured
weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from gdpo._naming import did_you_mean
from gdpo.errors import ConfigError, DataError


def weights_of_cells(
    cells: Iterable[Any], names: Sequence[str], weights: Sequence[float], *, column: str
) -> Float[np.ndarray, "row reward"]:
    """Return the weights of rows. NaN means that the reward does not apply to the row.

    Args:
        cells: The column's value in each row.
        names: Names of the rewards.
        weights: The configured weights, in the order of `names`.
        column: Name of the column for the error message.

    Raises:
        DataError: If a cell is not a mapping from reward names to finite numbers. The message
            contains the row.
    """
    rows = [
        weights if cell is None else _weights_of(cell, names, weights, f"{column!r}, row {row}")
        for row, cell in enumerate(cells)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))


def check_column(dataset: Any, column: str, names: Sequence[str]) -> None:
    """Check every row of a dataset's column with weights. Streams are checked as they are read.

    Args:
        dataset: A dataset, a dict from name to dataset, or None.
        column: Name of the column.
        names: Names of the rewards.

    Raises:
        ConfigError: If the dataset has no such column.
        DataError: If a cell is not a mapping from reward names to finite numbers.
    """
    for each in dataset.values() if isinstance(dataset, dict) else [dataset]:
        columns = getattr(each, "column_names", None)
        if columns is None:
            continue
        if column not in columns:
            raise ConfigError(
                f"weights_column={column!r}, but the dataset has no such column: "
                f"{did_you_mean(column, columns)}, add the column, or remove the setting"
            )
        if hasattr(each, "__len__"):  # not a stream
            weights_of_cells(each[column], names, [1.0] * len(names), column=column)


def _weights_of(
    cell: Any, names: Sequence[str], weights: Sequence[float], place: str
) -> list[float]:
    if not isinstance(cell, Mapping):
        raise DataError(
            f"column {place}: {cell!r:.80} is not a mapping from reward name to number: write for "
            f"example {{{names[0]!r}: 2.0}}, or null for the configured weights"
        )
    given = cast("Mapping[str, Any]", cell)
    for name, value in given.items():
        if name not in names and value is not None:
            raise DataError(
                f"column {place}: {name!r} is not a reward of this run: {did_you_mean(name, names)}"
            )
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if value is not None and not (is_number and abs(value) < inf):
            raise DataError(
                f"column {place}: the weight of {name!r} is {value!r:.80}: write a finite number, "
                "or null if the reward does not apply to this prompt"
            )
    factors = [given.get(name) for name in names]
    return [
        nan if factor is None else weight * float(factor)
        for factor, weight in zip(factors, weights, strict=True)
    ]
