"""Connects gdpo to verl.

verl loads this package through an entry point. After that, `algorithm.adv_estimator=gdpo/<name>`
selects an estimator of gdpo, and `+algorithm.gdpo_watch=true` watches an unchanged estimator
of verl. `compute_score` is a reward function for verl that uses gdpo's rewards, tasks and gates.
"""

from gdpo.integrations.verl.scores import compute_score

__all__ = ["compute_score"]
