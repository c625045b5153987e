"""Toys: small problems with exact gradients that show how estimators differ, within seconds.

A toy is a small policy with its rewards, and `TOYS` contains all toys. `run_toy` trains a toy with
one estimator and returns the reward curves. `suite` trains several toys with several estimators and
returns `Experiment`s, as for trained models. `alignment` compares the mean update of an estimator
with the exact gradients.
"""

from gdpo.experiments.toys._run import alignment, run_toy
from gdpo.experiments.toys._suite import suite, table
from gdpo.experiments.toys._toys import TOYS

__all__ = ["TOYS", "alignment", "run_toy", "suite", "table"]
