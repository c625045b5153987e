"""Runs `gdpo analyze` with checked options, once or repeatedly while a run grows."""

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from gdpo import __version__
from gdpo._files import to_json
from gdpo._terminal import say, terminal
from gdpo._text import one_line
from gdpo.analysis import Analysis, Rescorer, analyze, as_dict
from gdpo.analysis.logs.rows import METRICS, Log, fields_of
from gdpo.analysis.logs.sources import read_logs
from gdpo.analysis.logs.trends import RunTrends, logged_runs, trends_of
from gdpo.analysis.replay import RECORDED
from gdpo.analysis.steps import refuse_unnamed
from gdpo.analysis.verdict import REPLAYED
from gdpo.cli._analyze_options import AnalyzeOptions
from gdpo.diagnostics.diagnosis import Severity
from gdpo.diagnostics.watch import HeldFinding
from gdpo.errors import FAILED, INTERRUPTED, ConfigError, DataError
from gdpo.report import write_rollouts_report
from gdpo.report.blocks import Terminal, printed
from gdpo.report.summaries import contents, log_blocks
from gdpo.rollouts.readers import RolloutTable, read_rollout_files
from gdpo.rollouts.readers.files import ENDINGS, find_files
from gdpo.rollouts.readers.report import groups_of_one, without_rewards

_PAUSE_S = 3.0
_WIDTH = 100


def run_analysis(options: AnalyzeOptions) -> int:
    """Read the files, print the summary and write the HTML page. Return the exit code.

    If the paths contain no rollouts but logged metrics, print what the metrics show.
    """
    gc.set_threshold(2_000, 10, 1_000)  # reading makes many objects, but few cycles
    console = terminal()
    if options.reading["format"] == METRICS:
        return _analyze_logs(read_logs(options.paths, forced=True), options, console)
    analysis = _analyzed(options)
    if not analysis.report.files and (logs := read_logs(options.paths)):
        return _analyze_logs(logs, options, console)
    bad = _show(analysis, options, console)
    if not analysis.runs:
        raise DataError(_nothing(analysis))
    return FAILED if bad else 0


def follow_runs(options: AnalyzeOptions) -> int:
    """Repeat the analysis whenever a file is added or grows, until Ctrl-C. Return the exit code.

    Each repetition reads all files again, after a pause of at least ten times its length. With
    `--fail-on`, the function returns once a finding is certain, because a check that is repeated
    whenever a file grows may be wrong by chance.
    """
    if options.reading["format"] == METRICS:
        raise ConfigError(f"--follow waits for rollouts: remove it, or format={METRICS}")
    console = terminal()
    seen: object = None
    try:
        while True:
            start = time.monotonic()
            try:
                now = _sizes(options.paths)
                if now != seen:
                    seen = now
                    if bad := _show(_analyzed(options), options, console, follows=True):
                        severity, message = bad[0].finding.severity, bad[0].finding.message
                        why = f"--fail-on: stopping, because a {severity.value} is certain: "
                        out = terminal(stderr=True) if options.json else console
                        say(out, one_line(why + message))
                        return FAILED
            except DataError as error:  # a file that was moved away may come back
                now = f"{error}. Waiting for it"
                if now != seen:
                    say(console, one_line(now))
                seen = now
            time.sleep(max(_PAUSE_S, 10 * (time.monotonic() - start)))
    except KeyboardInterrupt:
        return INTERRUPTED


def _show(
    analysis: Analysis, options: AnalyzeOptions, console: Console, *, follows: bool = False
) -> list[HeldFinding]:
    """Print an analysis and write its page. Return the findings that `--fail-on` asks for.

    `follows`: the analysis is repeated, so only certain findings count, and a page that cannot be
    written may be written the next time.
    """
    bad = _failing(analysis, options, console, follows=follows)
    if options.json:
        _print_json({**as_dict(analysis), "failed": bool(bad)})
        return bad
    if follows:
        console.rule(time.strftime("%H:%M:%S"))
    said = contents(analysis, **options.texts)
    on = Terminal(_width(console), not console.is_terminal, options.page)
    *parts, verdict = (printed(blocks, on) for blocks in said.values())
    say(console, *chain(*parts))
    if not analysis.runs:
        return bad
    try:
        if options.page is not None:
            write_rollouts_report(analysis, options.page, said=said, **options.texts)
            say(console, one_line(f"page with curves and texts: {options.page}"))
        elif options.no_page:
            say(console, one_line(options.no_page))
    except OSError as error:
        if not follows:
            raise
        place = error.filename or options.page
        say(console, one_line(f"could not write the page {place}: {error.strerror}"))
    finally:
        say(console, *verdict)
    return bad


def _failing(
    analysis: Analysis, options: AnalyzeOptions, console: Console, *, follows: bool
) -> list[HeldFinding]:
    if message := groups_of_one(analysis.report):
        if not options.json and not follows:
            say(console, "! every group has one rollout")
        raise DataError(message + _or_metrics(analysis))
    recorded = any(run.recorded for run in analysis.runs)
    if RECORDED in (options.analysis["replayed"] or ()) and analysis.runs and not recorded:
        raise ConfigError(
            f"--estimators {RECORDED}: these files contain no advantages. Remove {RECORDED}; the "
            "first estimator is then the baseline"
        )
    if options.fail_on is None:
        return []
    severities = list(Severity)
    bad = severities[: severities.index(options.fail_on) + 1]
    return [
        held
        for run, held in analysis.findings()
        if held.finding.severity in bad
        and not held.past
        and (held.certain or not follows)
        and not (held.finding.kind in REPLAYED and analysis.verdict(run).satisfied)
    ]


