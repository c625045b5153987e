"""`gdpo push`, once its arguments are read."""

from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from gdpo.evaluation.push import check_push, check_repository, push, uploads
from gdpo.runs.directory import RunDirectory


def check_run(folder: Path, name: str) -> None:
    """Check what `push_run` needs, before anything is done for it.

    Raises:
        ConfigError: The run is not finished, or nobody is logged in.
        HubError: The Hub cannot be reached, or refuses.
    """
    check_push(RunDirectory(folder), name)


def push_run(
    folder: Path,
    name: str,
    console: Console,
    *,
    private: bool = True,
    rollouts: bool = False,
    dry_run: bool = False,
) -> None:
    """List what is uploaded, and upload it.

    Raises:
        ConfigError: The run is not finished, or nobody is logged in.
        HubError: The Hub cannot be reached, or refuses.
    """
    run = RunDirectory(folder)
    check_repository(name)
    files = uploads(run, rollouts=rollouts)
    if not dry_run:
        check_push(run, name)
    total = decimal(sum(each.size for each in files))
    new = "private" if private else "public"
    console.print(f"to {name} ({new} if new), {total}:", markup=False, soft_wrap=True)
    for each in files:
        console.print(f"  {each.path}  {decimal(each.size)}", markup=False, soft_wrap=True)
    if not dry_run:
        console.print(push(run, name, files, private=private), markup=False, soft_wrap=True)
