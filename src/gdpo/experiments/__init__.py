"""Experiments: several arms, many seeds, and what can honestly be said of their difference."""
