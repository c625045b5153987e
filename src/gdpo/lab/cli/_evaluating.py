"""Reads options of `gdpo evaluate`, and shows its progress. Contains the slow imports."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import rich.progress
from rich.text import Text

from gdpo._terminal import say, terminal
from gdpo.errors import ConfigError, check_whole
from gdpo.lab.evaluation.benchmarks import GROUPS, Benchmark, find_benchmark
from gdpo.lab.evaluation.evaluation import EvaluationSettings, Progress, Result
from gdpo.lab.evaluation.named import responder_of
from gdpo.lab.evaluation.responders import Responder, VllmOptions
from gdpo.lab.evaluation.sanity import Sanity
from gdpo.lab.evaluation.server import ServerModel
from gdpo.lab.evaluation.tables import (
    bfcl_lines,
    differences_table,
    results_table,
    unscorable_lines,
)


def files_of(given: Sequence[str]) -> Mapping[str, str]:
    """Return the `NAME=FILE` options as a dict from name to file.

    Raises:
        ConfigError: If an option does not have the form NAME=FILE.
    """
    pairs = [text.partition("=") for text in given]
    for name, equals, file in pairs:
        if not equals or not name or not file:
            raise ConfigError(
                f"--data {name}{equals}{file}: must be NAME=FILE, for example gsm8k=test.jsonl"
            )
    return {name: file for name, _, file in pairs}


def the_benchmarks(listed: str, files: Mapping[str, str]) -> list[Benchmark]:
    """Return the benchmarks of a comma-separated list. `files` has the rows of some, by name.

    Raises:
        ConfigError: If a benchmark is unknown, or if a file belongs to no listed benchmark.
    """
    given = dict.fromkeys(name.strip() for name in listed.split(",") if name.strip())
    names = [each for name in given for each in GROUPS.get(name, (name,))]
    if not names:
        raise ConfigError("--benchmarks is empty: list at least one, for example gsm8k")
    if stray := set(files) - set(names):
        raise ConfigError(
            f"--data gives rows for {', '.join(sorted(stray))}, which --benchmarks does not list: "
            "add the name to --benchmarks, or correct it in --data"
        )
    return [find_benchmark(name, files.get(name)) for name in names]


def sanity_lines(found: Sanity) -> list[Text]:
    """Return a summary line for a benchmark, and a line for each row that fails."""
    right = found.answered - len(found.exceptions)
    summary = (
        f"{found.benchmark}: reference answers scored as correct: {right:,} of {found.answered:,}"
    )
    if found.unanswered:
        summary += f" ({found.unanswered:,} rows have no reference answer)"
    for name, count in found.applies.items():
        summary += f", {name} applies to {count:,}"
    rejected = f"wrong: {found.problems - len(found.lucky):,} of {found.problems:,}"
    expected = "not tested (no call expected)"
    summary += f"; empty responses {expected if found.wants_silence else f'scored as {rejected}'}"
    mark = ("✓ ", "green") if found.sane else ("✗ ", "bold red")
    lines = [Text.assemble(mark, summary)]
    return lines + [
        Text.assemble(("! ", "yellow"), f"{found.benchmark}, {each}")
        for each in (*found.exceptions, *found.lucky)
    ]


@contextmanager
def progress_shown() -> Generator[Callable[[Progress, str], None]]:
    """Show progress on stderr: progress bars on a terminal, otherwise a line per batch.

    Yields:
        A function that takes the progress and the label to show.
    """
    console = terminal(stderr=True)
    if not console.is_terminal:

        def print_part(now: Progress, name: str) -> None:
            if not now.part:
                say(console, f"{name}: {now.done:,} of {now.problems:,} problems")

        yield print_part
        return
    bars: dict[str, rich.progress.TaskID] = {}
    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("{task.fields[doing]}"),
    )
    with rich.progress.Progress(*columns, console=console) as shown:

        def show(now: Progress, name: str) -> None:
            if name not in bars:
                bars[name] = shown.add_task(name, total=now.problems, doing="")
            answered = now.answered * now.part // now.responses if now.responses else 0
            shown.update(bars[name], completed=now.done + answered, doing=_doing(now))

        yield show


def _doing(now: Progress) -> str:
    if now.scores:
        return f"scoring: {now.scored:,} of {now.scores:,}"
    if now.responses and now.answered == now.responses:
        return "scoring"
    if now.responses:
        return f"generating: {now.answered:,} of {now.responses:,} responses"
    return ""


def responders(
    settings: EvaluationSettings,
    folder: Path,
    *,
    server: str | None,
    deadline: float | None,
    at_once: int,
    enforce_eager: bool,
) -> Callable[[Benchmark], Responder]:
    """Return a function that returns a benchmark's responder. Print where vLLM's output goes.

    Raises:
        ConfigError: If an option does not fit the engine or the server.
        MissingExtraError: If the engine is not installed.
    """
    if deadline is not None and server is None:
        raise ConfigError("--deadline needs a server: add --server URL, or omit --deadline")
    model, sampling = settings.model, settings.sampling
    length, vllm = settings.max_model_len, None
    if settings.engine == "vllm":
        if length is not None:
            check_whole("--max-model-len", length, least=1)
        vllm = VllmOptions(folder / "vllm.log", length, enforce_eager)
    elif enforce_eager or length is not None:
        raise ConfigError(
            "--max-model-len and --enforce-eager apply only to vLLM: add --engine vllm, or omit "
            "them"
        )
    found = responder_of(
        model,
        sampling,
        server=ServerModel(server, model, sampling, at_once, deadline, kept=folder)
        if server
        else None,
        at_once=at_once,
        engine=settings.engine,
        vllm=vllm,
    )
    if vllm is not None:
        say(terminal(), f"vLLM's output: {vllm.log}")
    return found


def show_results(
    results: Sequence[Result],
    folder: Path,
    compared: Sequence[Result] | None,
    baseline: Path | None,
) -> None:
    """Print the results in a folder, and the differences from those of a baseline, if any."""
    console = terminal()
    console.print(results_table(results))
    say(console, *unscorable_lines(results), *bfcl_lines(results))
    if compared is not None:
        console.print(differences_table(results, compared, str(baseline)))
    say(console, f"responses and results: {folder}")
