"""Implements `gdpo report`."""

from pathlib import Path


def report(
    run: Path,
    /,
    *,
    output: Path | None = None,
    export: Path | None = None,
) -> int:
    """Write an HTML report of a run, a folder of runs or a comparison, and print its summary.

    The report is a self-contained file that shows which estimator is better, by how much, and with
    what confidence. The report also contains the curves of every reward, the findings of the
    diagnostics, and sample rollouts. Unfinished runs are included up to their last step.

    Args:
        run: A run directory, a folder of run directories, or a folder that `gdpo compare` wrote.
        output: Path of the HTML file. An existing file is replaced. Default: `report.html` in RUN.
        export: Write the numbers as CSV files to this folder. The folder must be empty or not
            exist.
    """
    from gdpo._terminal import terminal
    from gdpo.lab.cli._comparing import make_report

    make_report(run, output, terminal(), export=export)
    return 0
