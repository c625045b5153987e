"""All findings of a diagnosis, worst first."""

from collections.abc import Callable, Iterator

from gdpo.diagnostics._batch_findings import batch_findings
from gdpo.diagnostics._diagnosis import Diagnosis
from gdpo.diagnostics._finding import Finding, Kind, Severity
from gdpo.diagnostics._influence_findings import influence_findings
from gdpo.diagnostics._pair_findings import pair_findings
from gdpo.diagnostics._reward_findings import reward_findings
from gdpo.diagnostics._thresholds import Thresholds

_SOURCES: tuple[Callable[[Diagnosis, Thresholds], Iterator[Finding]], ...] = (
    reward_findings,
    influence_findings,
    pair_findings,
    batch_findings,
)
_SEVERITIES, _KINDS = list(Severity), list(Kind)


def findings_of(diagnosis: Diagnosis, thresholds: Thresholds) -> tuple[Finding, ...]:
    """What the numbers of a diagnosis say, by severity and then by kind.

    Where one finding explains another, only the first is given: opposed pairs explain a conflict,
    and a reward that dominates explains those that it drowns. Rewards of weight 0 are only watched
    and give no findings.
    """
    found = [finding for source in _SOURCES for finding in source(diagnosis, thresholds)]
    kinds = {finding.kind for finding in found}
    if Kind.OPPOSED in kinds:
        found = [finding for finding in found if finding.kind is not Kind.CONFLICT]
    return tuple(sorted(found, key=_rank))


def _rank(finding: Finding) -> tuple[int, int]:
    return _SEVERITIES.index(finding.severity), _KINDS.index(finding.kind)
