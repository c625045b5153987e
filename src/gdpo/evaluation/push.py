"""Uploads a finished run to the Hugging Face Hub: model, card, recipe, metrics and results.

Some files are never uploaded: checkpoints, `environment.json` (which contains the command line) and
the responses of an evaluation. Rollouts are uploaded only on request.
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
    """Append the results to a README, replacing earlier results.

    Args:
        readme: README of a run.
        results: Results of all benchmarks.
        settings: Settings of the evaluation.
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
    samples = "1 response" if drawn.samples == 1 else f"{drawn.samples:,} responses"
    return f"""Settings: {samples} per problem, temperature {drawn.temperature:g}, top-p {drawn.top_p:g}, at most {drawn.max_tokens:,} tokens, seed {drawn.seed}, engine {settings.engine}.
A response with more than {settings.token_limit:,} tokens counts as too long. The confidence intervals are over problems.

| benchmark | problems | measure | mean | 95 % confidence interval |
|---|---|---|---|---|
{rows}
{notes}"""  # noqa: E501  lines of Markdown


def _number(value: float) -> str:
    return "–" if isnan(value) else f"{value:.3f}"


_TEXTS = (".md", ".yaml", ".json", ".jsonl", ".txt", ".jinja")
_SECRET = re.compile(r"\bhf_[A-Za-z0-9]{16,}|\b(?:hub_)?token:\s*(?!null\b|~|\s)\S", re.ASCII)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token with write access"
_REFUSED = (401, 403)
_RERUN = "then rerun the same command"
_SHOWN = 300
"""Maximum number of characters of the Hub's reply that a message includes."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Stores one file and its path in the repository."""

    file: Path
    path: str

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.file.stat().st_size


class HubError(GdpoError):
    """Raised if the Hub cannot be reached or refuses the upload."""


def uploads(run: RunDirectory, *, rollouts: bool = False) -> list[Upload]:
    """Return the files of a run that `push` uploads. The model's files go to the top level.

    Args:
        run: A finished run.
        rollouts: Whether to include prompts, responses and rewards of the training run.

    Raises:
        ConfigError: If the folder is not a run, or the run is not finished.
        DataError: If a file contains something that looks like a Hub access token.
    """
    if not run.recipe.is_file():
        raise ConfigError(
            f"{run.path} is not a gdpo run: it has no recipe.yaml. Pass a run directory"
        )
    if not run.model.is_dir() or not run.readme.is_file():
        raise ConfigError(
            f"the run {run.path} is not finished: model/ or README.md is missing. To finish it: "
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
    # A tokenizer's vocabulary has megabytes of text and no secrets.
    if file.suffix not in _TEXTS or file.name.startswith(("tokenizer", "vocab")):
        return
    if _SECRET.search(file.read_text(encoding="utf-8", errors="replace")):
        raise DataError(
            f"{file} contains what looks like a Hub access token, so nothing was uploaded. "
            "Remove the token, and set the environment variable HF_TOKEN instead. If others could "
            "have seen the token, revoke it at huggingface.co/settings/tokens"
        )


def check_repository(name: str) -> None:
    """Raise ConfigError if the name is not OWNER/NAME."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ConfigError(f"{name!r} is not a repository name: write OWNER/NAME")


def check_push(run: RunDirectory, name: str) -> None:
    """Check everything about a push that can be checked without contacting the Hub.

    Raises:
        ConfigError: If the name is not OWNER/NAME, the user is not logged in, or the run is not
            finished.
    """
    check_repository(name)
    if _hub().get_token() is None:
        raise ConfigError(f"not logged in to the Hub: {_LOG_IN}")
    uploads(run)


def push(run: RunDirectory, name: str, files: Sequence[Upload], *, private: bool = True) -> str:
    """Upload a run's files in one commit.

    Args:
        run: The run. Its README becomes the repository's card.
        name: Repository as `owner/name`. The repository is created if it does not exist. An
            existing repository keeps its visibility.
        files: The files from `uploads`.
        private: Whether a new repository is private.

    Returns:
        The URL of the repository.

    Raises:
        ConfigError: If `check_push` fails.
        HubError: If the Hub cannot be reached or refuses the upload.
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
        message = f"the Hub refused {name}: {str(error)[:_SHOWN]}"
        code = getattr(error.response, "status_code", None)
        remedy = (
            f"Check OWNER/NAME, and {_LOG_IN}" if code in _REFUSED else f"Correct this, {_RERUN}"
        )
        raise HubError(f"{message}. {remedy}") from error
    except Exception as error:  # huggingface_hub passes on errors of two HTTP libraries
        raise HubError(
            f"the Hub cannot be reached ({type(error).__name__}: {str(error)[:_SHOWN]}). Check the "
            f"connection, HF_HUB_OFFLINE and HF_ENDPOINT, {_RERUN}"
        ) from error
    return str(url)


def _card(run: RunDirectory, name: str) -> str:
    """Return the run's README, with paths and commands adapted to the repository."""
    text = run.readme.read_text(encoding="utf-8")
    loads = f'- the model: `AutoModelForCausalLM.from_pretrained("{name}")`'
    text = re.sub(r"^- `model/` is the trained model: .*$", lambda _: loads, text, flags=re.M)
    repeat = r"^(- .*`gdpo [a-z ]+) \S+ (--set name=\.\.\.`)$"
    return re.sub(repeat, r"\1 recipe.yaml \2", text, flags=re.M)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "train", "to upload a run") from error
    return huggingface_hub
