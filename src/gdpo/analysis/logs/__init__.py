"""Analyzes the metrics that a training run logged, for runs without rollouts.

Means and standard deviations show which rewards change, vary much or are constant, but not
influence shares or conflicts, unless gdpo logged them.
"""