def _sizes(paths: Sequence[Path]) -> list[tuple[Path, int, int]]:
    found: list[tuple[Path, int, int]] = []
    for file in find_files(paths, {}):
        with suppress(OSError):  # a file may be deleted in between
            stat = file.path.stat()
            found.append((file.path, stat.st_size, stat.st_mtime_ns))
    return found


def _analyzed(options: AnalyzeOptions) -> Analysis:
    with ExitStack() as stack:
        rescorer = None
        if options.rescore is not None:
            stack.enter_context(_rewards_kept_apart())
            rescorer = stack.enter_context(Rescorer(options.rescore))
        reading = read_rollout_files(options.paths, **options.reading, rescore=rescorer)
        reading.report.given |= options.given
        reading.progress = stack.enter_context(_progress())
        given = dict(options.analysis)
        if rescorer is not None:
            given["low"] = {**rescorer.low, **given["low"]}
            given["high"] = {**rescorer.high, **given["high"]}
        return analyze(reading, **given)


@contextmanager
def _rewards_kept_apart() -> Generator[None]:
    """Silence warnings from rewards, which the summary counts, and redirect their output to stderr.

    The output of their processes is redirected too, so that stdout gets only findings.
    """
    logger = logging.getLogger("gdpo.rewards")
    with ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        if sys.stdout is not None:  # None: stdout was closed before the program started
            sys.stdout.flush()
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
            stack.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def _progress() -> Generator[Callable[[RolloutTable], None] | None]:
    console = terminal(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("") as status:
        read = 0

        def show(table: RolloutTable) -> None:
            nonlocal read
            read += len(table)
            status.update(f"step {table.steps[0]:,}: {read:,} rollouts")

        yield show


def _print_json(everything: Mapping[str, Any]) -> None:
    # Print ASCII only, so that text from a file cannot send escape sequences to the terminal.
    print(json.dumps(json.loads(to_json({"gdpo": __version__, **everything}))), flush=True)


def _width(console: Console) -> int:
    return max(40, min(console.width, _WIDTH)) if console.is_terminal else _WIDTH


def _nothing(analysis: Analysis) -> str:
    report = analysis.report
    if analysis.problems:
        return "no step could be analyzed: see the notices above"
    if message := without_rewards(report):
        return message + _or_metrics(analysis)
    if report.read:
        return "no reward found in these files: list the reward columns with --rewards"
    endings = ", ".join(ENDINGS)
    if report.files or report.left_out:
        found = (file for path in report.paths if path.is_dir() for file in path.rglob("*"))
        known = {*report.left_out, *(file.path for file in report.files)}
        others = sum(file not in known and file.is_file() for file in found)
        ignored = (
            f". {others:,} other files have none of the extensions {endings}" if others else ""
        )
        return f"no rollout could be read from these files: see the notices above{ignored}"
    return f"no rollout files found: pass a file or folder with {endings} (.gz may follow)"


def _or_metrics(analysis: Analysis) -> str:
    """Return a further command, if each row may be a step whose number is not in the file."""
    files = analysis.report.files
    if not any(file.bare and fields_of(file.numbers) for file in files):
        return ""
    means = analysis.report.command({"--columns": f"format={METRICS}"})
    return f"\nor, if each row contains the means of a step:\n{means}"


def _analyze_logs(logs: Sequence[Log], options: AnalyzeOptions, console: Console) -> int:
    if not logs:
        given = ", ".join(map(str, options.paths[:3]))
        raise DataError(f"{given}: no metrics found, such as rewards/NAME/mean. Check the path")
    if options.for_rollouts:
        raise ConfigError(
            f"{', '.join(options.for_rollouts)} needs rollouts, but {logs[0].path} contains only "
            "metrics: leave the option out, or record rollouts (docs/how-to/analyze.md)"
        )
    runs = logged_runs(logs, options.reading["rewards"])
    if not runs:
        raise DataError(
            f"{logs[0].path} has one row per step, but no metric of a single reward: name the "
            "columns reward_NAME or rewards/NAME/mean, or pass rollout files. If each row is a "
            "rollout, add a column with the group ids or prompts"
        )
    names = [name for run in runs for name in run.rewards]
    weights = options.analysis["weights"] or {}
    refuse_unnamed(weights, names, "weights")
    found = [trends_of(run, weights=weights) for run in runs]
    if options.json:
        _print_json({"logs": [_as_dict(trends) for trends in found]})
    else:
        on = Terminal(_width(console), not console.is_terminal)
        say(console, *printed(log_blocks(found), on))
    return 0


def _as_dict(trends: RunTrends) -> dict[str, Any]:
    run = trends.run
    return {
        "path": str(run.log.path),
        "source": run.log.source,
        "run": run.log.run,
        "problem": run.log.problem,
        "numbered": run.log.numbered,
        "repeated": run.log.repeated,
        "copies": [str(copy.path) for copy in run.copies],
        "std_within_groups": trends.within_groups,
        "steps": run.steps.tolist(),
        "rewards": [
            {
                **asdict(reward),
                "over_time": {k: v.tolist() for k, v in run.rewards[reward.name].items()},
            }
            for reward in trends.rewards
        ],
        "over_time": {name: values.tolist() for name, values in run.batch.items()},
    }
