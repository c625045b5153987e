"""Checks the options of `gdpo analyze` before any file is read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo._naming import did_you_mean, refuse_unknown
from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS, resolve_estimator
from gdpo.analysis.logs.rows import METRICS
from gdpo.analysis.replay import RECORDED
from gdpo.diagnostics.diagnosis import Severity
from gdpo.errors import ConfigError
from gdpo.integrations.torch_files import load_dump
from gdpo.report.rollouts_page import MARK
from gdpo.rollouts.readers import FORMATS
from gdpo.rollouts.readers.columns import LARGEST
from gdpo.rollouts.readers.names import MEANINGS

PAGE = Path("analysis.html")
NONE, JSON = "none", "json"
"""Values of `--output` with which no page is written."""


_SIZES = "--sizes-are-weights"


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """Stores the checked options of one `gdpo analyze` command."""

    paths: tuple[Path, ...]
    reading: Mapping[str, Any]
    """Keyword arguments of `read_rollout_files`."""
    texts: Mapping[str, Any]
    """Those with which texts are read again."""
    analysis: Mapping[str, Any]
    """Those of `analyze`."""
    rescore: str | None
    json: bool
    fail_on: Severity | None
    given: Mapping[str, str]
    """All options except `--rewards`, `--columns` and `--output`, as text, to print in commands."""
    page: Path | None
    no_page: str
    """Reason to print if no HTML page is written. Empty if there is nothing to explain."""
    for_rollouts: tuple[str, ...]
    """The given options that need rollouts, and cannot be used with logged metrics."""


def checked(paths: tuple[Path, ...], given: Mapping[str, str]) -> AnalyzeOptions:
    """Return the options, given as text by name, or raise a ConfigError."""
    fail_on, output = given.get("--fail-on"), given.get("--output")
    severities = [severity.value for severity in Severity]
    if fail_on is not None and fail_on not in severities:
        raise ConfigError(f"--fail-on {fail_on}: {did_you_mean(fail_on, severities)}")
    if "--rescore" in given and "--rewards" in given:
        raise ConfigError(
            "--rescore cannot be combined with --rewards, because it computes all rewards: "
            "remove one of the two"
        )
    if "--weights" in given and _SIZES in given:
        raise ConfigError(
            "--weights and --sizes-are-weights both say how much each reward should count: remove "
            "one of the two"
        )
    reading = _reading(given)
    page, no_page = _page_of(paths, output)
    weights, estimators = given.get("--weights"), given.get("--estimators")
    low, high = _ranges_of(given["--range"]) if "--range" in given else ({}, {})
    others = [name for name in given if name not in ("--rewards", "--columns", "--output")]
    of_metrics = {"--rewards", "--weights"}
    of_metrics |= {"--output"} if output in (NONE, JSON) else set()
    of_metrics |= {"--columns"} if reading["format"] == METRICS else set()
    return AnalyzeOptions(
        paths=paths,
        reading=reading,
        texts={key: reading[key] for key in ("columns", "load_pt")},
        analysis={
            "weights": None if weights is None else _weights_of(weights),
            "sizes_are_weights": _SIZES in given,
            "low": low,
            "high": high,
            "replayed": None if estimators is None else _estimators_of(estimators),
            "sampled": page is not None,
            "primary": given.get("--primary"),
        },
        rescore=given.get("--rescore"),
        json=output == JSON,
        fail_on=None if fail_on is None else Severity(fail_on),
        given={name: given[name] for name in others if given[name] or name == _SIZES},
        page=page,
        no_page=no_page,
        for_rollouts=tuple(name for name in given if name not in of_metrics),
    )


def _reading(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of `read_rollout_files`."""
    rewards, columns, size = given.get("--rewards"), dict[str, str](), None
    if "--columns" in given:
        columns = _pairs_of(given["--columns"], "--columns", "MEANING=COLUMN")
    refuse_unknown(columns, (*MEANINGS, "format", "group_size"), "--columns: unknown meaning")
    if (form := columns.pop("format", None)) not in (None, *FORMATS, METRICS):
        raise ConfigError(f"--columns format={form}: {did_you_mean(form, (*FORMATS, METRICS))}")
    for meaning, column in columns.items() if form not in (None, "columns") else ():
        if meaning != "group_size" or form == METRICS:
            raise ConfigError(
                f"--columns {meaning}={column} does not apply to format={form}: remove one of the "
                "two"
            )
    if (text := columns.pop("group_size", None)) is not None:
        if not text.isdecimal() or not int(text):
            raise ConfigError(f"--columns group_size={text}: write a whole number, 1 or more")
        size = int(text)
    names = [name.strip() for name in (rewards or "").split(",") if name.strip()]
    if rewards is not None and not names:
        raise ConfigError("--rewards is empty: list at least one column")
    return {
        "format": form,
        "rewards": list(dict.fromkeys(names)) or None,
        "columns": columns or None,
        "group_size": size,
        "load_pt": load_dump,
    }


