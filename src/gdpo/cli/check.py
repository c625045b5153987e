"""`gdpo check`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gdpo.cli._codes import FAILED


def check(
    recipe: Path,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    rows: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> int:
    """Check everything about a recipe without training, and print what was checked.

    The recipe's keys and types, the data row by row, every reward on each gold answer (the task's
    own must reach their maximum on 19 of 20) and on a bad one (they must not), the trainer's
    fields, the arithmetic of the batches, the model and its tokenizer. Exits with 0 if `gdpo train`
    can start, else with 1.

    Args:
        recipe: A recipe (YAML), or a folder that holds a `recipe.yaml`.
        set: Change a value of the recipe, as in `--set trainer.max_steps=20`; may be repeated.
        rows: Try the rewards on the first so many rows only; all rows are read in any case.
    """
    from rich.console import Console
    from rich.text import Text

    from gdpo.training import Verdict, load_recipe
    from gdpo.training import check as check_recipe

    console = Console(highlight=False)
    styles = {Verdict.FINE: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "bold red"}
    findings = check_recipe(load_recipe(recipe, set or ()), rows=rows)
    for finding in findings:
        mark = (f"{finding.verdict.value} ", styles[finding.verdict])
        console.print(Text.assemble(mark, finding.text), soft_wrap=True)
    wrong = sum(finding.verdict is Verdict.WRONG for finding in findings)
    if wrong:
        console.print(f"{wrong} of {len(findings)} checks failed", style="bold red")
        return FAILED
    console.print(f"gdpo train {recipe} can start", style="green", markup=False, soft_wrap=True)
    return 0
