"""All findings of a diagnosis, worst first."""

from collections.abc import Callable, Iterable, Iterator

from gdpo.diagnostics._batch_findings import batch_findings
from gdpo.diagnostics._diagnosis import Diagnosis
from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._influence import Influence
from gdpo.diagnostics._influence_findings import influence_findings
from gdpo.diagnostics._pair_findings import pair_findings
from gdpo.diagnostics._reward_findings import reward_findings
from gdpo.diagnostics._thresholds import Thresholds

_OF_BATCH: tuple[Callable[[Diagnosis, Thresholds], Iterator[Finding]], ...] = (
    reward_findings,
    pair_findings,
    batch_findings,
)
_SEVERITIES, _KINDS = list(Severity), list(Kind)


def findings_of(
    diagnosis: Diagnosis, thresholds: Thresholds, *, over: Influence | None = None
) -> tuple[Finding, ...]:
    """Return what the numbers of a diagnosis say, by severity and then by kind.

    Opposed pairs explain a conflict, which is not given beside them. Rewards of weight 0 are only
    watched and give no findings.

    Args:
        diagnosis: Of one batch.
        thresholds: From where on a number is worth a finding.
        over: Sums over the last steps, from which it is told who is ignored; left out: those of
            the batch.
    """
    found = [finding for source in _OF_BATCH for finding in source(diagnosis, thresholds)]
    if any(finding.kind is Kind.OPPOSED for finding in found):
        found = [finding for finding in found if finding.kind is not Kind.CONFLICT]
    found += influence_findings(diagnosis.influence if over is None else over, thresholds)
    return in_order(found)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with the worst first."""
    return tuple(sorted(findings, key=_rank))


def _rank(finding: Finding) -> tuple[int, int]:
    return _SEVERITIES.index(finding.severity), _KINDS.index(finding.kind)
