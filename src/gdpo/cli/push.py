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
    """Upload a finished run to the Hugging Face Hub, with the run's README as the model card.

    Prints a list of the files, then uploads the model, the README with its curves, the recipe, the
    metrics of every step (`metrics.jsonl`) and the scores of `gdpo evaluate`. Checkpoints, the
    command line and the responses of an evaluation are not uploaded. A new repository is private.
    Requires `hf auth login` or the HF_TOKEN environment variable.

    Args:
        run: A run directory.
        name: Repository on the Hub, as OWNER/NAME. The repository is created if it does not exist.
        public: Make a new repository public. An existing repository keeps its visibility.
        rollouts: Also upload the rollouts: prompts, responses and rewards of the training run.
        dry_run: List the files without uploading.
    """
    from gdpo._terminal import terminal
    from gdpo.cli._pushing import push_run

    push_run(
        run,
        name,
        terminal(),
        private=not public,
        rollouts=rollouts,
        dry_run=dry_run,
    )
    return 0
