"""Shows the result of `gdpo effect`."""

from pathlib import Path

import numpy as np

from gdpo._files import to_json, write_whole
from gdpo._terminal import terminal
from gdpo.policy.effect import Measured
from gdpo.report.blocks import Section, Sentences, Table, printed
from gdpo.report.html import render


def show(found: Measured, title: str, output: str | None) -> None:
    """Print the effects, as JSON if `output` is `json`. Write a page if it is another path."""
    if output == "json":
        print(to_json({**found._asdict(), "effect": found.effect.as_dict()}, indent=2))
        return
    basis = (f"{found.effect.groups:,} groups; ±: half of a 95 % interval", *found.notes)
    blocks = (_table(found), Sentences(tuple(found.sentences)), Sentences(basis, "dim"))
    console = terminal()
    for line in printed(blocks, console.width, whole=not console.is_terminal):
        console.print(line, soft_wrap=True)
    if output is not None:
        page = render(
            "effect.html",
            data=None,
            title=title,
            setup="",
            mark="",
            question=title,
            answer="",
            sections=[Section("effect", "Effect", "", blocks)],
        )
        write_whole(Path(output), page)


def _table(found: Measured) -> Table:
    effect = found.effect
    values = np.column_stack([effect.matrix, effect.totals])
    margins = effect.quantile * np.column_stack([effect.errors, effect.total_errors])
    rows = [
        (name, *(f"{value:+.2g} ± {margin:.1g}" for value, margin in pairs), f"{share:.0%}")
        for name, share, pairs in zip(
            effect.names, found.shares, np.stack([values, margins], 2), strict=True
        )
    ]
    return Table(
        f"how far one step moves each reward ({effect.unit})",
        ("reward", *(f"by {name}" for name in effect.names), "whole step", "influence share"),
        rows,
        "reward",
    )
