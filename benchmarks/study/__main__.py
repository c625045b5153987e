"""The runs of research/study_tiny_policies.md: which estimator does better, and where.

    python -m benchmarks.study [PART ...] [--warm-starts] [--seeds 10] [--jobs 2] [--output FOLDER]

- tools: tool calling with two rewards and a policy of 0.4 M parameters.
- maths: stories like GSM8K's with three rewards and a policy of the same size.
- map: tools again, from a policy that saw a quarter as many well-formed texts, over learning rates
  and group sizes. Counts the seeds that have the format at the end.

With `--warm-starts`, each seed starts from its own policy, so that the intervals are over warm
starts. Otherwise, all seeds of a part start from one policy.

Each run is a run directory, and each cell a comparison with a report.html. Rerun the command to
resume. Prints Markdown tables; with `--tables` it prints the tables of existing runs and trains
nothing. All parts take less than 3 hours on 2 cores.
"""

import argparse
from functools import partial
from pathlib import Path

from benchmarks.study._map import draw_map, map_cells, map_table
from benchmarks.study._recipes import OFTEN, RARELY, maths_recipe, of_warm_starts, tools_recipe
from benchmarks.study._tables import outcome_table
from rich.console import Console

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.experiments.comparison import further, headline
from gdpo.lab.experiments.display import grid_display
from gdpo.lab.experiments.grid import make_grid, run_grid
from gdpo.lab.experiments.reading import read_experiment
from gdpo.lab.experiments.threshold import REACHED
from gdpo.lab.report import write_report

ESTIMATORS = (
    "grpo",
    "grpo_no_std",
    "grpo_batch_std",
    "grpo_batch_norm",
    "mo_grpo",
    "gdpo",
    "dara_symmetric",
    "per_reward_batch_std",
)
"""GRPO; GRPO without the standard deviation, with the batch's, and with GDPO's batch normalization;
GDPO without batch normalization; GDPO; and two estimators that give rare rewards more weight."""

MAP_ESTIMATORS = (
    "grpo",
    "grpo_batch_norm",
    "mo_grpo",
    "gdpo",
    "dara_symmetric",
    "per_reward_batch_std",
)

PARTS = ("tools", "maths", "map")

_FIRST_SEED = 1


def compare(recipe, labels, seeds, folder, options):
    """Train the missing runs of a comparison, write its report, and return the comparison."""
    if not options.tables:
        numbers = range(_FIRST_SEED, _FIRST_SEED + seeds)
        grid = make_grid(recipe, labels, numbers, folder, reach=REACHED)
        console = Console(stderr=True)
        total = recipe.trainer["max_steps"]
        with grid_display(grid, console, jobs=options.jobs, total_steps=total, price=0) as update:
            run_grid(grid, jobs=options.jobs, update=update)
    comparison = analyse(read_experiment(folder))
    if not options.tables:
        write_report(comparison, folder / "report.html")
    return comparison


def read_options():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=10, help="seeds of tools and maths")
    parser.add_argument("--map-seeds", type=int, default=5, help="seeds of each cell of the map")
    parser.add_argument("--warm-starts", action="store_true", help="each seed has its own policy")
    parser.add_argument("--estimators", help="comma-separated; default: those of the part")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--output", type=Path, default=Path("runs/study"), help="%(default)s")
    parser.add_argument("--tables", action="store_true", help="print the tables of existing runs")
    parser.add_argument("--picture", type=Path, help="file for the picture of the map")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    return options


def main():
    """Train and print the parts."""
    options = read_options()
    parts, output = options.parts or PARTS, options.output.absolute()
    recipes = {"tools": partial(tools_recipe, well_formed=OFTEN), "maths": maths_recipe}
    rare = partial(tools_recipe, well_formed=RARELY)
    if options.warm_starts:
        numbers = range(_FIRST_SEED, _FIRST_SEED + max(options.seeds, options.map_seeds))
        recipes = {name: of_warm_starts(each, numbers) for name, each in recipes.items()}
        rare = of_warm_starts(rare, numbers)
    chosen = options.estimators.split(",") if options.estimators else None
    for name, recipe_in in recipes.items():
        if name in parts:
            recipe = recipe_in(output)
            done = compare(recipe, chosen or ESTIMATORS, options.seeds, output / name, options)
            answer = f"{headline(done)} {further(done)}".strip()
            print(f"\n## {name}\n\n{answer}\n\n{outcome_table(done)}", flush=True)
    if "map" in parts:
        labels = chosen or MAP_ESTIMATORS
        cells = {
            cell: compare(
                rare(output, samples=cell.samples, learning_rate=cell.learning_rate),
                labels,
                options.map_seeds,
                output / cell.name,
                options,
            )
            for cell in map_cells()
        }
        print(f"\n## map\n\n{map_table(cells, labels)}", flush=True)
        if options.picture:
            draw_map(options.picture, cells, labels)


if __name__ == "__main__":
    main()
