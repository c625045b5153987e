"""Findings about two rewards: they ask for opposite things, or for the same."""

from collections.abc import Iterator
from itertools import combinations
from math import sqrt

from gdpo.diagnostics._diagnosis import Diagnosis
from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._thresholds import Thresholds


def pair_findings(diagnosis: Diagnosis, thresholds: Thresholds) -> Iterator[Finding]:
    """Those about each pair of rewards."""
    for k, m in combinations(range(len(diagnosis.rewards)), 2):
        names = diagnosis.rewards[k].name, diagnosis.rewards[m].name
        asked, degrees = asked_correlation(diagnosis, k, m), diagnosis.degrees[k][m]
        if abs(asked) * sqrt(degrees) < thresholds.standard_errors:
            continue
        evidence = {"correlation": diagnosis.correlation[k][m], "degrees": degrees}
        if asked <= -thresholds.opposed:
            yield _opposed(*names, evidence)
        elif asked >= thresholds.redundant:
            yield _redundant(*names, evidence)


def asked_correlation(diagnosis: Diagnosis, k: int, m: int) -> float:
    """Correlation of what two rewards ask for; 0 where it is not known, or one has no weight.

    With weights of opposite sign, rewards that rise together are opposed.
    """
    weights = diagnosis.rewards[k].weight, diagnosis.rewards[m].weight
    if diagnosis.degrees[k][m] == 0 or 0 in weights:
        return 0.0
    correlation = diagnosis.correlation[k][m]
    return correlation if (weights[0] > 0) == (weights[1] > 0) else -correlation


def _opposed(a: str, b: str, evidence: dict[str, float]) -> Finding:
    return Finding(
        Kind.OPPOSED,
        Severity.WARNING,
        (a, b),
        f"`{a}` and `{b}` ask for opposite things: their correlation in a group is "
        f"{evidence['correlation']:.2f}",
        "decide by the weights which matters more, or gate one on the other, so that it counts "
        "only where the other is reached",
        evidence,
    )


def _redundant(a: str, b: str, evidence: dict[str, float]) -> Finding:
    return Finding(
        Kind.REDUNDANT,
        Severity.WARNING,
        (a, b),
        f"`{a}` and `{b}` say the same: their correlation in a group is "
        f"{evidence['correlation']:.2f}, and it counts twice",
        "drop one, halve both weights, or use gdpo_decorrelated",
        evidence,
    )
