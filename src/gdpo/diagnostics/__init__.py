"""What a reward array says about a batch, and what to do about it."""

from gdpo.diagnostics._diagnose import Bounds, diagnose
from gdpo.diagnostics._findings import Thresholds
from gdpo.diagnostics._groups import dead_groups, group_std, silent_groups
from gdpo.diagnostics._influence import Influence, pooled
from gdpo.diagnostics._watch import LASTING, FindingHistory, HeldFinding, Span, Watch
from gdpo.diagnostics.diagnosis import Diagnosis, Finding, Kind, RewardDiagnosis, Severity

__all__ = [
    "LASTING",
    "Bounds",
    "Diagnosis",
    "Finding",
    "FindingHistory",
    "HeldFinding",
    "Influence",
    "Kind",
    "RewardDiagnosis",
    "Severity",
    "Span",
    "Thresholds",
    "Watch",
    "dead_groups",
    "diagnose",
    "group_std",
    "pooled",
    "silent_groups",
]
