"""Rollouts of a small training run that come with the package, for `gdpo analyze --example`."""

from pathlib import Path

EXAMPLE = Path(__file__).with_name("example.parquet")
"""Rollouts of a run with GRPO: 30 steps of 16 prompts x 8 samples, two rewards of equal weight.

`correctness` lies between -3 and 3; `brevity` lies between 0 and 1 and hardly varies, so that GRPO
ignores it. `python -m benchmarks.example_rollouts` makes this file.
"""
