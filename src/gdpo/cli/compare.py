"""`gdpo compare`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


def compare(
    recipe: Path | None = None,
    /,
    *,
    estimators: str | None = None,
    vary: Annotated[list[str] | None, Parameter(negative=())] = None,
    seeds: str | None = None,
    suite: str | None = None,
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    jobs: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    output: Path | None = None,
    reach: float | None = None,
    price: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0,
    retry_failed: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Train a recipe with several estimators and seeds, and say which does better, and how surely.

    Each run is an ordinary `gdpo train` in a process of its own. Runs with the same seed have the
    same data in the same order and start from the same model. The same command goes on where it was
    stopped: finished runs are kept, interrupted ones resumed, and failed ones count as results.
    Estimators and seeds may be added to a comparison that is there. At the end, and with `gdpo report` at
    any time, the folder holds a `report.html` with every reward by itself.

    Under 5 seeds an estimator a result is called exploratory: 3 seeds cannot give a p-value below 0.10.

    Args:
        recipe: A recipe (YAML), or a folder that holds a `recipe.yaml`.
        estimators: Estimators with commas, or `all`; the first is what the others are compared with. Left
            out: grpo,gdpo; of a suite, all.
        vary: Values of the recipe that make estimators of their own, with commas, as in `--vary
            rewards.length.weight=1,0.5`; may be repeated: every combination is trained.
        seeds: How many (1, 2, ...), or which ones, with commas. Left out: 5; of a suite, 20.
        suite: `toys` instead of a recipe: small problems that tell estimators apart in seconds.
        set: Change a value of the recipe, as in `--set trainer.max_steps=20`; may be repeated.
        jobs: Runs at a time. Left out: one for each device in CUDA_VISIBLE_DEVICES; without a GPU,
            one for each core.
        output: Folder of the comparison. Left out: `<task>-compare` in the recipe's `runs_dir`; of
            a suite, no pages are written.
        reach: Share of each reward's range whose first crossing is timed. Left out: 0.8.
        price: Of an hour of one run, so that the cost of what is left is shown.
        retry_failed: Train runs again that failed.
        dry_run: Show the runs, and what they can decide, and do nothing. Needs no GPU, no data and
            no network.
    """
    from rich.console import Console

    from gdpo.cli._comparing import compare_recipe, compare_toys
    from gdpo.errors import ConfigError

    console = Console(highlight=False)
    if suite not in (None, "toys"):
        raise ConfigError(f"--suite {suite}: there is one suite, toys")
    if (recipe is None) == (suite is None):
        raise ConfigError(
            "give a recipe, or --suite toys" + ("" if recipe is None else ", not both")
        )
    if recipe is None:
        if set or vary or price or retry_failed or dry_run or reach is not None:
            raise ConfigError(
                "--set, --vary, --price, --reach, --retry-failed and --dry-run are for recipes, "
                "not toys"
            )
        compare_toys(estimators or "all", seeds or "20", output, console, jobs=jobs)
        return 0
    return compare_recipe(
        recipe,
        set or (),
        estimators or "grpo,gdpo",
        seeds or "5",
        output,
        console,
        vary=vary or (),
        jobs=jobs,
        reach=reach,
        price=price,
        retry_failed=retry_failed,
        dry_run=dry_run,
    )
