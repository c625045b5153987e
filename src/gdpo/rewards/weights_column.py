"""Reads a dataset column with weights per prompt.

A cell maps reward names to numbers, which multiply the configured weights. A reward that is missing
or null there (Arrow stores a missing key as null) does not apply to the prompt. If the whole cell
is null, the configured weights apply.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from sys import float_info
from typing import Any

import numpy as np

from gdpo._naming import did_you_mean
from gdpo._shapes import Float
from gdpo.errors import DataError

_MOST = 1e30
"""Maximum sum of the absolute weights of a prompt. Squares of larger ones may overflow."""

WEIGHTS_COLUMN = "gdpo_weights"
"""Name of the column in the data that a recipe's run gives to TRL or verl."""


def weights_of_cells(
    cells: Iterable[Any],
    names: Sequence[str],
    weights: Sequence[float],
    *,
    column: str,
    places: Sequence[str] | None = None,
) -> Float[np.ndarray, "row reward"]:
    """Return the weights `[row, reward]` of cells; NaN where the reward does not apply to the row.

    `weights` are the configured ones. `column` and `places` (default: the numbers of the rows, from
    0) name the place in the DataError for a cell that is not a mapping from reward names to finite
    numbers.
    """
    rows = [
        weights
        if cell is None
        else _weights_of(
            cell,
            names,
            weights,
            f"column {column!r}, {f'row {row}' if places is None else places[row]}",
        )
        for row, cell in enumerate(cells)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))


def applies(cell: Mapping[str, Any] | None, name: str) -> bool:
    """Return whether a reward applies to the row with this (checked) cell."""
    return cell is None or cell.get(name) is not None


def _is_finite(value: Any) -> bool:
    if isinstance(value, np.integer | np.floating):
        value = value.item()  # in half precision, infinity does not exceed the largest float
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= float_info.max


def _weights_of(
    cell: Any, names: Sequence[str], weights: Sequence[float], place: str
) -> list[float]:
    if not isinstance(cell, Mapping):
        raise DataError(
            f"{place}: {cell!r:.80} is not a mapping from reward name to number: write for "
            f"example {{{names[0]!r}: 2.0}}, or null for the configured weights"
        )
    for name, value in cell.items():
        if name not in names and value is not None:
            raise DataError(
                f"{place}: {name!r} is not a reward of this run: {did_you_mean(str(name), names)}"
            )
        if value is not None and not _is_finite(value):
            raise DataError(
                f"{place}: the weight of {name!r} is {value!r:.80}: write a finite number, "
                "or null if the reward does not apply to this prompt"
            )
    factors = [cell.get(name) for name in names]
    products = [
        nan if factor is None else weight * float(factor)
        for factor, weight in zip(factors, weights, strict=True)
    ]
    sizes = [abs(product) for product in products if product == product]
    if not sizes:
        raise DataError(
            f"{place}: {dict(cell)!r:.80} gives no reward a weight, so nothing can be learned "
            "from this prompt: write null for the configured weights, or remove the row"
        )
    if sum(sizes) > _MOST:
        raise DataError(
            f"{place}: {dict(cell)!r:.80} times the configured weights "
            f"{dict(zip(names, weights, strict=True))!r:.80} exceeds {_MOST:g} in total: write "
            "smaller numbers"
        )
    return products
