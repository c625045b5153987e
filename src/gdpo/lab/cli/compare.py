"""Implements `gdpo compare`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


def compare(
    recipe: Path,
    /,
    *,
    estimators: str | None = None,
    vary: list[str] | None = None,
    seeds: str | None = None,
    set: list[str] | None = None,
    jobs: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    output: Path | None = None,
    reach: float | None = None,
    price: Annotated[float, Parameter(validator=Number(gte=0), show_default=False)] = 0.0,
    retry_failed: bool = False,
    dry_run: bool = False,
) -> int:
    """Train a recipe with several estimators and seeds, and report which estimator does better.

    Each run is a `gdpo train` process. Runs with the same seed use the same data in the same order
    and the same initial model. The comparison ends with a one-sentence conclusion, a table, and a
    `report.html` that compares each reward separately.

    Rerun the same command to resume: finished runs are kept, interrupted runs are resumed, and
    failed runs stay in the results (use --retry-failed to train them again). You can add estimators
    and seeds to an existing comparison.

    With fewer than 5 seeds, the result is exploratory. For example, with 3 seeds, no p-value can be
    below 0.10.

    Args:
        recipe: Recipe file (YAML), or a folder that contains a `recipe.yaml`.
        estimators: Comma-separated estimators, or `all`. The first estimator is the baseline. To
            use your own estimator, write NAME=MODULE:FUNCTION, as in
            `mine=my_module:my_estimator`. Default: grpo,gdpo.
        vary: Recipe key with its comma-separated values, as in `--vary
            rewards.length.weight=1,0.5`. Can be repeated. Every combination of values is trained
            with each estimator.
        seeds: Number of seeds (5 means seeds 1 to 5), or comma-separated seeds. Default: 5.
        set: Override a recipe value, for example `--set trainer.max_steps=20`. Can be repeated.
        jobs: Number of runs to train in parallel. Default: one per device in CUDA_VISIBLE_DEVICES,
            or one per CPU core if there is no GPU.
        output: Folder to write the comparison to. Default: `<task>-compare` in the recipe's
            `runs_dir`.
        reach: Threshold, as a share of each reward's range. Compares the steps at which the runs
            first reach this threshold. Default: 0.8.
        price: Price per hour of one run, in any currency. Prints the cost of the remaining runs.
            Default: print no cost.
        retry_failed: Train failed runs again.
        dry_run: Print the runs and the smallest p-value attainable with these seeds, then exit.
            Needs no GPU, data or network.
    """
    import re
    from functools import partial

    from gdpo._terminal import say, terminal
    from gdpo.errors import INTERRUPTED
    from gdpo.lab.cli._comparing import (
        check_trainer_fields,
        conclude,
        free_devices,
        read_seeds,
        total_steps,
    )
    from gdpo.lab.experiments.display import grid_display
    from gdpo.lab.experiments.grid import (
        decidable,
        described,
        make_grid,
        read_labels,
        read_variants,
        run_grid,
    )
    from gdpo.lab.experiments.threshold import REACHED
    from gdpo.lab.recipes.read import read_recipe
    from gdpo.lab.recipes.resolve import resolve

    console, overrides = terminal(), set or ()
    shared = resolve(read_recipe(recipe, overrides))
    task = re.sub(r"[^\w.-]", "_", shared.recipe.task.rpartition(":")[2])
    grid = make_grid(
        shared,
        read_labels(estimators or "grpo,gdpo"),
        read_seeds(seeds or "5"),
        output or shared.recipe.run_dir.with_name(f"{task}-compare"),
        reach=REACHED if reach is None else reach,
        variants={
            name: resolve(read_recipe(recipe, overrides, varied=assignments))
            for name, assignments in read_variants(vary or ()).items()
        },
        retry_failed=retry_failed and not dry_run,
    )
    unchecked = check_trainer_fields(grid, dry_run=dry_run)
    jobs = jobs or free_devices()
    if dry_run:
        say(console, *described(grid, jobs=jobs), *unchecked)
        return 0
    left = grid.open()
    if left:
        say(console, *decidable(grid))
    steps = total_steps(left) if left else 0
    try:
        with grid_display(grid, console, jobs=jobs, total_steps=steps, price=price) as update:
            run_grid(grid, jobs=jobs, update=update, say=partial(say, console))
    except KeyboardInterrupt:
        say(console, grid.conclusion())
        return INTERRUPTED
    return conclude(grid, console)
