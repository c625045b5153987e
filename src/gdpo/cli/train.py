"""`gdpo train`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gdpo.cli._codes import INTERRUPTED


def train(
    recipe: Path,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    resume: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    from_scratch: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    report: Annotated[bool, Parameter(show_default=False)] = True,
) -> int:
    """Train what a recipe describes.

    Everything that can be checked is checked first, before a model is loaded. The run lies in
    `runs/<name>`: recipe, metrics, rollouts, checkpoints, and at the end the model, a README with
    the curves, and a report (`report.html`). Ctrl-C gives up the current step, saves what the one
    before it left, and says how to resume.

    On several GPUs: `accelerate launch -m gdpo train <recipe>`.

    Args:
        recipe: A recipe (YAML), or a folder that holds a `recipe.yaml`; a run directory is one,
            and with --resume means the run that lies in it, wherever it was moved to.
        set: Change a value of the recipe, as in `--set trainer.max_steps=20`; may be repeated.
        resume: Continue an interrupted run from its newest whole checkpoint. The recipe must be the
            same; only its length, and how often it is saved, may differ.
        from_scratch: With --resume: where no checkpoint is whole, begin again with the first step.
            What the run has is kept in its folder, as `dropped-<time>`.
        report: Write `report.html` at the end; `gdpo report` makes it at any time.
    """
    from rich.console import Console

    from gdpo.errors import ConfigError
    from gdpo.experiments.analysis import analyse
    from gdpo.experiments.reading import read_experiment
    from gdpo.recipes.read import read_recipe
    from gdpo.report import write_report
    from gdpo.runs.summary import summary_table
    from gdpo.training import train as run_training
    from gdpo.training.run import leave_processes

    if from_scratch and not resume:
        raise ConfigError("--from-scratch goes with --resume: a new run begins from scratch anyway")
    console = Console(highlight=False)
    result = run_training(
        read_recipe(recipe, set or (), resume=resume),
        resume=resume,
        from_scratch=from_scratch,
        console=console,
    )
    if result.is_main_process:
        console.print(summary_table(result.rewards))
        if result.finished and report:
            write_report(analyse(read_experiment(result.run.path)), result.run.report)
        for line in (*result.notes, result.conclusion):
            console.print(line, markup=False, soft_wrap=True)
    code = 0 if result.finished else INTERRUPTED
    leave_processes(code)
    return code
