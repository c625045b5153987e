"""`gdpo report`."""

from pathlib import Path


def report(run: Path, /, *, output: Path | None = None) -> int:
    """Make the report of a run, of a folder of runs or of a comparison again, and sum it up.

    One HTML file without anything outside it: which estimator does better, by how much and how surely;
    the curves of every reward, findings over time, and the rollouts.

    Args:
        run: A run directory, a folder of several, or one that `gdpo compare` has made. Runs that
            are not finished are shown as far as they are.
        output: The HTML file. Left out: `report.html` in that folder.
    """
    from rich.console import Console

    from gdpo.cli._comparing import make_report

    make_report(run, output, Console(highlight=False))
    return 0
