"""Toys: problems of seconds that tell estimators apart, with exact rewards and gradients.

A toy is a small policy and its rewards (`TOYS`); `run_toy` trains it with one estimator, `suite`
with all of them, and what comes out is an `Experiment` like that of trained models. `alignment`
compares an estimator's mean update with the true gradients. The batches are those on which
advantages are known in closed form, without any learning.
"""

from gdpo.experiments.toys._run import alignment, run_toy
from gdpo.experiments.toys._suite import suite, table
from gdpo.experiments.toys._toys import TOYS

__all__ = ["TOYS", "alignment", "run_toy", "suite", "table"]
