"""verl: every estimator of ours as `algorithm.adv_estimator`, by an entry point that verl loads.

And any reward, task or gate as its reward function: `compute_score`.
"""

from gdpo.integrations._rows import NAME, PREFIX, estimator_names
from gdpo.integrations.verl._compute_score import PATH, SCORE, TOKENS_MANAGER, compute_score
from gdpo.integrations.verl._settings import KNOWN

__all__ = [
    "KNOWN",
    "NAME",
    "PATH",
    "PREFIX",
    "SCORE",
    "TOKENS_MANAGER",
    "compute_score",
    "estimator_names",
]
