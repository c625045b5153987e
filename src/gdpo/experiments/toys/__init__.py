"""Toys: problems of seconds that tell estimators apart, with exact rewards and gradients.

A toy is a small policy and its rewards (`TOYS`); `run_toy` trains it with one estimator, `suite`
with all of them, and what comes out is an `Experiment` like that of trained models. `alignment`
compares an estimator's mean update with the true gradients. The batches are those on which
advantages are known in closed form, without any learning.
"""

from gdpo.experiments.toys._alignment import Alignment, alignment
from gdpo.experiments.toys._batches import (
    correlated_batch,
    correlation_with,
    influence,
    junk_batch,
    live_size,
    thinning_batch,
)
from gdpo.experiments.toys._run import ToyResult, run_toy
from gdpo.experiments.toys._suite import suite, toy_experiment
from gdpo.experiments.toys._table import table
from gdpo.experiments.toys._toy import Choice, Reward, Toy, earned_by
from gdpo.experiments.toys._toys import TOYS

__all__ = [
    "TOYS",
    "Alignment",
    "Choice",
    "Reward",
    "Toy",
    "ToyResult",
    "alignment",
    "correlated_batch",
    "correlation_with",
    "earned_by",
    "influence",
    "junk_batch",
    "live_size",
    "run_toy",
    "suite",
    "table",
    "thinning_batch",
    "toy_experiment",
]
