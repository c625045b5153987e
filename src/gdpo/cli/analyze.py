"""`gdpo analyze`."""

import atexit
import sys
from contextlib import ExitStack
from importlib.resources import as_file
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gdpo.errors import ConfigError


def analyze(
    *paths: Path,
    example: bool = False,
    rewards: str | None = None,
    columns: list[str] | None = None,
    weights: str | None = None,
    sizes_are_weights: bool = False,
    range: str | None = None,
    rescore: str | None = None,
    estimators: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    primary: str | None = None,
    fail_on: str | None = None,
    output: str | None = None,
    follow: bool = False,
) -> int:
    """Show how much each reward influenced a training run, from the run's rollout files.

    Reads rollout files from TRL, verl, NeMo-RL, ms-swift, prime-rl, verifiers, slime, SkyRL,
    tinker-cookbook, ART and open-instruct, and any parquet, Arrow, JSON, JSONL, CSV or TSV file
    with one row per rollout. Detects and prints the format, prints a summary, and writes an HTML
    page.

    If a run left no rollouts, pass its metrics: trainer_state.json, metrics.jsonl, an export from
    W&B, trackio's files, the console output of a trainer, or, with their packages, TensorBoard's
    event files or a local W&B run. They show less, and the summary states what they cannot show.

    Args:
        paths: Rollout files or metrics, or folders of one or more runs.
        example: Analyze an example run, included in gdpo, in which one reward was ignored.
        rewards: Comma-separated names of the reward columns. Use a dot for a nested field, as in
            scores.style. Default: the reward columns of the detected format, or columns inferred
            from their names and values.
        columns: Comma-separated MEANING=COLUMN pairs for files in an unrecognized format. MEANING
            is step, group, prompt, completion, advantage, num_tokens, finish_reason, total,
            rollout or turn. Default: inferred from the column names. Two further pairs tell how to
            read files of all formats. group_size=NUMBER is the number of rollouts per prompt, for
            files without group ids that list the rollouts of a prompt consecutively. format=NAME is
            the format, or metrics for rows with the metrics of a step.
        weights: Comma-separated NAME=WEIGHT pairs: how much each reward should count. Default: the
            weights in the files, or 1.
        sizes_are_weights: The sizes of the rewards say how much each should count, and not the
            weights, which are equal.
        range: Lowest and highest possible value of each reward, as comma-separated NAME=LOW:HIGH
            pairs. One of the two may be left out. A reward that is constant at its highest value
            counts as learned. Default: the range stored in the files. Only files written by gdpo
            store the range.
        rescore: Recompute the rewards from the recorded texts. Accepts a task, a built-in reward,
            or module:attribute, where the attribute is a gdpo.Reward or a list of gdpo.Reward.
        estimators: Recompute the advantages of every step with these comma-separated estimators.
            The first estimator is the baseline. `recorded` means the advantages in the files.
            Without names, all estimators are used.
        primary: Name of the reward that should always win. Prints the weights with which it would
            always win, and the number of groups in which it did not.
        fail_on: Exit with code 1 if a finding of this severity (note or warning) or worse is true
            for the whole run, or lasted for 5 steps in a row. With --follow, the run is checked
            often, so a finding must last 5 steps in a row, or occur in 64 groups and be measured
            on the next 64. What the given meaning of the weights explains does not count.
        output: Path of the HTML page, or none for no page, or json to print the analysis as JSON
            instead of the summary, without a page. An existing file is overwritten only if gdpo
            analyze wrote it. Default: analysis.html in the current directory, or no page if the
            current directory is inside a given folder.
        follow: Repeat the analysis whenever a file is added or grows. Stops on Ctrl-C, or as soon
            as a finding meets --fail-on.
    """
    if example:
        from gdpo.analysis import EXAMPLE

        if paths:
            raise ConfigError(f"--example takes no paths: remove {paths[0]} or --example")
        opened = ExitStack()
        paths = (opened.enter_context(as_file(EXAMPLE)),)  # a copy, if gdpo is a zip file
        atexit.register(opened.close)
    if not paths:
        taken = f" (--estimators took {', '.join(estimators)} as names)" if estimators else ""
        raise ConfigError(
            f"PATH is missing: pass a file or folder with rollouts before the options, as in gdpo "
            f"analyze PATH{taken}, or run gdpo analyze --example"
        )
    # Control characters are escaped to protect the terminal.
    shown = (text if text.isprintable() else ascii(text) for text in map(str, paths))
    names = ", ".join(shown) if len(paths) <= 3 else f"{len(paths):,} paths"
    # Printed before the heavy imports, because reading may take long.
    print(f"reading {names}", flush=True, file=sys.stderr if output == "json" else sys.stdout)

    from gdpo.cli._analyze_options import checked
    from gdpo.cli._analyzing import follow_runs, run_analysis

    given = {
        "--rewards": rewards,
        "--columns": None if columns is None else ",".join(columns),
        "--weights": weights,
        "--range": range,
        "--rescore": rescore,
        "--estimators": None if estimators is None else ",".join(estimators),
        "--primary": primary,
        "--fail-on": fail_on,
        "--output": output,
    }
    if sizes_are_weights:
        given["--sizes-are-weights"] = ""
    options = checked(paths, {name: text for name, text in given.items() if text is not None})
    return follow_runs(options) if follow else run_analysis(options)
