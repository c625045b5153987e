"""Shows results alike in all benchmarks: rows of Markdown tables, and means with intervals."""

from collections.abc import Iterable, Sequence

import numpy as np

from gdpo.diagnostics.influence import student_quantile


def row(name: str, cells: Iterable[object], *, head: bool = False) -> None:
    """Print a row of a Markdown table, and below a heading the line that separates it."""
    shown = [str(cell) for cell in cells]
    print(f"| {name} | {' | '.join(shown)} |", flush=True)
    if head:
        print("|---|" + "---|" * len(shown))


def half_width(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % interval of a mean (Student's t). NaN: one value."""
    if len(values) < 2:
        return float("nan")
    quantile = student_quantile(0.975, len(values) - 1)
    return float(quantile * np.std(values, ddof=1) / np.sqrt(len(values)))


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Return a mean with the half-width of its 95 % interval."""
    return f"{np.mean(values):.{digits}f} ± {half_width(values):.{digits}f}"
