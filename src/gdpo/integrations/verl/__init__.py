"""verl: every estimator of ours as `algorithm.adv_estimator`, by an entry point that verl loads.

And any reward, task or gate as its reward function: `compute_score`.
"""

from gdpo.integrations.verl._compute_score import compute_score
from gdpo.integrations.verl._settings import NAME, PREFIX, estimator_names

__all__ = ["NAME", "PREFIX", "compute_score", "estimator_names"]
