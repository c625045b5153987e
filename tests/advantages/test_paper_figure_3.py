"""The paper's count of distinct advantage groups comes out of our estimators to the last one."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from gdpo.advantages import grpo
from gdpo.advantages.arrays import prepare
from gdpo.advantages.stages import SAMPLES, standardize, weighted_sum

PAPER = json.loads((Path(__file__).parents[1] / "golden" / "paper_figure_3.json").read_text())


def before_the_batch_step(rewards, weights):
    r, w = prepare(rewards, weights)
    return weighted_sum(standardize(r, over=SAMPLES), w).values


ESTIMATORS = {"grpo": grpo, "gdpo": before_the_batch_step}


def distinct_groups(estimator, samples, rewards):
    """All multisets of reward vectors, a prompt each; equal advantages count once."""
    vectors = list(itertools.product((0.0, 1.0), repeat=rewards))
    groups = np.array(list(itertools.combinations_with_replacement(vectors, samples)))
    advantages = np.sort(ESTIMATORS[estimator](groups, np.ones(rewards)), axis=1)
    return len(np.unique(advantages.round(6) + 0.0, axis=0))


@pytest.mark.parametrize("estimator", ["grpo", "gdpo"])
def test_two_rewards_and_more_and_more_samples(estimator):
    table = PAPER["two_rewards_by_samples"]
    published = dict(zip(table["samples"], table[estimator], strict=False))
    assert {g: distinct_groups(estimator, g, 2) for g in published} == published


@pytest.mark.parametrize("estimator", ["grpo", "gdpo"])
def test_four_samples_and_more_and_more_rewards(estimator):
    table = PAPER["four_samples_by_rewards"]
    # Six rewards make 766,480 groups; examples/paper_figures.py counts them on a shorter list.
    published = dict(zip(table["rewards"][:4], table[estimator], strict=False))
    assert {n: distinct_groups(estimator, 4, n) for n in published} == published
