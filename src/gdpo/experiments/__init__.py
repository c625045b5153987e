"""Experiments: several estimators, many seeds, and what can honestly be said of their difference."""