def _page_of(paths: Sequence[Path], output: str | None) -> tuple[Path | None, str]:
    """Return the path of the HTML page, or None and the reason to print."""
    if output in (NONE, JSON):
        return None, ""
    if output and output.lower() in (NONE, JSON):
        raise ConfigError(
            f"--output {output}: write {output.lower()}, or ./{output} for a page of this name"
        )
    page = PAGE if output is None else Path(output)
    try:
        if output is None and (run := _run_around_here(paths)):
            why = f"no page written, because this folder is part of {run}: give --output FILE"
            return None, why
        theirs = page.exists() and not (page.is_file() and _is_ours(page))
        writable = page.parent.is_dir() and os.access(page.parent, os.W_OK)
    except OSError as error:
        raise ConfigError(
            f"--output {error.filename or page}: {error.strerror}. Choose another file, or pass "
            "--output none to write no page"
        ) from error
    if theirs:
        raise ConfigError(
            f"{page} exists and was not written by gdpo analyze, so it is not overwritten: "
            "choose another file with --output, or pass --output none"
        )
    if not writable:
        raise ConfigError(
            f"{page.parent.absolute()} is not a writable folder: choose another file with "
            "--output, or pass --output none"
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


def _pairs_of(given: str, option: str, form: str) -> dict[str, str]:
    """Return comma-separated pairs of a name and a value."""
    pairs = [part.partition("=") for part in given.split(",") if part.strip()]
    if not pairs:
        raise ConfigError(f"{option} is empty: write {form}")
    for name, equals, value in pairs:
        if not (name.strip() and equals and value.strip()):
            raise ConfigError(f"{option} {name}{equals}{value}: write {form}")
    names = [name.strip() for name, _, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{option} lists {', '.join(sorted(twice))} twice: list each once")
    return dict(zip(names, (value.strip() for _, _, value in pairs), strict=True))


def _weights_of(given: str) -> dict[str, float]:
    """Return the given weights of the rewards by name."""
    form = "NAME=NUMBER, as in correctness=1,format=0.5"
    return {
        name: _number(text, f"--weights {name}={text}")
        for name, text in _pairs_of(given, "--weights", form).items()
    }


def _ranges_of(given: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the given lowest values of the rewards by name, and the highest values."""
    found = dict[str, float](), dict[str, float]()
    form = "NAME=LOW:HIGH, as in correctness=0:1"
    for name, text in _pairs_of(given, "--range", form).items():
        low, colon, high = (part.strip() for part in text.partition(":"))
        where = f"--range {name}={text}"
        if not colon or not (low or high):
            raise ConfigError(f"{where}: write {form}")
        for ends, end in zip(found, (low, high), strict=True):
            if end:
                ends[name] = _number(end, where)
    return found


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is not a number") from error
    if not abs(number) <= LARGEST:
        raise ConfigError(f"{where}: use a finite number between -{LARGEST:g} and {LARGEST:g}")
    return number


def _estimators_of(given: str) -> tuple[str, ...]:
    """Return the estimators for recomputing advantages. Empty: use all."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
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
