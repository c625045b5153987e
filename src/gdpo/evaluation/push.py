"""Puts a finished run on the Hugging Face Hub: its model, its card, and what the card speaks of.

Never what only this machine needs or what may tell more than was meant: checkpoints,
`environment.json` (it holds the command line), and the responses of an evaluation stay here;
rollouts too, unless they are asked for.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from gdpo._files import write_whole
from gdpo.errors import ConfigError, DataError, GdpoError, MissingExtraError
from gdpo.evaluation.evaluation import Result, Settings
from gdpo.evaluation.tables import unscorable_lines
from gdpo.runs.directory import RunDirectory

HEADING = "## Evaluation"


def add_to_readme(readme: Path, results: Sequence[Result], settings: Settings) -> None:
    """Put the results at the end of a README, in the place of older ones.

    Args:
        readme: Of a run.
        results: Of all benchmarks.
        settings: What decided them.
    """
    before, *_ = readme.read_text(encoding="utf-8").partition(f"\n{HEADING}\n")
    write_whole(readme, f"{before.rstrip()}\n\n{HEADING}\n\n{_section(results, settings)}")


def _section(results: Sequence[Result], settings: Settings) -> str:
    drawn = settings.sampling
    rows = "\n".join(
        f"| {result.benchmark} | {estimate.problems:,} | {name} | {_number(estimate.mean)} "
        f"| {_number(estimate.low)} to {_number(estimate.high)} |"
        for result in results
        for name, estimate in result.estimates.items()
    )
    notes = "".join(f"\n{line}.\n" for line in unscorable_lines(results))
    return f"""{drawn.samples} response(s) to each problem, temperature {drawn.temperature:g}, top-p {drawn.top_p:g}, up to
{drawn.max_tokens:,} tokens, seed {drawn.seed}, by {settings.engine}; more than {settings.token_limit:,} tokens are too long. Intervals of 95 %, over problems.

| benchmark | problems | measure | mean | 95 % interval |
|---|---|---|---|---|
{rows}
{notes}"""  # noqa: E501  lines of Markdown


def _number(value: float) -> str:
    return "–" if isnan(value) else f"{value:.3f}"


_TEXTS = (".md", ".yaml", ".json", ".jsonl", ".txt", ".jinja")
_SECRET = re.compile(r"\bhf_[A-Za-z0-9]{16,}|\b(?:hub_)?token:\s*(?!null\b|~|\s)\S", re.ASCII)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"
_REFUSED = (401, 403)
_SHOWN = 300
"""Characters of the Hub's answer that a message shows."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One file and its place in the repository."""

    file: Path
    path: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.file.stat().st_size


class HubError(GdpoError):
    """The Hub could not be reached, or did not take what was sent."""


def uploads(run: RunDirectory, *, rollouts: bool = False) -> list[Upload]:
    """What `push` uploads of a run; the model's files lie at the top, where the Hub expects them.

    Args:
        run: A finished run.
        rollouts: Also what was sampled and how it was rewarded.

    Raises:
        ConfigError: It is no run, or not finished.
        DataError: A file holds what looks like a token.
    """
    if not run.recipe.is_file():
        raise ConfigError(f"{run.path} holds no recipe.yaml, so it is no run of gdpo")
    if not run.model.is_dir() or not run.readme.is_file():
        raise ConfigError(
            f"the run {run.path} is not finished: it has no model/ or no README.md. Finish it: "
            f"gdpo train {run.path} --resume"
        )
    found = [Upload(file, path) for file, path in _files(run, rollouts=rollouts) if file.is_file()]
    for upload in found:
        _refuse_secrets(upload.file)
    return found


def _files(run: RunDirectory, *, rollouts: bool) -> Iterator[tuple[Path, str]]:
    yield run.readme, "README.md"
    for file in sorted(run.model.iterdir()):
        if file.name != "README.md":  # peft writes an empty card
            yield file, file.name
    evaluation = run.path / "evaluation"
    kept = (run.curves, run.recipe, run.metrics)
    results = (evaluation / "results.json", evaluation / "settings.json")
    for file in (*kept, *results):
        yield file, file.relative_to(run.path).as_posix()
    for file in sorted(run.rollouts.rglob("*.parquet")) if rollouts else ():
        yield file, file.relative_to(run.path).as_posix()


def _refuse_secrets(file: Path) -> None:
    # A tokenizer's words are no secrets, and there are megabytes of them.
    if file.suffix not in _TEXTS or file.name.startswith(("tokenizer", "vocab")):
        return
    if _SECRET.search(file.read_text(encoding="utf-8", errors="replace")):
        raise DataError(
            f"{file} holds what looks like a token of the Hub: nothing was uploaded. Take it out "
            "(a recipe needs none: HF_TOKEN does it), and make it invalid at "
            "huggingface.co/settings/tokens if others could have seen it"
        )


def check_repository(name: str) -> None:
    """Raise a ConfigError where a name is no repository's."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ConfigError(f"{name!r} is no repository on the Hub: write OWNER/NAME")


def check_push(run: RunDirectory, name: str) -> None:
    """Refuse a push that cannot succeed, before anything takes long.

    Raises:
        ConfigError: The name is no repository's, nobody is logged in, or the run is not finished.
    """
    check_repository(name)
    if _hub().get_token() is None:
        raise ConfigError(f"nobody is logged in to the Hub: {_LOG_IN}")
    uploads(run)


def push(run: RunDirectory, name: str, files: Sequence[Upload], *, private: bool = True) -> str:
    """Upload files of a run in one commit.

    Args:
        run: Whose README becomes the repository's card.
        name: `owner/name`; made if it is not there. One that is there keeps its visibility.
        files: What `uploads` named.
        private: Whether a new repository is.

    Returns:
        The repository's address.

    Raises:
        ConfigError: See `check_push`.
        HubError: The Hub cannot be reached, or refuses.
    """
    check_push(run, name)
    hub = _hub()
    operations = [
        hub.CommitOperationAdd(
            each.path, _card(run, name).encode() if each.path == "README.md" else str(each.file)
        )
        for each in files
    ]
    try:
        url = hub.HfApi().create_repo(name, private=private, exist_ok=True)
        hub.HfApi().create_commit(name, operations, commit_message=f"gdpo run {run.path.name}")
    except hub.errors.HfHubHTTPError as error:
        told = f"the Hub refuses {name}: {str(error)[:_SHOWN]}"
        code = getattr(error.response, "status_code", None)
        raise HubError(f"{told}. {_LOG_IN.capitalize()}" if code in _REFUSED else told) from error
    except Exception as error:  # three libraries meet here, each with errors of its own
        raise HubError(
            f"the Hub cannot be reached ({type(error).__name__}: {str(error)[:_SHOWN]}). Check the "
            "connection (and HF_HUB_OFFLINE, HF_ENDPOINT), then give the same command again"
        ) from error
    return str(url)


def _card(run: RunDirectory, name: str) -> str:
    """The run's README, with the places that files have in a repository."""
    text = run.readme.read_text(encoding="utf-8")
    loads = f'- the model: `AutoModelForCausalLM.from_pretrained("{name}")`'
    text = re.sub(r"^- `model/` is the trained model: .*$", lambda _: loads, text, flags=re.M)
    return re.sub(
        r"^- again: .*$", "- again: `gdpo train recipe.yaml --set name=...`", text, flags=re.M
    )


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "train", "to upload a run") from error
    return huggingface_hub
