"""`gdpo analyze`, once its options are read: once, or for as long as a run goes on."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path

from rich.console import Console

from gdpo import __version__
from gdpo._files import to_json
from gdpo.analysis import Analysis, Rescorer, analyze, as_dict
from gdpo.analysis.replay import RECORDED
from gdpo.cli._analyze_options import AnalyzeOptions
from gdpo.cli._codes import FAILED, INTERRUPTED
from gdpo.diagnostics.diagnosis import Severity
from gdpo.diagnostics.watch import HeldFinding
from gdpo.errors import ConfigError, DataError
from gdpo.report import write_rollouts_report
from gdpo.report.rollouts_summary import LINES, estimators_summary, rollouts_summary
from gdpo.report.text import one_line
from gdpo.rollouts.readers import RolloutTable, read_rollout_files
from gdpo.rollouts.readers.files import ENDINGS, find_files
from gdpo.rollouts.readers.report import without_rewards

_PAUSE_S = 3.0
_WIDTH = 100
_AROUND = 2
"""Lines of the command around its summary: what is read, and where the page is."""


def run_analysis(options: AnalyzeOptions) -> int:
    """Read, print, and write the page. Returns the exit code.

    Raises:
        DataError: There is nothing to analyze.
        ConfigError: The files do not have what was asked for.
    """
    console = Console(highlight=False)
    analysis = _analyzed(options)
    failed = bool(_failing(analysis, options.fail_on))
    if analysis.runs:
        _refuse_absent(analysis, options)
    _tell(analysis, options, console, failed=failed)
    if not analysis.runs:
        raise DataError(_nothing(analysis))
    _write_page(analysis, options, console)
    return FAILED if failed else 0


def follow_runs(options: AnalyzeOptions) -> int:
    """Say it again whenever a file is new or has grown, until Ctrl-C. Returns the exit code.

    Everything is read again then; reading takes at most a tenth of the time. It ends by itself
    where something is found that fails, and has held for 5 steps in a row: with fewer steps, what
    is found may be of the first ones alone.

    Raises:
        ConfigError: The files do not have what was asked for.
    """
    console = Console(highlight=False)
    seen: object = None
    try:
        while True:
            start = time.monotonic()
            try:
                now = _sizes(options.paths)
                if now != seen:
                    seen = now
                    if bad := _look(options, console):
                        _tell_end(bad[0], options, console)
                        return FAILED
            except DataError as error:  # a file that was moved away may come back
                now = f"{error}; waiting for it"
                if now != seen:
                    _say(now, console)
                seen = now
            time.sleep(max(_PAUSE_S, 10 * (time.monotonic() - start)))
    except KeyboardInterrupt:
        return INTERRUPTED


def _look(options: AnalyzeOptions, console: Console) -> list[HeldFinding]:
    """Returns what fails."""
    analysis = _analyzed(options)
    if analysis.runs:
        _refuse_absent(analysis, options)
    if not options.json:
        console.rule(time.strftime("%H:%M:%S"))
    bad = [held for held in _failing(analysis, options.fail_on) if held.certain]
    _tell(analysis, options, console, failed=bool(bad))
    if analysis.runs:
        try:
            _write_page(analysis, options, console)
        except OSError as error:  # the disk may have room again when it is looked at next
            _say(f"no page: {error.filename or options.page}: {error.strerror}", console)
    return bad


def _tell_end(held: HeldFinding, options: AnalyzeOptions, console: Console) -> None:
    finding = held.finding
    steps = f"{held.in_a_row:,} step{'s' * (held.in_a_row != 1)}"
    said = f"--fail-on: a {finding.severity.value} held for {steps} in a row: "
    out = Console(stderr=True, highlight=False) if options.json else console
    _say(said + finding.message, out)


def _sizes(paths: Sequence[Path]) -> list[tuple[Path, int, int]]:
    found: list[tuple[Path, int, int]] = []
    for file in find_files(paths, {}):
        with suppress(OSError):  # a file may go while it is looked at
            stat = file.path.stat()
            found.append((file.path, stat.st_size, stat.st_mtime_ns))
    return found


def _analyzed(options: AnalyzeOptions) -> Analysis:
    with ExitStack() as stack:
        rescorer = None
        if options.rescore is not None:
            stack.enter_context(_quiet())
            stack.enter_context(_stdout_kept())
            rescorer = stack.enter_context(Rescorer(options.rescore))
        told = stack.enter_context(_progress())
        return analyze(
            read_rollout_files(options.paths, **options.reading, rescore=rescorer),
            weights=options.weights,
            low={**(rescorer.low if rescorer else {}), **options.low},
            high={**(rescorer.high if rescorer else {}), **options.high},
            replayed=options.estimators,
            sampled=options.page is not None,
            progress=told,
        )


@contextmanager
def _quiet() -> Generator[None]:
    """No warnings of rewards: what fails is in the summary, counted and with its place."""
    logger = logging.getLogger("gdpo.rewards")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _stdout_kept() -> Generator[None]:
    """What rewards print, or processes of theirs, goes to stderr: stdout is for what is found."""
    if sys.stdout is None:  # it was closed before the program began
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _progress() -> Generator[Callable[[RolloutTable], None] | None]:
    """On a terminal, what is being read; gone when it has been."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    with console.status("") as status:
        read = 0

        def told(table: RolloutTable) -> None:
            nonlocal read
            read += len(table)
            status.update(f"step {table.steps[0]:,}: {read:,} rollouts")

        yield told


