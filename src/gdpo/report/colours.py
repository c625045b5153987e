"""Gives every estimator the same colour and dash pattern in every picture.

GDPO is blue and solid, GRPO is vermilion and dashed: Okabe and Ito's colours, which people with any
colour vision can tell apart. No other estimator has one of these two colours. The others share six
colours, and those with the same colour differ in their dash pattern.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b05c8d", "#4d4d4d", "#b07900", "#7b4fc9", "#8a3324")
"""Colours on a light background."""

DARK = ("#56b4e9", "#e69f00", "#1fbf91", "#cc79a7", "#c9ced6", "#f0e442", "#b79cf0", "#e08e79")
"""The same colours on a dark background, in the same order."""

Dashes: TypeAlias = tuple[float, ...]
"""Lengths of dashes and gaps in pixels, in turn. Empty: a solid line."""

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

_ESTIMATORS = (
    "gdpo",
    "grpo",
    "rloo",
    "dvao",
    "grpo_no_std",
    "mo_grpo",
    "gdpo_leave_one_out",
    "per_reward_batch_std",
    "grpo_batch_norm",
    "saw",
    "grpo_batch_std",
    "sa_mrpo",
    "gdpo_decorrelated",
    "rvpo",
    "corr_grpo",
    "gd2po_hard",
    "dara_symmetric",
    "gd2po_snr",
    "constrained_grpo",
    "dara_asymmetric",
)
"""Estimators in the order of their places. Append new ones, so that no colour changes."""

_SHARED = len(LIGHT) - 2
"""Colours that several estimators share: all except the first two."""

PLACES = 2 + 4 * _SHARED
"""How many styles there are. The last six belong to users' labels, as long as they suffice."""


@dataclass(frozen=True, slots=True)
class Style:
    """How the lines of one estimator are drawn."""

    place: int
    """Number of the style, from 0. On pages `a<number>` is the CSS class of the style."""
    light: str
    """Colour on a light background, as `#rrggbb`."""
    dark: str
    """Colour on a dark background, as `#rrggbb`."""
    dashes: Dashes


def style(label: str) -> Style:
    """Return the style of an estimator that is drawn alone or with estimators of gdpo only.

    Args:
        label: Name of an estimator, or any other label.

    Examples:
        >>> style("gdpo").light, style("grpo").light
        ('#0072b2', '#d55e00')
    """
    return styles([label])[label]


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """Return the style of each label of one picture.

    An estimator of gdpo always has its own style. The style of any other label (`module:attribute`,
    or an estimator with options) follows from its text. If it is taken in this picture, the label
    gets the next one, with a colour that the picture does not have yet where possible. Above 26
    labels styles repeat.

    Args:
        labels: Estimators in the picture. Their order has no effect.
    """
    places = {label: _ESTIMATORS.index(label) for label in labels if label in _ESTIMATORS}
    for label in sorted(set(labels) - set(places)):
        places[label] = _free(label, set(places.values()))
    return {label: style_at(places[label]) for label in labels}


def style_at(place: int) -> Style:
    """Return the style of a place, from 0 to 25."""
    hue = _hue(place)
    family = (place - hue) // _SHARED
    # Within a colour the families differ in their dashes, and within a family the colours do.
    pattern = hue if hue < 2 else 2 + (hue - 2 + family) % _SHARED
    return Style(place, LIGHT[hue], DARK[hue], _DASHES[pattern])


def css() -> str:
    """Return the style sheet's rules: colours of both themes, and a class for each style."""
    dark = _variables(DARK)
    rules = [
        f":root {{ {_variables(LIGHT)} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
        f"@media print {{ :root {{ {_variables(LIGHT)} }} }}",
    ]
    for place in range(PLACES):
        dashes = " ".join(f"{length:g}" for length in style_at(place).dashes) or "none"
        rules.append(f".a{place} {{ --c: var(--c{_hue(place)}); --d: {dashes}; }}")
    return "\n".join(rules)


def _variables(colours: Iterable[str]) -> str:
    return " ".join(f"--c{hue}: {colour};" for hue, colour in enumerate(colours))


def _free(label: str, taken: set[int]) -> int:
    start = int(hashlib.sha256(label.encode("utf-8", "replace")).hexdigest(), 16) % _SHARED
    own = [PLACES - _SHARED + (start + step) % _SHARED for step in range(_SHARED)]
    places = [place - family * _SHARED for family in range(4) for place in own]
    hues = {_hue(place) for place in taken}
    unused = [place for place in places if _hue(place) not in hues]
    free = [place for place in places if place not in taken]
    return (unused or free or own)[0]


def _hue(place: int) -> int:
    return place if place < 2 else 2 + (place - 2) % _SHARED
