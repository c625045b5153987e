"""What the rewards of a run did, step by step and over all, from the files it left behind."""

from gdpo.analysis._run import HeldFinding, RewardOverall, RunAnalysis, analyze_runs
from gdpo.analysis._steps import StepAnalysis, analyze_steps

__all__ = [
    "HeldFinding",
    "RewardOverall",
    "RunAnalysis",
    "StepAnalysis",
    "analyze_runs",
    "analyze_steps",
]
