"""verl: every estimator of ours as `algorithm.adv_estimator`, by an entry point that verl loads.

And any reward, task or gate as its reward function: `compute_score`.
"""

from gdpo.integrations.verl.scores import compute_score

__all__ = ["compute_score"]
