"""Formats results as tables for a terminal and a README."""

from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean

from rich.table import Column, Table

from gdpo._files import write_whole
from gdpo.errors import ConfigError
from gdpo.lab.evaluation._bfcl import VERSIONS, bfcl_averages
from gdpo.lab.evaluation._intervals import Estimate, difference
from gdpo.lab.evaluation.benchmarks import GROUPS
from gdpo.lab.evaluation.evaluation import EvaluationSettings, Result
from gdpo.report.text import as_number

_SHOWN = 20
"""Maximum number of problem numbers to list in a sentence."""


def results_table(results: Sequence[Result]) -> Table:
    """Return a table with each measure's mean and 95 % interval.

    The row of a measure that applies to only some problems states their number.
    """
    name = Column("benchmark", overflow="fold")
    table = Table(name, "problems", "samples", "measure", "mean", "95 % interval")
    for result in results:
        for i, (name, estimate) in enumerate(result.estimates.items()):
            benchmark, samples = (result.benchmark, str(result.samples)) if i == 0 else ("", "")
            count = f"{result.problems:,}" if i == 0 else ""
            if estimate.problems != result.problems:
                count = f"{estimate.problems:,} of {result.problems:,}"
            table.add_row(benchmark, count, samples, name, *_shown(estimate))
        table.add_section()
    return table


def unscorable_lines(results: Sequence[Result]) -> list[str]:
    """Return a sentence for each measure with problems that no response can pass."""
    lines: list[str] = []
    for result in results:
        for measure, numbers in result.unscorable.items():
            values, out = enumerate(result.of_problems[measure], 1), set(numbers)
            others = [value for number, value in values if number not in out]
            lines.append(
                f"{result.benchmark}: {len(numbers):,} of {result.problems:,} problems have no "
                f"readable reference answer, so no response can be scored as {measure}. "
                f"They count as wrong ({_numbers(numbers)}). The mean of the other problems is "
                f"{fmean(others) if others else nan:.3f}"
            )
    return lines


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(f"{number:,}" for number in numbers[:_SHOWN])
    more = len(numbers) - _SHOWN
    name = "problem" if len(numbers) == 1 else "problems"
    return f"{name} {shown}" + (f" and {more:,} more" if more > 0 else "")


def bfcl_lines(results: Sequence[Result]) -> list[str]:
    """Return the `bfcl_averages`, one line for each handler and version."""
    found = {each.benchmark: (each.estimates["correct"].mean, each.problems) for each in results}
    lines: list[str] = []
    for handler, names in GROUPS.items():
        scores = {n.removeprefix(f"{handler}_"): found[n] for n in names if n in found}
        for version in VERSIONS:
            averages = bfcl_averages(scores, version).items()
            shown = ", ".join(f"{name} {score:.3f}" for name, score in averages)
            lines += [f"{handler}, averages of BFCL {version}: {shown}"] if shown else []
    return lines


def differences_table(ours: Sequence[Result], theirs: Sequence[Result], name: str) -> Table:
    """Return a table of differences from another evaluation, paired by problem."""
    table = Table("benchmark", "problems", "measure", f"difference from {name}", "95 % interval")
    others = {result.benchmark: result for result in theirs}
    for result in ours:
        if (other := others.get(result.benchmark)) is None:
            continue
        for measure, values in result.of_problems.items():
            against = dict(zip(other.identities, other.of_problems.get(measure, []), strict=False))
            mine = zip(result.identities, values, strict=True)
            common = [(value, against[who]) for who, value in mine if who in against]
            estimate = difference([a for a, _ in common], [b for _, b in common])
            table.add_row(
                result.benchmark, f"{estimate.problems:,}", measure, *_shown(estimate, "+.3f")
            )
        table.add_section()
    if not any(
        set(r.identities) & set(others[r.benchmark].identities)
        for r in ours
        if r.benchmark in others
    ):
        raise ConfigError(
            f"--baseline {name} has no problem in common with this evaluation: evaluate both "
            "models on the same benchmark and rows"
        )
    return table


def _shown(estimate: Estimate, form: str = ".3f") -> tuple[str, str]:
    if isnan(estimate.mean):
        return "does not apply", ""
    if isnan(estimate.low):
        return f"{estimate.mean:{form}}", "none (all equal)"
    return f"{estimate.mean:{form}}", f"{estimate.low:{form}} to {estimate.high:{form}}"


HEADING = "## Evaluation"


def add_to_readme(readme: Path, results: Sequence[Result], settings: EvaluationSettings) -> None:
    """Append the results to a README, replacing earlier results."""
    before, *_ = readme.read_text("utf-8").partition(f"\n{HEADING}\n")
    write_whole(readme, f"{before.rstrip()}\n\n{HEADING}\n\n{_section(results, settings)}")


def _section(results: Sequence[Result], settings: EvaluationSettings) -> str:
    drawn = settings.sampling
    rows = "\n".join(
        f"| {result.benchmark} | {estimate.problems:,} | {name} "
        f"| {as_number(estimate.mean, '.3f')} "
        f"| {as_number(estimate.low, '.3f')} to {as_number(estimate.high, '.3f')} |"
        for result in results
        for name, estimate in result.estimates.items()
    )
    notes = "".join(f"\n{line}.\n" for line in unscorable_lines(results))
    samples = "1 response" if drawn.samples == 1 else f"{drawn.samples:,} responses"
    return f"""Settings: {samples} per problem, temperature {drawn.temperature:g}, \
top-p {drawn.top_p:g}, at most {drawn.max_tokens:,} tokens, seed {drawn.seed}, engine \
{settings.engine}.
A response with more than {settings.token_limit:,} tokens counts as too long. The confidence \
intervals are over problems.

| benchmark | problems | measure | mean | 95 % confidence interval |
|---|---|---|---|---|
{rows}
{notes}"""
