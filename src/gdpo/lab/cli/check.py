"""Implements `gdpo check`."""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gdpo._terminal import say, terminal
from gdpo.errors import FAILED, ConfigError

if TYPE_CHECKING:
    from gdpo.lab.training.reward_checks import CheckResult

_RESPONSES = {"gold": "reference answers", "empty": "empty responses"}


def check(
    recipe: Path | None = None,
    /,
    *,
    benchmarks: str | None = None,
    data: list[str] | None = None,
    set: list[str] | None = None,
    rows: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> int:
    """Validate a recipe without training, or benchmarks without a model.

    With a recipe, checks its keys and types, every row of the data, the trainer's fields, the batch
    sizes, and the model and its tokenizer. Scores each reward on the reference answers and on a bad
    response. The rewards of the task must reach their maximum on at least 95 % of the reference
    answers, and at least one reward must score the bad response below its maximum. Exits with 0 if
    `gdpo train` can start, otherwise with 1.

    Prints the weights with which a right response always beats a wrong one in its group, whatever
    the other rewards are, and whether a lazy response (such as tags without an answer) can win.

    With --benchmarks instead of a recipe, scores the reference answers of each benchmark and an
    empty response. At least 95 % of the reference answers must be scored as correct, and the empty
    response as wrong. Prints the rows that fail. Exits with 1 if a benchmark fails.

    Args:
        recipe: Recipe (YAML), or a folder that contains a `recipe.yaml`.
        benchmarks: Comma-separated benchmark names, as in `gdpo evaluate`. Without RECIPE.
        data: Read the rows of a benchmark from a file, given as NAME=FILE. Can be repeated.
        set: Override a recipe value, for example `--set trainer.max_steps=20`. Can be repeated.
        rows: Test the rewards on the first N rows only. The other checks always use all rows.
            Default: all rows.
    """
    if benchmarks is not None and recipe is None:
        return _check_benchmarks(benchmarks, data or (), rows)
    if benchmarks is not None:
        raise ConfigError(
            "--benchmarks with a recipe was removed: filter the rows of benchmarks out of the data "
            "before the run. --benchmarks without a recipe tests the benchmarks"
        )
    if recipe is None or data:
        raise ConfigError(
            "gdpo check needs a recipe, or --benchmarks (optionally with --data) without a recipe. "
            "Example: gdpo check recipe.yaml"
        )
    from gdpo.lab.cli._user_code import exits_reported
    from gdpo.lab.recipes.read import read_recipe
    from gdpo.lab.recipes.resolve import resolve
    from gdpo.lab.training import check as check_recipe
    from gdpo.lab.training import priority_findings

    with exits_reported():
        resolved = resolve(read_recipe(recipe, set or ()))
        findings = check_recipe(
            resolved,
            rows=rows,
            also=lambda _, found: priority_findings(resolved, found.problems[:rows]),
        )
    return _print_findings(findings, recipe)


def _print_findings(findings: "Sequence[CheckResult]", recipe: Path) -> int:
    from rich.text import Text

    from gdpo._text import command
    from gdpo.lab.training.reward_checks import Level
    from gdpo.report.text import table

    console = terminal()
    styles = {Level.FINE: "green", Level.NOTE: "yellow", Level.WRONG: "bold red"}
    for finding in findings:
        # A table shows when a reward wins. What wins without being right has a finding of its own.
        level = finding.level
        mark = "-" if finding.table and level is Level.NOTE else level.value
        say(console, Text.assemble((f"{mark} ", styles[level]), finding.text))
        for line in table(finding.table, console.width, whole=True) if finding.table else ():
            console.print("  ", line, soft_wrap=True)
    if wrong := sum(finding.level is Level.WRONG for finding in findings):
        console.print(f"{wrong} of {len(findings)} checks failed", style="bold red")
        return FAILED
    said = f"no check failed. Next: {command('train', [recipe], {})}"
    say(console, Text(said, style="green"))
    return 0


def _check_benchmarks(names: str, data: Sequence[str], rows: int | None) -> int:
    from gdpo.lab.cli._evaluating import (
        files_of,
        progress_shown,
        sanity_lines,
        the_benchmarks,
    )
    from gdpo.lab.evaluation.sanity import sanity

    console = terminal()
    benchmarks, wrong = the_benchmarks(names, files_of(data)), 0
    for benchmark in benchmarks:
        with progress_shown() as show, _failures_unlogged():
            found = sanity(
                benchmark, rows, lambda who, now: show(now, f"{now.benchmark}, {_RESPONSES[who]}")
            )
        wrong += not found.sane
        say(console, *sanity_lines(found))
    if wrong:
        console.print(f"{wrong} of {len(benchmarks)} benchmarks failed", style="bold red")
        return FAILED
    return 0


@contextmanager
def _failures_unlogged() -> Generator[None]:
    """Silence the scorer's warnings, because each failed row is printed with its reason."""
    scorer = logging.getLogger("gdpo.rewards")
    level = scorer.level
    scorer.setLevel(logging.ERROR)
    try:
        yield
    finally:
        scorer.setLevel(level)
