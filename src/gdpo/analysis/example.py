"""Provides rollouts from a small training run, for `gdpo analyze --example`."""

from pathlib import Path

EXAMPLE = Path(__file__).with_name("example.parquet")
"""Rollouts from a GRPO run: 30 steps of 16 prompts x 8 samples, with two equally weighted rewards.

`correctness` is between -3 and 3. `brevity` is between 0 and 1, and varies so little that GRPO
ignores it. To regenerate this file, run `python -m benchmarks.example_rollouts`.
"""
