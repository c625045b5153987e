"""Implements `gdpo effect`."""

from pathlib import Path


def effect(
    model: Path,
    /,
    *rollouts: Path,
    step: int | None = None,
    groups: int = 256,
    estimator: str | None = None,
    output: str | None = None,
) -> int:
    """Measure how far one training step moves each reward, and because of which reward.

    For a run of gdpo, its trainer resumes from a checkpoint with its data, rewards and optimizer,
    but takes no step. For another model, the rollouts of its last steps are read from files. The
    state of the optimizer is then not known, so only ratios of effects have a meaning.

    Args:
        model: A run directory with a checkpoint, or the folder of a Hugging Face model.
        rollouts: Rollout files or folders with the texts of prompts and completions of the model.
        step: Step of the run's checkpoint, or last step of the rollouts. Default: the newest.
        groups: Number of groups, rounded up to at least three whole batches. With fewer than 512,
            no reward is reported as without effect.
        estimator: Estimator that trained a model with rollout files. Default: grpo.
        output: Path of an HTML page, replaced if it exists, or json to print JSON instead of the
            table. Default: no page.
    """
    from rich.progress import Progress

    from gdpo._terminal import terminal
    from gdpo.errors import ConfigError, check_whole
    from gdpo.integrations.torch_files import load_dump
    from gdpo.lab.cli._measuring import show
    from gdpo.lab.training.effect import measure_run
    from gdpo.lab.training.preflight import quiet
    from gdpo.policy.files import measure_files

    check_whole("--groups", groups, least=1)
    if estimator is not None and not rollouts:
        raise ConfigError(
            "--estimator is only for rollout files, because a run has its own: remove --estimator"
        )
    if output is not None and not (folder := Path(output).parent).is_dir():
        raise ConfigError(f"--output {output}: the folder {folder} does not exist. Create it")
    errors = terminal(stderr=True)
    bar = Progress(console=errors, transient=True, disable=not errors.is_terminal)
    with bar, quiet():
        task = bar.add_task("batches")

        def advance(done: int, count: int) -> None:
            bar.update(task, completed=done, total=count)

        if rollouts:
            found = measure_files(
                *(model, rollouts, advance, step, groups),
                estimator=estimator or "grpo",
                load_pt=load_dump,
            )
        else:
            found = measure_run(model, advance, step, groups)
    show(found, f"What {model} learns from each reward", output)
    return 0
