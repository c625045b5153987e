"""Compares estimators on the toys: seven small problems with exact gradients, without a model.

    python -m benchmarks.toys --estimators grpo,gdpo --seeds 3

For each toy, prints the step at which each reward reached 80 % of its range: the median (the step
by which half of the seeds had reached it), the range over the seeds, and the number of seeds that
never reached it. Then prints the clearest difference from the first estimator.
"""

import argparse
from pathlib import Path

from benchmarks.toys._suite import suite, table
from benchmarks.toys._toys import TOYS

from gdpo.advantages import ESTIMATORS
from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.comparison import headline
from gdpo.lab.experiments.grid import read_labels
from gdpo.lab.report import write_report


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--estimators",
        type=read_labels,
        default=list(ESTIMATORS),
        help="comma-separated; the first is the baseline; NAME=MODULE:FUNCTION for your own. "
        "Default: all",
    )
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds. Default: 20")
    parser.add_argument(
        "--toys", type=lambda text: text.split(","), default=list(TOYS), help="Default: all"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes. Default: 2")
    parser.add_argument("--output", type=Path, help="folder for a report of each toy")
    options = parser.parse_args()
    if unknown := sorted(set(options.toys) - set(TOYS)):
        parser.error(f"no toy {', '.join(unknown)}. The toys: {', '.join(TOYS)}")
    toys, seeds = [TOYS[name] for name in options.toys], range(options.seeds)
    done = suite(options.estimators, seeds, toys, jobs=options.jobs)
    for name, experiment in done.items():
        comparison = analyse(experiment)
        print(f"{table(experiment)}\n\n{headline(comparison)}\n")
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            write_report(comparison, options.output / f"{name}.html")


if __name__ == "__main__":
    main()
