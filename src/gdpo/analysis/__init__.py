"""Measures the influence of each reward on a run, per step and overall, from its rollout files."""

from gdpo.analysis._analysis import Analysis, analyze
from gdpo.analysis._as_dict import as_dict
from gdpo.analysis.rescore import Rescorer
from gdpo.analysis.run import analyze_runs
from gdpo.analysis.steps import analyze_steps

__all__ = [
    "Analysis",
    "Rescorer",
    "analyze",
    "analyze_runs",
    "analyze_steps",
    "as_dict",
]
