"""Checks the options of `gdpo analyze` before any file is read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS, resolve_estimator
from gdpo.analysis.logs.rows import METRICS
from gdpo.analysis.replay import RECORDED
from gdpo.diagnostics.diagnosis import Severity
from gdpo.errors import ConfigError
from gdpo.report.rollouts_page import MARK
from gdpo.rollouts.readers import FORMATS
from gdpo.rollouts.readers.columns import LARGEST

PAGE = Path("analysis.html")


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """Stores the checked options of one `gdpo analyze` command."""

    paths: tuple[Path, ...]
    reading: Mapping[str, Any]
    """Keyword arguments of `read_rollout_files`."""
    weights: Mapping[str, float] | None
    low: Mapping[str, float]
    high: Mapping[str, float]
    rescore: str | None
    estimators: tuple[str, ...] | None
    primary: str | None
    json: bool
    fail_on: Severity | None
    given: Mapping[str, str]
    """Options that do not affect reading, as text, to print them in other commands."""
    page: Path | None
    no_page: str
    """Reason to print if no HTML page is written. Empty if there is nothing to explain."""
    metrics: bool
    """Whether the files contain metrics, as the user said with `--format metrics`."""
    for_rollouts: tuple[str, ...]
    """The given options that need rollouts, and cannot be used with logged metrics."""


def refuse_unusable(
    *,
    format: str | None,
    fail_on: str | None,
    columns: Sequence[str] | None,
    rewards: str | None,
    rescore: str | None,
) -> None:
    """Raise a ConfigError if an option has an unknown value, or two options exclude each other."""
    if format is not None and format not in (*FORMATS, METRICS):
        raise ConfigError(f"--format {format}: {did_you_mean(format, (*FORMATS, METRICS))}")
    severities = [severity.value for severity in Severity]
    if fail_on is not None and fail_on not in severities:
        raise ConfigError(f"--fail-on {fail_on}: {did_you_mean(fail_on, severities)}")
    if columns and format not in (None, "columns"):
        raise ConfigError(
            f"--columns cannot be combined with --format {format}, whose columns are known: "
            "remove one of the two"
        )
    if rescore is not None and rewards is not None:
        raise ConfigError(
            "--rescore cannot be combined with --rewards, because it computes all rewards: "
            "remove one of the two"
        )


def page_of(
    paths: Sequence[Path], output: Path | None, *, report: bool, json: bool
) -> tuple[Path | None, str]:
    """Return the path of the HTML page, or None and the reason to print."""
    if not report and output is not None:
        raise ConfigError("--output cannot be combined with --no-report: remove one of the two")
    if not report or (json and output is None):
        return None, ""
    page = output or PAGE
    try:
        if output is None and (run := _run_around_here(paths)):
            why = f"no page written, because this folder is part of {run}: give --output FILE"
            return None, why
        theirs = page.exists() and not (page.is_file() and _is_ours(page))
        writable = page.parent.is_dir() and os.access(page.parent, os.W_OK)
    except OSError as error:
        raise ConfigError(
            f"--output {error.filename or page}: {error.strerror}. Choose another file, or pass "
            "--no-report to write no page"
        ) from error
    if theirs:
        raise ConfigError(
            f"{page} exists and was not written by gdpo analyze, so it is not overwritten: "
            "choose another file with --output, or pass --no-report"
        )
    if not writable:
        raise ConfigError(
            f"{page.parent.absolute()} is not a writable folder: choose another file with "
            "--output, or pass --no-report"
        )
    return page, ""


def _run_around_here(paths: Sequence[Path]) -> Path | None:
    # A page beside a given file is welcome, because the folder need not be that of a run.
    here = Path.cwd()
    folders = (path.resolve() for path in paths if path.is_dir())
    return next((each for each in folders if each in (here, *here.parents)), None)


def _is_ours(page: Path) -> bool:
    with page.open(encoding="utf-8", errors="replace") as file:
        begin = file.read(4096)
    return begin.lstrip().lower().startswith("<!doctype html>") and MARK in begin


def names_of(text: str | None, option: str) -> list[str] | None:
    """Return comma-separated names, each once."""
    if text is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"{option} is empty: list at least one column")
    return names


def pairs_of(given: Sequence[str], option: str, form: str) -> dict[str, str]:
    """Return comma-separated pairs of a name and a value."""
    pairs = [part.partition("=") for text in given for part in text.split(",") if part.strip()]
    for name, equals, value in pairs:
        if not (name.strip() and equals and value.strip()):
            raise ConfigError(f"{option} {name}{equals}{value}: write {form}")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{option} lists {', '.join(sorted(twice))} twice: list each once")
    return dict(zip(names, (value.strip() for _, _, value in pairs), strict=True))


def numbers_of(given: str | None, option: str) -> dict[str, float] | None:
    """Return comma-separated pairs of a name and a finite number."""
    if given is None:
        return None
    form, numbers = "NAME=NUMBER, as in correctness=1,format=0.5", dict[str, float]()
    for name, text in pairs_of([given], option, form).items():
        try:
            numbers[name] = float(text)
        except ValueError as error:
            raise ConfigError(f"{option} {name}={text}: {text!r} is not a number") from error
        if not abs(numbers[name]) <= LARGEST:
            raise ConfigError(
                f"{option} {name}={text}: use a finite number between -{LARGEST:g} and {LARGEST:g}"
            )
    if not numbers:
        raise ConfigError(f"{option} is empty: write {form}")
    return numbers


def estimators_of(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the estimators for recomputing advantages. None: do not recompute; empty: use all."""
    if given is None:
        return None
    names = tuple(dict.fromkeys(n.strip() for text in given for n in text.split(",") if n.strip()))
    for name in names:
        if name == RECORDED:
            continue
        known = ":" in name or name in ESTIMATORS or name in TURN_ESTIMATORS
        if not known and Path(name).exists():
            raise ConfigError(
                f"--estimators {name}: this is a path, not an estimator. Separate estimators with "
                "commas (--estimators grpo,gdpo), and put paths before all options"
            )
        resolve_estimator(name)
    return names
