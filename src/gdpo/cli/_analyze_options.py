"""What a command line of `gdpo analyze` asks for, checked before anything is read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo._naming import did_you_mean
from gdpo.advantages import resolve_estimator
from gdpo.analysis.replay import RECORDED
from gdpo.diagnostics.diagnosis import Severity
from gdpo.errors import ConfigError, MissingExtraError
from gdpo.report.rollouts_page import MARK
from gdpo.rollouts.readers import FORMATS
from gdpo.rollouts.readers.columns import LARGEST

PAGE = Path("analysis.html")


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """What a command line asks for."""

    paths: tuple[Path, ...]
    reading: Mapping[str, Any]
    """Options of `read_rollout_files`."""
    weights: Mapping[str, float] | None
    low: Mapping[str, float]
    high: Mapping[str, float]
    rescore: str | None
    estimators: tuple[str, ...] | None
    json: bool
    fail_on: Severity | None
    page: Path | None
    no_page: str
    """Why there is none, if nobody asked for none."""

    @classmethod
    def of(
        cls,
        paths: Sequence[Path],
        *,
        format: str | None,
        rewards: str | None,
        columns: Sequence[str],
        group_size: int | None,
        weights: str | None,
        low: str | None,
        high: str | None,
        rescore: str | None,
        estimators: Sequence[str] | None,
        json: bool,
        fail_on: str | None,
        output: Path | None,
        report: bool,
    ) -> "AnalyzeOptions":
        """Check it all, before anything is read.

        Raises:
            ConfigError: Something is unknown, or written otherwise than it should be.
        """
        if format is not None and format not in FORMATS:
            raise ConfigError(f"--format {format}: {did_you_mean(format, FORMATS)}")
        if columns and format not in (None, "columns"):
            raise ConfigError(f"--columns: format {format} says itself what its columns are")
        if rescore is not None and rewards is not None:
            raise ConfigError("--rescore gives all rewards, so --rewards cannot name columns")
        try:
            asked = output is not None or not json
            page, no_page = _page(paths, output, report=report, asked=asked)
        except OSError as error:
            raise ConfigError(
                f"{error.filename or output or PAGE}: {error.strerror}: nothing can be told of the "
                "page's place: --output names another, --no-report wants none"
            ) from error
        return cls(
            paths=tuple(paths),
            reading={
                "format": format,
                "rewards": _names(rewards, "--rewards") if rewards is not None else None,
                "columns": _pairs(columns, "--columns", "MEANING=COLUMN") or None,
                "group_size": group_size,
                "load_pt": _load_pt,
            },
            weights=None if weights is None else _numbers(weights, "--weights"),
            low={} if low is None else _numbers(low, "--low"),
            high={} if high is None else _numbers(high, "--high"),
            rescore=rescore,
            estimators=_estimators(estimators),
            json=json,
            fail_on=_severity(fail_on),
            page=page,
            no_page=no_page,
        )


def _load_pt(path: Path) -> Any:
    try:
        from gdpo.integrations.slime import load_dump

        return load_dump(path)
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "train", "to read .pt files") from error


def _page(
    paths: Sequence[Path], output: Path | None, *, report: bool, asked: bool
) -> tuple[Path | None, str]:
    """Where the page goes, or why there is none."""
    if not report and output is not None:
        raise ConfigError("--output names a page, and --no-report wants none")
    if not report or not asked:
        return None, ""
    if output is None and (run := _run_around_here(paths)):
        return None, f"no page: this folder lies in {run}; --output FILE writes one"
    page = output or PAGE
    if page.exists() and not (page.is_file() and _is_ours(page)):
        raise ConfigError(
            f"{page} is there, and no page of gdpo analyze: nothing else is replaced; name another "
            "with --output, or --no-report"
        )
    if not page.parent.is_dir() or not os.access(page.parent, os.W_OK):
        raise ConfigError(
            f"{page.parent.absolute()} is no folder that can be written to: name a page elsewhere "
            "with --output, or --no-report"
        )
    return page, ""


def _run_around_here(paths: Sequence[Path]) -> Path | None:
    """The folder of rollouts that this folder is, or lies in."""
    here = Path.cwd()
    for path in paths:
        folder = path.resolve() if path.is_dir() else path.resolve().parent
        if folder == here or folder in here.parents:
            return folder
    return None


def _is_ours(page: Path) -> bool:
    with page.open(encoding="utf-8", errors="replace") as file:
        begin = file.read(4096)
    return begin.lstrip().lower().startswith("<!doctype html>") and MARK in begin


def _names(text: str, option: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"{option} names none")
    return names


def _pairs(given: Sequence[str], option: str, what: str) -> dict[str, str]:
    pairs = [part.partition("=") for text in given for part in text.split(",") if part.strip()]
    for name, equals, value in pairs:
        if not (name.strip() and equals and value.strip()):
            raise ConfigError(f"{option} {name}{equals}{value}: write {what}")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{option} names {', '.join(sorted(twice))} twice")
    return dict(zip(names, (value.strip() for _, _, value in pairs), strict=True))


def _numbers(given: str, option: str) -> dict[str, float]:
    """Return a number for each name."""
    numbers: dict[str, float] = {}
    for name, text in _pairs([given], option, "NAME=NUMBER, as correctness=1,format=0.5").items():
        try:
            numbers[name] = float(text)
        except ValueError as error:
            raise ConfigError(f"{option} {name}={text}: {text!r} is no number") from error
        if not abs(numbers[name]) <= LARGEST:
            raise ConfigError(
                f"{option} {name}={text}: a number is finite, and at most {LARGEST:g} in size"
            )
    if not numbers:
        raise ConfigError(f"{option} names none")
    return numbers


def _estimators(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """None: none are replayed; empty: all."""
    if given is None:
        return None
    names = tuple(dict.fromkeys(n.strip() for text in given for n in text.split(",") if n.strip()))
    for name in names:
        if name != RECORDED and ":" not in name and Path(name).exists():
            raise ConfigError(f"--estimators {name}: that is a path; name the paths first")
        if name != RECORDED:
            resolve_estimator(name)
    return names


def _severity(given: str | None) -> Severity | None:
    if given is None:
        return None
    names = [severity.value for severity in Severity]
    if given not in names:
        raise ConfigError(f"--fail-on {given}: {did_you_mean(given, names)}")
    return Severity(given)
