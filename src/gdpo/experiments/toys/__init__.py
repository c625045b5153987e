"""Toys: small problems on which estimators differ within seconds, with exact gradients.

A toy is a small policy with its rewards (`TOYS`). `run_toy` trains it with one estimator, and
`suite` with several; the results are `Experiment`s like those of trained models. `alignment`
compares the mean update of an estimator with the exact gradients.
"""

from gdpo.experiments.toys._run import alignment, run_toy
from gdpo.experiments.toys._suite import suite, table
from gdpo.experiments.toys._toys import TOYS

__all__ = ["TOYS", "alignment", "run_toy", "suite", "table"]
