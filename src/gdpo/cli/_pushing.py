"""Runs `gdpo push` with parsed arguments."""

from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from gdpo.evaluation.push import check_push, check_repository, push, uploads
from gdpo.runs.directory import RunDirectory


def check_run(folder: Path, name: str) -> None:
    """Check the requirements of `push_run` before a long evaluation starts.

    Raises:
        ConfigError: If the run is not finished or no Hugging Face login is found.
        HubError: If the Hub cannot be reached or rejects the request.
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
    """Print the list of files, then upload the files unless `dry_run` is set.

    Raises:
        ConfigError: If the run is not finished or no Hugging Face login is found.
        HubError: If the Hub cannot be reached or rejects the request.
    """
    run = RunDirectory(folder)
    check_repository(name)
    files = uploads(run, rollouts=rollouts)
    if not dry_run:
        check_push(run, name)
    total = decimal(sum(each.size for each in files))
    new = "private" if private else "public"
    verb = "would upload" if dry_run else "uploading"
    console.print(f"{verb} to {name} ({new} if it is new), {total}:", markup=False, soft_wrap=True)
    for each in files:
        console.print(f"  {each.path}  {decimal(each.size)}", markup=False, soft_wrap=True)
    if not dry_run:
        console.print(push(run, name, files, private=private), markup=False, soft_wrap=True)
