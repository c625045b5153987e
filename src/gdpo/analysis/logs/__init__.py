"""Analyzes the metrics that a training run logged, for runs without rollouts.

Means and standard deviations of batches show which rewards change, have a large standard deviation,
or are constant. They do not show influence shares or conflicts, unless gdpo
logged these numbers.
"""
