"""Runs `gdpo analyze` on logged metrics, for runs without rollouts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from gdpo import __version__
from gdpo._files import to_json
from gdpo.analysis.logs.rewards import logged_runs
from gdpo.analysis.logs.rows import Log
from gdpo.analysis.logs.trends import RunTrends, trends_of
from gdpo.analysis.steps import check_weights
from gdpo.cli._analyze_options import AnalyzeOptions
from gdpo.errors import ConfigError, DataError
from gdpo.report.logs_summary import logs_summary


def analyze_logs(logs: Sequence[Log], options: AnalyzeOptions, console: Console, width: int) -> int:
    """Print what logged metrics tell, and return the exit code.

    Raises:
        ConfigError: If an option needs rollouts, or names an unknown reward.
        DataError: If the logs contain no reward.
    """
    if not logs:
        given = ", ".join(map(str, options.paths[:3]))
        raise DataError(f"{given}: no metrics found, such as rewards/NAME/mean. Check the path")
    if options.for_rollouts:
        raise ConfigError(
            f"{', '.join(options.for_rollouts)} needs rollouts, but {logs[0].path} contains only "
            "metrics: leave it out, or record rollouts (docs/how-to/analyze.md)"
        )
    runs = logged_runs(logs, options.reading["rewards"])
    if not runs:
        raise DataError(
            f"{logs[0].path} contains metrics, but none of a single reward, such as "
            "rewards/NAME/mean: pass rollout files, or the log of a training with several rewards"
        )
    names = [name for run in runs for name in run.rewards]
    check_weights(options.weights, names)
    check_weights(options.low, names, what="low values")
    check_weights(options.high, names, what="high values")
    found = [
        trends_of(run, weights=options.weights or {}, low=options.low, high=options.high)
        for run in runs
    ]
    if options.json:
        everything = {"gdpo": __version__, "logs": [_as_dict(trends) for trends in found]}
        # Print ASCII only, so that text from a file cannot send escape sequences to the terminal.
        print(json.dumps(json.loads(to_json(everything))), flush=True)
    else:
        for line in logs_summary(found, width=width, whole=not console.is_terminal):
            console.print(line, soft_wrap=True)
    return 0


def _as_dict(trends: RunTrends) -> dict[str, Any]:
    run = trends.run
    return {
        "path": str(run.log.path),
        "source": run.log.source,
        "run": run.log.run,
        "problem": run.log.problem,
        "numbered": run.log.numbered,
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
        "findings": [
            {**asdict(finding), "evidence": dict(finding.evidence)} for finding in trends.findings
        ],
    }
