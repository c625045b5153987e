"""Computes numbers and findings that show what each reward does in a batch."""

from gdpo.diagnostics.diagnosis import Diagnosis, Finding, RewardDiagnosis
from gdpo.diagnostics.findings import Thresholds
from gdpo.diagnostics.influence import Influence
from gdpo.diagnostics.step import diagnose, group_std, zero_advantage_groups, zero_variance_groups
from gdpo.diagnostics.turns import RewardAtTurn, TurnDiagnosis, TurnsDiagnosis, diagnose_turns
from gdpo.diagnostics.watch import Watch

__all__ = [
    "Diagnosis",
    "Finding",
    "Influence",
    "RewardAtTurn",
    "RewardDiagnosis",
    "Thresholds",
    "TurnDiagnosis",
    "TurnsDiagnosis",
    "Watch",
    "diagnose",
    "diagnose_turns",
    "group_std",
    "zero_advantage_groups",
    "zero_variance_groups",
]
