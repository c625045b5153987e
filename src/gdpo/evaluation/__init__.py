"""Runs models on benchmarks, saves responses, and computes scores with confidence intervals."""

from gdpo.evaluation.benchmarks import BENCHMARKS
from gdpo.evaluation.evaluation import Settings, evaluate
from gdpo.evaluation.responders import Sampling

__all__ = ["BENCHMARKS", "Sampling", "Settings", "evaluate"]
