"""`gdpo launch`."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

launch = App(name="launch", help="Train a recipe with another engine, on one machine or many.")


@launch.command
def verl(
    recipe: Path,
    /,
    *overrides: Annotated[str, Parameter(show=True, allow_leading_hyphen=False)],
    nodes: int = 1,
    gpus: int = 8,
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    resume: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Train a recipe with verl, which generates with vLLM and trains with FSDP, on Ray.

    The run lies in `runs/<name>`, as with `gdpo train`; in its folder `verl` lie the configuration,
    the data as verl reads it, the command, verl's numbers and its rollouts. On several nodes start
    Ray first (`ray start --head`, then `ray start --address=...` on the others), have the run's
    folder on a file system that all of them share, and call this on the first.

    Args:
        recipe: A recipe (YAML), or a folder that holds a `recipe.yaml`.
        overrides: Fields of verl's own configuration, after `--`, as in
            `-- actor_rollout_ref.actor.strategy=fsdp2`.
        nodes: Of the Ray cluster.
        gpus: GPUs of each node. All of them share the recipe's batch; a number that cannot share it
            equally is refused.
        set: Change a value of the recipe, as in `--set trainer.max_steps=20`; may be repeated.
        resume: Continue an interrupted run from verl's last checkpoint.
        dry_run: Show the configuration and the command, and do nothing. Needs no GPU, no verl and
            no network.
    """
    from rich.console import Console

    from gdpo.launch.batches import Machines
    from gdpo.launch.launch import launch_verl, plan_verl
    from gdpo.recipes.read import read_recipe

    console = Console(highlight=False, soft_wrap=True, markup=False)
    planned = plan_verl(
        read_recipe(recipe, set or (), resume=resume),
        Machines(nodes, gpus),
        overrides=overrides,
    )
    notes = [*planned.batches.lines(), *planned.notes]
    if dry_run:
        # What a shell and a YAML reader take as it is: the rest is a comment.
        console.print("\n".join(f"# {line}" for line in notes))
        console.print(f"# {planned.files.config}\n{planned.config_text}")
        console.print(f"# the command\n{planned.command}")
        return 0
    for line in (*notes, planned.command):
        console.print(line)
    return launch_verl(planned, resume=resume, told=console.print)
