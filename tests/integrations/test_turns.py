"""Tests how turns are found in masks and mapped to tokens, against loops."""

from itertools import groupby

import numpy as np
import pytest
import torch
from tests.refusals import data_error

from gdpo.integrations._turns import (
    check_count,
    on_tokens,
    spans_of,
    summed,
    tokens_of_turns,
    turn_of_tokens,
)

RNG = np.random.default_rng(0)
MASKS = [RNG.integers(0, 2, (6, 11)), np.zeros((2, 3), int), np.ones((2, 3), int)]
MASKS += [np.zeros((2, 0), int), RNG.integers(0, 2, (1, 1))]


def runs(row):
    """Return the places of the tokens of each turn of a row."""
    places = enumerate(row.tolist())
    return [[i for i, _ in run] for one, run in groupby(places, key=lambda p: p[1]) if one]


@pytest.mark.parametrize("mask", MASKS)
def test_a_turn_is_a_run_of_ones_in_the_mask(mask):
    turns, lengths = turn_of_tokens(mask), tokens_of_turns(mask)
    for row, own in enumerate(map(runs, mask)):
        assert list(map(list, spans_of(mask[row].tolist()))) == own
        for turn, places in enumerate(own):
            assert turns[row, places].tolist() == [turn] * len(places)
        counts = [len(places) for places in own]
        assert lengths[row].tolist() == counts + [0] * (lengths.shape[1] - len(counts))


@pytest.mark.parametrize("array", [np.asarray, torch.tensor])
def test_tokens_get_the_advantage_of_their_turn_and_others_0(array):
    mask = MASKS[0]
    advantages = RNG.random((len(mask), 6))
    wanted = np.zeros(mask.shape)
    for row, own in enumerate(map(runs, mask)):
        for turn, places in enumerate(own):
            wanted[row, places] = advantages[row, turn]
    found = on_tokens(array(advantages), array(mask))
    assert type(found) is type(array(mask))
    np.testing.assert_array_equal(np.asarray(found), wanted)


def test_the_total_of_a_reward_is_missing_if_one_of_its_turns_is():
    column = [[1, 2.5], 4.0, None, [None, 1.0], [float("nan")], [], (1, 1), np.array([1.0, 2.0])]
    assert summed(column) == [3.5, 4.0, None, None, None, 0.0, 2, 3.0]


def test_a_column_without_turns_stays_as_it_is():
    column = np.array([1.0, 2.0])
    assert summed(column) is column


def test_infinite_rewards_stay_infinite_and_what_is_no_number_stays_visible():
    assert summed([[float("inf"), float("-inf")], [1.0, "x"]]) == [float("inf"), "x"]
    assert summed([[10**400, 1.0]]) == [float("inf")]


def test_another_number_of_rewards_than_turns_is_an_error_that_names_both():
    check_count("steps", [1, 2], 2, rollout="row 3")
    check_count("steps", 1.0, 2, rollout="row 3")
    with data_error(r"'steps' has 3 numbers for row 3.* 2 turns"):
        check_count("steps", [1, 2, 3], 2, rollout="row 3")
