"""Measures the influence of each reward on a run, per step and overall, from its rollout files."""

from importlib.resources import files

from gdpo._left import absent
from gdpo.analysis._analysis import Analysis, analyze, as_dict
from gdpo.analysis.rescore import Rescorer
from gdpo.analysis.steps import analyze_steps

EXAMPLE = files(__name__) / "example.parquet"
"""Rollouts from a GRPO run: 30 steps of 16 prompts x 8 samples, with two equally weighted rewards.

`correctness` is between -3 and 3. `brevity` is between 0 and 1, and varies so little that GRPO
ignores it. To regenerate this file, run `python -m benchmarks.example_rollouts`.
"""

__all__ = ["EXAMPLE", "Analysis", "Rescorer", "analyze", "analyze_steps", "as_dict"]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
