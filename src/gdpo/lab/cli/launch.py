"""Implements `gdpo launch`."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

launch = App(name="launch", help="Train a recipe with another engine, on one or more machines.")


@launch.command
def verl(
    recipe: Path,
    /,
    *overrides: Annotated[str, Parameter(show=True, allow_leading_hyphen=False)],
    nodes: int = 1,
    gpus: int = 8,
    set: list[str] | None = None,
    resume: bool = False,
    dry_run: bool = False,
) -> int:
    """Train a recipe with verl (vLLM for generation, FSDP for training, Ray).

    Writes the run to `runs/<name>`, as `gdpo train` does. The subfolder `verl` contains verl's
    configuration, data, command, metrics and rollouts.

    To train on several nodes, put the run's folder on a shared file system. Run `ray start --head`
    on the first node and `ray start --address=<first node>:6379` on each of the other nodes. Then
    run this command on the first node.

    Args:
        recipe: A recipe (YAML), or a folder that contains a `recipe.yaml`.
        overrides: Overrides of verl's own configuration, as key=value after `--`. Example: `--
            actor_rollout_ref.actor.strategy=fsdp2`.
        nodes: Number of nodes in the Ray cluster.
        gpus: Number of GPUs per node. The recipe's batch must be divisible by the total number of
            GPUs.
        set: Override a recipe value, for example `--set trainer.max_steps=20`. Can be repeated.
        resume: Resume an interrupted run from verl's last checkpoint.
        dry_run: Print the configuration and the command, then exit. Needs no GPU, verl or network.
    """
    from functools import partial

    from gdpo._terminal import say, terminal
    from gdpo.lab.launch.launch import launch_verl, plan_verl
    from gdpo.lab.launch.verl import Machines
    from gdpo.lab.recipes.read import read_recipe

    show = partial(say, terminal())
    planned = plan_verl(
        read_recipe(recipe, set or (), resume=resume), Machines(nodes, gpus), overrides=overrides
    )
    notes = [*planned.batches.lines(), *planned.notes]
    if dry_run:
        # Notes are printed as comments, so that the output can be pasted into a shell or YAML file.
        show("\n".join(f"# {line}" for line in notes))
        show(f"# {planned.files.config}\n{planned.config_text}")
        show(f"# command\n{planned.command}")
        return 0
    show(*notes, planned.command)
    return launch_verl(planned, resume=resume, report=show)
