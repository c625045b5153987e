"""Combinations of options in which every pair of values occurs: far fewer than all."""

from itertools import combinations, product

import pytest


def every_pair(**options):
    """`pytest.mark.parametrize` over combinations in which any two values meet."""
    return pytest.mark.parametrize(tuple(options), combinations_of(*options.values()))


def combinations_of(*options):
    """Takes, one after the other, the combination with most pairs that have not yet occurred."""
    everything = list(product(*(range(len(values)) for values in options)))
    missing = set().union(*map(pairs_in, everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda combination: len(missing & pairs_in(combination)))
        missing -= pairs_in(best)
        chosen.append(tuple(values[i] for values, i in zip(options, best, strict=True)))
    return chosen


def pairs_in(combination):
    return set(combinations(enumerate(combination), 2))
