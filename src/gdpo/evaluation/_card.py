"""The evaluation in the README of a run, which is its model card."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path

from gdpo._files import write_whole
from gdpo.evaluation._evaluation import Result, Settings
from gdpo.evaluation._tables import unscorable_lines

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
