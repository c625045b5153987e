"""`gdpo analyze`."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gdpo.errors import ConfigError


def analyze(
    *paths: Path,
    example: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    format: str | None = None,
    rewards: str | None = None,
    columns: Annotated[list[str] | None, Parameter(negative=())] = None,
    group_size: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    weights: str | None = None,
    low: str | None = None,
    high: str | None = None,
    rescore: str | None = None,
    estimators: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    fail_on: str | None = None,
    output: Path | None = None,
    report: Annotated[bool, Parameter(show_default=False)] = True,
    follow: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Say what each reward did in a run of any framework, from the rollouts that it left behind.

    Reads what TRL, verl, NeMo-RL, ms-swift, prime-rl, verifiers, slime, SkyRL, tinker-cookbook, ART
    and open-instruct write, and any parquet, JSONL or CSV; which it is, is recognized and said. The
    page of it is `analysis.html` in this folder, unless this is the run's own.

    Args:
        paths: Files, or folders of one or several runs.
        example: Analyze rollouts that come with gdpo: a small run in which one reward was ignored.
        format: One of the formats, instead of recognizing it.
        rewards: The columns that are rewards, with commas; a dot enters an object.
        columns: MEANING=COLUMN for files of no known format, with commas or repeated; meanings are
            step, group, prompt, completion, advantage, num_tokens, finish_reason and total.
        group_size: Rollouts per prompt, which follow each other, where the files have no groups.
        weights: NAME=WEIGHT with commas; of others and left out: those of the files, else 1.
        low: NAME=VALUE with commas: the lowest value that a reward can have; of others and left
            out: that of the files, which only gdpo's own have.
        high: The highest value, likewise. A reward that no longer varies there is learned.
        rescore: Give the rewards anew, by the texts: a task, a built-in reward, or module:attribute
            of a gdpo.Reward or a list of them.
        estimators: Give every step to these estimators anew, with commas, the first being what the
            others are compared with; without names: to all. `recorded` is what the files have.
        json: Print everything as JSON instead, and write no page without --output.
        fail_on: Exit with 1 if a finding of this severity or worse lasted: warning or note. With
            --follow: as soon as one has held for 5 steps in a row.
        output: The page, HTML. Only a page of this command is replaced.
        report: Write a page.
        follow: Look for more every few seconds, and say it again, until Ctrl-C, or until --fail-on
            ends it.
    """
    if example:
        from gdpo.analysis.example import EXAMPLE

        if paths:
            raise ConfigError(f"--example takes no paths: leave out {paths[0]}, or --example")
        paths = (EXAMPLE,)
    if not paths:
        taken = f" (--estimators has taken {', '.join(estimators)})" if estimators else ""
        raise ConfigError(
            f"name a file or folder with rollouts first: gdpo analyze PATH{taken}; "
            "gdpo analyze --example reads rollouts that come with gdpo"
        )
    told = ", ".join(map(_shown, paths)) if len(paths) <= 3 else f"{len(paths):,} paths"
    # Before anything heavy is imported: what reads for long should have said so.
    print(f"reading {told}", flush=True, file=sys.stderr if json else sys.stdout)

    from gdpo.cli._analyze_options import AnalyzeOptions
    from gdpo.cli._analyzing import follow_runs, run_analysis

    options = AnalyzeOptions.of(
        paths,
        format=format,
        rewards=rewards,
        columns=columns or (),
        group_size=group_size,
        weights=weights,
        low=low,
        high=high,
        rescore=rescore,
        estimators=estimators,
        json=json,
        fail_on=fail_on,
        output=output,
        report=report,
    )
    return follow_runs(options) if follow else run_analysis(options)


def _shown(path: Path) -> str:
    """A name in a folder of somebody else's may hold anything; a terminal is not to obey it."""
    return str(path) if str(path).isprintable() else ascii(str(path))
