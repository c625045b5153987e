"""Implements `gdpo train`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gdpo.errors import INTERRUPTED


def train(
    recipe: Path,
    /,
    *,
    set: list[str] | None = None,
    resume: bool = False,
    from_scratch: bool = False,
    report: Annotated[bool, Parameter(negative="--no-report", show_default=False)] = True,
) -> int:
    """Train a model from a recipe.

    Validates the recipe before loading the model. Writes the recipe, metrics, rollouts and
    checkpoints to `runs/<name>`. When training ends, also writes the model, a README with the
    training curves, and `report.html`. On Ctrl-C, discards the step in progress, saves the last
    finished step, and prints the command to resume.

    To train on several GPUs, run `accelerate launch -m gdpo train RECIPE`.

    Args:
        recipe: Recipe (YAML), or a folder that contains a `recipe.yaml`, such as a run directory.
            With --resume, the run directory may have been moved or renamed.
        set: Override a recipe value, for example `--set trainer.max_steps=20`. Can be repeated.
        resume: Resume an interrupted run from its newest intact checkpoint. In the recipe, only the
            number of steps and the checkpoint settings may have changed.
        from_scratch: With --resume, start over at the first step if no checkpoint is intact. The
            existing files are moved to `dropped-<time>` in the run directory.
        report: Write `report.html` at the end (the default). `gdpo report` can also write this
            report later.
    """
    from gdpo._terminal import say, terminal
    from gdpo.errors import ConfigError
    from gdpo.lab.experiments.analysis import analyse
    from gdpo.lab.experiments.reading import read_experiment
    from gdpo.lab.recipes.read import read_recipe
    from gdpo.lab.report import write_report
    from gdpo.lab.runs.summary import summary_table
    from gdpo.lab.training import train as run_training
    from gdpo.lab.training.run import leave_processes

    if from_scratch and not resume:
        raise ConfigError(
            "--from-scratch needs --resume. To start a new run, leave out --from-scratch"
        )
    console = terminal()
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
        say(console, *result.notes, result.conclusion)
    code = 0 if result.finished else INTERRUPTED
    leave_processes(code)
    return code
