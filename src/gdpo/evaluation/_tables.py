"""Results as tables for a terminal."""

from collections.abc import Sequence
from math import isnan

from rich.table import Column, Table

from gdpo.errors import ConfigError
from gdpo.evaluation._benchmarks import GROUPS
from gdpo.evaluation._bfcl import VERSIONS, bfcl_averages
from gdpo.evaluation._evaluation import Result
from gdpo.evaluation._intervals import Estimate, difference


def results_table(results: Sequence[Result]) -> Table:
    """One line per measure: mean and 95 % interval."""
    name = Column("benchmark", overflow="fold")
    table = Table(name, "problems", "samples", "measure", "mean", "95 % interval")
    for result in results:
        for i, (name, estimate) in enumerate(result.estimates.items()):
            first = (result.benchmark, f"{estimate.problems:,}", str(result.samples))
            table.add_row(*(first if i == 0 else ("", "", "")), name, *_shown(estimate))
        table.add_section()
    return table


def bfcl_lines(results: Sequence[Result]) -> list[str]:
    """BFCL's averages over its categories, where all of them were evaluated.

    One line for each handler and each version of the leaderboard's formulas.
    """
    found = {each.benchmark: (each.estimates["correct"].mean, each.problems) for each in results}
    lines: list[str] = []
    for handler, names in GROUPS.items():
        scores = {n.removeprefix(f"{handler}_"): found[n] for n in names if n in found}
        for version in VERSIONS:
            averages = bfcl_averages(scores, version).items()
            told = ", ".join(f"{name} {score:.3f}" for name, score in averages)
            lines += [f"{handler}, averages of BFCL {version}: {told}"] if told else []
    return lines


def differences_table(ours: Sequence[Result], theirs: Sequence[Result], name: str) -> Table:
    """What differs from another evaluation on the problems that both have, problem by problem.

    Raises:
        ConfigError: They have no problem in common.
    """
    table = Table("benchmark", "problems", "measure", f"difference to {name}", "95 % interval")
    others = {result.benchmark: result for result in theirs}
    for result in ours:
        other = others.get(result.benchmark)
        for measure, values in result.of_problems.items() if other else ():
            assert other is not None
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
            f"{name} holds no problem that was evaluated here: nothing to compare with"
        )
    return table


def _shown(estimate: Estimate, form: str = ".3f") -> tuple[str, str]:
    if isnan(estimate.mean):
        return "does not apply", ""
    if isnan(estimate.low):
        return f"{estimate.mean:{form}}", "none: all problems alike"
    return f"{estimate.mean:{form}}", f"{estimate.low:{form}} to {estimate.high:{form}}"
