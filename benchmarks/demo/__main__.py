"""Trains a tiny policy with GRPO and with GDPO side by side, on the CPU, in 2 to 4 minutes.

    python -m benchmarks.demo [--start rare|common] [--seed 1] [--steps 150] [--output FOLDER]

`make demo` runs it. The task is tool calling with two rewards, format and correctness. Nothing is
downloaded. It uses the rewards and the training code of `gdpo train`, and ends with a table of both
rewards, a report and a plot.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.demo.run import STARTS, DemoSettings, run_demo

from gdpo._terminal import terminal
from gdpo.errors import GdpoError


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = DemoSettings()
    parser.add_argument(
        "--start",
        choices=list(STARTS),
        default=defaults.start,
        help="how often the policy uses the format before training: in 1 or 4 %% of the texts",
    )
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="of warm start, requests and sampling"
    )
    parser.add_argument("--steps", type=int, default=defaults.steps, help="for each estimator")
    parser.add_argument(
        "--output",
        type=Path,
        help="empty folder for all files. Default: runs/demo, or the next free name",
    )
    options = parser.parse_args()
    try:
        settings = DemoSettings(start=options.start, seed=options.seed, steps=options.steps)
        sys.exit(1 if run_demo(terminal(), settings, output=options.output).failed else 0)
    except GdpoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
