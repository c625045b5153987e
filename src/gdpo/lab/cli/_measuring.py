"""Prints the result of `gdpo effect`, and writes its page."""

from pathlib import Path

from gdpo._files import to_json, write_whole
from gdpo._terminal import say, terminal
from gdpo.diagnostics.diagnosis import percent
from gdpo.diagnostics.effect import LEAST_GROUPS
from gdpo.policy.effect import MeasuredEffect
from gdpo.report.blocks import Sentences, Table, Terminal, printed
from gdpo.report.html import render


def show(found: MeasuredEffect, title: str, output: str | None) -> None:
    """Print the effects, as JSON if `output` is `json`. If it is a path, also write a page."""
    if output == "json":
        print(to_json({**found._asdict(), "effect": found.effect.as_dict()}, indent=2))
        return
    groups = f"{found.effect.groups:,} groups"
    if found.effect.groups < LEAST_GROUPS:
        groups += f" (fewer than {LEAST_GROUPS}: no reward is said to lack an effect)"
    basis = (f"{groups}; ±: half of a 95 % interval", *found.notes)
    blocks = (_table(found), Sentences((*found.sentences,)), Sentences(basis, "dim"))
    console = terminal()
    say(console, *printed(blocks, Terminal(console.width, not console.is_terminal)))
    if output is not None:
        write_whole(Path(output), render("effect.html", data=None, title=title, blocks=blocks))
        say(console, f"page: {output}")


def _table(found: MeasuredEffect) -> Table:
    effect = found.effect

    def cell(value: float, error: float) -> str:
        return f"{value:+.2g} ± {effect.quantile * error:.1g}"

    return Table(
        f"how far one step moves each reward ({effect.unit})",
        ("reward", *(f"by {name}" for name in effect.names), "whole step", "influence share"),
        [
            (
                name,
                *map(cell, effect.matrix[j], effect.errors[j]),
                cell(effect.totals[j], effect.total_errors[j]),
                percent(found.shares[j]),
            )
            for j, name in enumerate(effect.names)
        ],
        "reward",
    )
