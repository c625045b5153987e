"""Runs models on benchmarks, saves responses, and computes scores with confidence intervals."""

from gdpo._left import absent
from gdpo.lab.evaluation.benchmarks import BENCHMARKS
from gdpo.lab.evaluation.evaluation import EvaluationSettings, evaluate
from gdpo.lab.evaluation.responders import Sampling

__all__ = ["BENCHMARKS", "EvaluationSettings", "Sampling", "evaluate"]


def __getattr__(name: str) -> None:
    raise absent(__name__, name)
