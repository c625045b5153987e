"""Completes the page of the estimators: its tables, and a section for each from its docstring.

The estimators are those that the package finds, so a new file in `advantages/estimators/` gets its
section, its row in each table, and its picture without another edit.
"""

import sys
from functools import cache
from io import BytesIO
from itertools import starmap
from pathlib import Path
from typing import Any

from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS

sys.path.append(str(Path(__file__).parents[1]))
from examples import estimator_plots as plots

PAGE = "estimators/README.md"

_SHARED = """\
::: gdpo.advantages.estimators
    options: {members: false, show_root_heading: false, show_root_toc_entry: false}"""
"""Shows what all estimators share, from the docstring of their folder."""


@cache
def _measured() -> dict[str, Any]:
    worlds = plots.situations()
    return {name: plots.measure(name, worlds) for name in ESTIMATORS}


def completed(markdown: str) -> str:
    """Return the page with its tables and sections in place of the comments `<!-- ... -->`."""
    everything = {**ESTIMATORS, **TURN_ESTIMATORS}
    parts = {
        "list": _listed(ESTIMATORS),
        "influence": plots.table("influence of a reward that is", _measured(), 0, "{:.0%}"),
        "largest": plots.table("largest advantage", _measured(), 2, "{:.3g}"),
        "turns": _listed(TURN_ESTIMATORS),
        "sections": "\n\n".join([_SHARED, *starmap(_section, everything.items())]),
    }
    for name, text in parts.items():
        assert f"<!-- {name} -->" in markdown, f"the page of the estimators has no place for {name}"
        markdown = markdown.replace(f"<!-- {name} -->", text)
    return markdown


@cache
def pictures() -> dict[str, bytes]:
    """Return the picture of each estimator, keyed by its path in docs/."""
    drawn: dict[str, bytes] = {}
    for name in ESTIMATORS:
        file = BytesIO()
        shown = {key: _measured()[key] for key in dict.fromkeys([name, "grpo", "gdpo"])}
        plots.draw(file, name, shown)
        drawn[f"images/estimators/{name}.png"] = file.getvalue()
    return drawn


def _listed(estimators: dict[str, Any]) -> str:
    rows = [
        f"| [`{name}`](#{name}) | {(estimator.__doc__ or '').partition(chr(10))[0]} |"
        for name, estimator in estimators.items()
    ]
    return "\n".join(["| name | what it does |", "|---|---|", *rows])


def _section(name: str, estimator: Any) -> str:
    picture = f"![Advantages and influence](../images/estimators/{name}.png)\n\n"
    return (
        f"### {name}\n\n"
        f"::: {estimator.__module__}.{name}\n"
        "    options: {heading: Signature, heading_level: 4, toc_label: Signature}\n\n"
        f"{picture if name in ESTIMATORS else ''}"
    )
