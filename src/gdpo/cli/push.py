"""`gdpo push`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def push(
    run: Path,
    name: str,
    /,
    *,
    public: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    rollouts: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    dry_run: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Put a finished run on the Hugging Face Hub: its model, and its README as the model's card.

    Uploaded are the model, the README and its curves, the recipe, the metrics of every step
    (`metrics.jsonl`), and the results of an evaluation; each file is listed first. A new repository
    is private. Checkpoints, the command line and the responses of an evaluation stay here.

    Args:
        run: A run directory.
        name: The repository, OWNER/NAME; made if it is not there.
        public: Make a new repository public.
        rollouts: Upload what was sampled and how it was rewarded, too.
        dry_run: Only list.
    """
    from rich.console import Console

    from gdpo.cli._pushing import push_run

    push_run(
        run,
        name,
        Console(highlight=False),
        private=not public,
        rollouts=rollouts,
        dry_run=dry_run,
    )
    return 0
