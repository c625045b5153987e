"""Evaluation: benchmarks, responses that are kept, and scores with intervals."""

from gdpo.evaluation.benchmarks import BENCHMARKS
from gdpo.evaluation.evaluation import evaluate

__all__ = ["BENCHMARKS", "evaluate"]
