"""What the rewards of a run did, step by step and over all, from the files it left behind."""

from gdpo.analysis._analysis import Analysis, analyze
from gdpo.analysis._as_dict import as_dict
from gdpo.analysis._lengths import LengthBins
from gdpo.analysis._replay import (
    RECORDED,
    Replay,
    Replayed,
    Tally,
    call_rule,
    disagreement,
    make_rule,
)
from gdpo.analysis._rescore import Rescorer
from gdpo.analysis._run import (
    RewardOverall,
    RunAnalysis,
    analyze_runs,
)
from gdpo.analysis._sample import SampledGroup
from gdpo.analysis._steps import StepAnalysis, analyze_steps

__all__ = [
    "RECORDED",
    "Analysis",
    "LengthBins",
    "Replay",
    "Replayed",
    "Rescorer",
    "RewardOverall",
    "RunAnalysis",
    "SampledGroup",
    "StepAnalysis",
    "Tally",
    "analyze",
    "analyze_runs",
    "analyze_steps",
    "as_dict",
    "call_rule",
    "disagreement",
    "make_rule",
]
