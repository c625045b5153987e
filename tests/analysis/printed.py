"""Prints an analysis as a terminal does."""

from gdpo.report.blocks import Terminal, printed
from gdpo.report.summaries import contents


def lines_of(analysis, *on):
    return [
        line.plain for part in contents(analysis).values() for line in printed(part, Terminal(*on))
    ]
