"""Analyzes the metrics that a training run logged, for runs without rollouts.

Means and standard deviations of batches show which reward changes, whose standard deviation is
large, and which reward is constant. They do not show influence shares or conflicts, unless gdpo
logged these numbers.
"""
