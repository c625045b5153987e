"""Builds the tables of a trade-off, which the terminal, the page and the export show."""

from collections.abc import Sequence
from dataclasses import dataclass

from gdpo.experiments.fronts import Front, Point, TradeOff
from gdpo.experiments.reading import Measured
from gdpo.report._tables import NOTHING, Cell, Name, Table, estimate

FRONT = "front"
"""Name of the files of the variants' table and of the chart, without the extension."""

_SHARE = Measured("", 0.0, 1.0, None)

_SHORT = 8
"""Maximum number of characters of a varied value that is written at a point of a chart."""


@dataclass(frozen=True, slots=True)
class PointTexts:
    """Stores the texts at the points of a chart: varied values, or numbers of the variants."""

    key: str
    """The varied key. Empty: the texts are numbers, which are also in the table of variants."""
    texts: tuple[str, ...]


def point_texts(found: TradeOff) -> PointTexts:
    """Return the varied values if one key has short values in all variants, otherwise numbers."""
    chosen = [point.label.partition(" ")[2].partition("=") for point in found.points]
    keys, values = {key for key, _, _ in chosen}, tuple(value for _, _, value in chosen)
    # A space separates two varied keys, or belongs to a value with several parts.
    if len(keys) == 1 and all(0 < len(v) <= _SHORT and " " not in v for v in values):
        return PointTexts(keys.pop(), values)
    return PointTexts("", tuple(map(str, range(1, len(values) + 1))))


def variants(found: TradeOff, *, for_chart: bool = False) -> Table:
    """Return the table of all variants: their mean final rewards, and whether they are on a front.

    Args:
        found: The trade-off.
        for_chart: Whether the table has a column with the numbers at the points of the chart. If
            the chart shows varied values instead of numbers, there is no such column.
    """
    first, second = (reward.name for reward in found.rewards)
    rows = [_variant(point, found.rewards) for point in found.points]
    columns = ["variant", first, second, "front"]
    texts = point_texts(found)
    if for_chart and not texts.key:
        columns = ["point", *columns]
        rows = [[text, *row] for text, row in zip(texts.texts, rows, strict=True)]
    return Table(FRONT, f"Final {first} and {second} of each variant", columns, rows)


def hypervolumes(found: TradeOff) -> Table:
    """Return the table of the hypervolume of each estimator's front."""
    several = len(found.fronts) > 1
    difference = [f"difference from {found.fronts[0].estimator}"] if several else []
    columns = ["estimator", "hypervolume", *difference, "seeds"]
    rows = [_volume(front, several=several) for front in found.fronts]
    return Table(f"{FRONT}-hypervolume", "Hypervolume of each front", columns, rows)


def _variant(point: Point, rewards: Sequence[Measured]) -> list[Cell]:
    ends = zip((point.first, point.second), rewards, strict=True)
    on_front = "yes" if point.on_front else "no"
    return [Name(point.label), *(estimate(end, reward) for end, reward in ends), on_front]


def _volume(front: Front, *, several: bool) -> list[Cell]:
    cells: list[Cell] = [Name(front.estimator), estimate(front.hypervolume, _SHARE)]
    if several and front.difference is None:
        cells.append(NOTHING)
    elif front.difference is not None:
        cells.append(estimate(front.difference, _SHARE, sign=True))
    return [*cells, str(front.seeds)]
