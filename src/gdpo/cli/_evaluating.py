"""`gdpo evaluate`, once its arguments are read. Imports what is heavy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gdpo.errors import ConfigError
from gdpo.evaluation import (
    BFCL,
    Settings,
    add_to_readme,
    bfcl_lines,
    check_sampling,
    differences_table,
    evaluate,
    find_benchmark,
    folder_of,
    read_results,
    responder_of,
    results_table,
)
from gdpo.training import RunDirectory


def files_of(given: Sequence[str]) -> Mapping[str, str]:
    """`NAME=FILE` by name.

    Raises:
        ConfigError: One is written otherwise.
    """
    pairs = [text.partition("=") for text in given]
    for name, equals, file in pairs:
        if not equals or not name or not file:
            raise ConfigError(f"--data {name}{equals}{file}: write NAME=FILE, as gsm8k=test.jsonl")
    return {name: file for name, _, file in pairs}


def run_evaluation(
    settings: Settings,
    names: Sequence[str],
    console: Console,
    *,
    server: str | None,
    at_once: int,
    output: Path | None,
    baseline: Path | None,
) -> None:
    """Evaluate and print.

    Raises:
        ConfigError: An argument is wrong; before a model is loaded.
    """
    check_sampling(settings.sampling)
    names = [each for name in names for each in (BFCL if name == "bfcl" else (name,))]
    if not names:
        raise ConfigError("--benchmarks names none")
    if stray := set(settings.data) - set(names):
        raise ConfigError(f"--data names {', '.join(sorted(stray))}, which --benchmarks does not")
    benchmarks = [find_benchmark(name, settings.data.get(name)) for name in names]
    folder = output or folder_of(settings.model)
    compared = read_results(baseline) if baseline else None
    answering = responder_of(settings.model, settings.sampling, server=server, at_once=at_once)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        shown = {name: progress.add_task(name, total=None) for name in names}
        results = evaluate(
            settings,
            benchmarks,
            answering,
            folder,
            told=lambda name, done, total: progress.update(
                shown[name], completed=done, total=total
            ),
        )
    readme = RunDirectory(Path(settings.model)).readme
    if output is None and server is None and readme.is_file():
        add_to_readme(readme, results, settings)
    console.print(results_table(results))
    for line in bfcl_lines(results):
        console.print(line)
    if compared is not None and baseline is not None:
        console.print(differences_table(results, compared, str(baseline)))
    console.print(f"responses and results: {folder}", markup=False, soft_wrap=True)
