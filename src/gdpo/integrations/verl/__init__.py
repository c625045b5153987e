"""Connects gdpo to verl.

verl loads this package by an entry point. Every estimator of gdpo is then a value of
`algorithm.adv_estimator`. `compute_score` is a reward function for verl with gdpo's rewards, tasks
and gates.
"""

from gdpo.integrations.verl.scores import compute_score

__all__ = ["compute_score"]
