"""Assigns each estimator one colour and dash pattern for all charts.

GDPO is blue and solid, and GRPO vermilion and dashed, in the Okabe-Ito palette for colour-blind
readers. The others share six colours, and differ in their dashes.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from gdpo.advantages import ESTIMATORS

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b05c8d", "#4d4d4d", "#b07900", "#7b4fc9", "#8a3324")
"""Colours on a light background."""

DARK = ("#56b4e9", "#e69f00", "#1fbf91", "#cc79a7", "#c9ced6", "#f0e442", "#b79cf0", "#e08e79")
"""Counterparts of `LIGHT` for a dark background, in the same order."""

Dashes: TypeAlias = tuple[float, ...]
"""Alternating lengths of dashes and gaps in pixels. An empty tuple means a solid line."""

_DASHES: tuple[Dashes, ...] = (
    (),
    (7, 4),
    (2, 4),
    (9, 3, 2, 3),
    (12, 4),
    (4, 2, 1, 2),
    (14, 3, 2, 3),
    (5, 3),
)

_SHARED = len(LIGHT) - 2
"""Number of colours that several estimators share: all colours except the first two."""

_PLACES = {name: place for place, name in enumerate(dict.fromkeys(("gdpo", "grpo", *ESTIMATORS)))}
"""Number of each estimator's style: gdpo, grpo, and the others in the order of the registry."""

PLACES = 2 + (ceil((len(_PLACES) - 2) / _SHARED) + 1) * _SHARED
"""Number of styles: those for estimators, and six that users' labels get first."""


@dataclass(frozen=True, slots=True)
class Style:
    """Defines how the lines of one estimator are drawn."""

    place: int
    """Number of the style, from 0. On pages, the CSS class of the style is `a<number>`."""
    light: str
    """Colour on a light background, as `#rrggbb`."""
    dashes: Dashes

    @property
    def dash(self) -> str:
        """The dashes as the SVG attribute `stroke-dasharray`. Empty: a solid line."""
        return " ".join(f"{length:g}" for length in self.dashes)


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """Return the style of each label in a chart.

    gdpo's own estimators always have the same style. Any other label's style depends on a hash of
    its text. If it is taken, the label gets the next unused style, if possible with an unused
    colour. With more than `PLACES` labels, styles repeat. The labels' order has no effect.

    Examples:
        >>> [style.light for style in styles(["gdpo", "grpo"]).values()]
        ['#0072b2', '#d55e00']
    """
    places = {label: _PLACES[label] for label in labels if label in _PLACES}
    for label in sorted(set(labels) - set(places)):
        places[label] = _free(label, set(places.values()))
    return {label: style_at(places[label]) for label in labels}


def style_at(place: int) -> Style:
    """Return the style with this number, which must be less than `PLACES`."""
    hue = _hue(place)
    family = (place - hue) // _SHARED
    # Styles of one colour differ in their dashes, and so do the styles of one family.
    pattern = hue if hue < 2 else 2 + (hue - 2 + family) % _SHARED
    return Style(place, LIGHT[hue], _DASHES[pattern])


def css() -> str:
    """Return CSS rules with the colours of both themes and a class for each style."""
    dark = _variables(DARK)
    rules = [
        f":root {{ {_variables(LIGHT)} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
        f"@media print {{ :root {{ {_variables(LIGHT)} }} }}",
    ]
    for place in range(PLACES):
        dash = style_at(place).dash or "none"
        rules.append(f".a{place} {{ --c: var(--c{_hue(place)}); --d: {dash}; }}")
    return "\n".join(rules)


def _variables(colours: Iterable[str]) -> str:
    return " ".join(f"--c{hue}: {colour};" for hue, colour in enumerate(colours))


def _free(label: str, taken: set[int]) -> int:
    start = int(hashlib.sha256(label.encode("utf-8", "replace")).hexdigest(), 16) % _SHARED
    own = [PLACES - _SHARED + (start + step) % _SHARED for step in range(_SHARED)]
    places = [place - family * _SHARED for family in range(PLACES // _SHARED) for place in own]
    hues = {_hue(place) for place in taken}
    unused = [place for place in places if _hue(place) not in hues]
    free = [place for place in places if place not in taken]
    return (unused or free or own)[0]


def _hue(place: int) -> int:
    return place if place < 2 else 2 + (place - 2) % _SHARED
