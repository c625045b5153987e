"""Experiments: several arms, many seeds, and what can honestly be said of their difference."""

from gdpo.experiments._permutation import holm, permutation_test
from gdpo.experiments._robust import bootstrap, interquartile_mean
from gdpo.experiments._survival import kaplan_meier

__all__ = ["bootstrap", "holm", "interquartile_mean", "kaplan_meier", "permutation_test"]
