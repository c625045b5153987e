"""`gdpo check`."""

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gdpo.cli._codes import FAILED
from gdpo.errors import ConfigError

_ASKED = {"gold": "own answers", "empty": "empty responses"}


def check(
    recipe: Path | None = None,
    /,
    *,
    benchmarks: str | None = None,
    data: Annotated[list[str] | None, Parameter(negative=())] = None,
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    rows: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> int:
    """Check everything about a recipe without training, or benchmarks without a model.

    The recipe's keys and types, the data row by row, every reward on each gold answer (the task's
    own must reach their maximum on 19 of 20) and on a bad one (they must not), the trainer's
    fields, the arithmetic of the batches, the model and its tokenizer. No row may ask what a
    benchmark tests: the named ones, or else those that come with an installed package (BFCL,
    HumanEval). Exits with 0 if `gdpo train` can start, else with 1.

    Of benchmarks: their own answers must be right (each that is not is named; more than one in
    twenty is a mistake), and an empty response wrong. Exits with 1 otherwise.

    Args:
        recipe: A recipe (YAML), or a folder that holds a `recipe.yaml`.
        benchmarks: Names with commas, as for `gdpo evaluate`: what is checked, or, with a recipe,
            what its rows are compared with.
        data: NAME=FILE: rows of a benchmark from a file; may be repeated.
        set: Change a value of the recipe, as in `--set trainer.max_steps=20`; may be repeated.
        rows: Try the rewards on the first so many rows only; all rows of a recipe's data are read
            in any case.
    """
    if benchmarks is not None and recipe is None:
        return _check_benchmarks(benchmarks, data or (), rows)
    if recipe is None or (data and benchmarks is None):
        raise ConfigError("name a recipe to check, or --benchmarks (with --data), or both")
    from rich.console import Console
    from rich.text import Text

    from gdpo.cli._evaluating import the_benchmarks
    from gdpo.evaluation.overlap import overlap_findings
    from gdpo.recipes.read import read_recipe
    from gdpo.training import check as check_recipe
    from gdpo.training.preflight import Verdict

    console = Console(highlight=False)
    styles = {Verdict.FINE: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "bold red"}
    tests = None if benchmarks is None else the_benchmarks(benchmarks, data or ())
    findings = check_recipe(
        read_recipe(recipe, set or ()),
        rows=rows,
        also=lambda task, found: overlap_findings(task, found, tests),
    )
    for finding in findings:
        mark = (f"{finding.verdict.value} ", styles[finding.verdict])
        console.print(Text.assemble(mark, finding.text), soft_wrap=True)
    wrong = sum(finding.verdict is Verdict.WRONG for finding in findings)
    if wrong:
        console.print(f"{wrong} of {len(findings)} checks failed", style="bold red")
        return FAILED
    console.print(f"gdpo train {recipe} can start", style="green", markup=False, soft_wrap=True)
    return 0


def _check_benchmarks(names: str, data: Sequence[str], rows: int | None) -> int:
    from rich.console import Console

    from gdpo.cli._evaluating import progress_shown, sanity_lines, the_benchmarks
    from gdpo.evaluation.sanity import sanity

    console = Console(highlight=False)
    benchmarks, wrong = the_benchmarks(names, data), 0
    for benchmark in benchmarks:
        with progress_shown() as show, _failures_unlogged():
            found = sanity(
                benchmark, rows, lambda who, now: show(now, f"{now.benchmark}, {_ASKED[who]}")
            )
        wrong += not found.sane
        for line in sanity_lines(found):
            console.print(line, soft_wrap=True)
    if wrong:
        console.print(f"{wrong} of {len(benchmarks)} benchmarks failed", style="bold red")
        return FAILED
    return 0


@contextmanager
def _failures_unlogged() -> Generator[None]:
    """Keep the scorer's warnings back: each row whose score failed is named with the reason."""
    scorer = logging.getLogger("gdpo.rewards")
    level = scorer.level
    scorer.setLevel(logging.ERROR)
    try:
        yield
    finally:
        scorer.setLevel(level)