def _tell(analysis: Analysis, options: AnalyzeOptions, console: Console, *, failed: bool) -> None:
    if options.json:
        everything = {"gdpo": __version__, **as_dict(analysis), "failed": failed}
        # ASCII, so that what a file holds cannot command the terminal.
        print(json.dumps(json.loads(to_json(everything))), flush=True)
        return
    width = max(40, min(console.width, _WIDTH)) if console.is_terminal else _WIDTH
    lines = rollouts_summary(analysis, width=width, room=LINES - _AROUND)
    for line in (*lines, *estimators_summary(analysis, width=width)):
        console.print(line, soft_wrap=True)


def _write_page(analysis: Analysis, options: AnalyzeOptions, console: Console) -> None:
    if options.page is not None:
        told = {key: options.reading[key] for key in ("columns", "load_pt")}
        write_rollouts_report(analysis, options.page, **told)
    said = f"the whole page: {options.page}" if options.page is not None else options.no_page
    if said and not options.json:
        _say(said, console)


def _say(text: str, console: Console) -> None:
    console.print(one_line(text), markup=False, emoji=False, soft_wrap=True)


def _refuse_absent(analysis: Analysis, options: AnalyzeOptions) -> None:
    """Raise a ConfigError where recorded advantages were asked for, and there are none."""
    if RECORDED in (options.estimators or ()) and not any(run.recorded for run in analysis.runs):
        raise ConfigError(
            f"--estimators {RECORDED}: these files hold no advantages; leave it out, and the first "
            "estimator that is named is what the others are compared with"
        )


def _failing(analysis: Analysis, worst: Severity | None) -> list[HeldFinding]:
    """What lasted and is as bad as that, or worse; nothing if nobody asked."""
    if worst is None:
        return []
    severities = list(Severity)
    bad = severities[: severities.index(worst) + 1]
    return [held for _, held in analysis.findings() if held.finding.severity in bad]


def _nothing(analysis: Analysis) -> str:
    report = analysis.report
    if analysis.problems:
        return "no step could be analyzed"
    if said := without_rewards(report):
        return said
    if report.read:
        return "these files hold no reward: name the columns that are rewards (--rewards)"
    if report.files or report.left_out:
        return "no rollout could be read from these files"
    return f"no files with rollouts there: {', '.join(ENDINGS)}, or these with .gz"
