"""The turns of rollouts are kept, with their rewards, advantages and tokens."""

from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np

from gdpo.rollouts.readers import RolloutTable, Turns
from gdpo.rollouts.readers.table import joined


def table(turns, *, names=("a", "b"), groups=None, file="x"):
    size = len(turns.counts)
    numbers = dict.fromkeys(("total", "advantages", "num_tokens", "cut"), np.zeros(size))
    return RolloutTable(
        run="",
        format="gdpo",
        names=names,
        weights=None,
        files=(Path(file),),
        steps=np.ones(size, np.int64),
        groups=np.zeros(size, np.int64) if groups is None else np.array(groups),
        rewards=np.zeros((size, len(names))),
        trained=np.ones(size, np.bool_),
        file=np.zeros(size, np.int64),
        row=np.arange(size),
        turns=turns,
        **numbers,
    )


def turns(*rollouts, rewards=2):
    """Turns whose rewards count upward from each rollout's first number."""
    counts = np.array([length for length, _ in rollouts])
    longest = int(counts.max(initial=0))
    values = np.full((len(counts), longest, rewards), nan)
    for place, (length, first) in enumerate(rollouts):
        values[place, :length] = first + np.arange(length * rewards).reshape(length, rewards)
    return Turns(counts, values, values[..., 0] / 10, values[..., 0] + 100)


TWO = turns((1, 0), (3, 10), (2, 20))


def test_some_rollouts_are_taken_with_their_turns_and_without_needless_padding():
    taken = table(TWO).take(np.array([2, 0])).turns
    assert taken.counts.tolist() == [2, 1]
    np.testing.assert_array_equal(taken.rewards, [[[20, 21], [22, 23]], [[0, 1], [nan, nan]]])
    np.testing.assert_array_equal(taken.advantages, [[2, 2.2], [0, nan]])
    np.testing.assert_array_equal(taken.num_tokens, [[120, 122], [100, nan]])
    assert replace(table(TWO), turns=None).take(np.array([1])).turns is None


def test_joined_tables_are_padded_to_the_longest_and_match_rewards_by_name():
    other = table(turns((2, 5)), names=("b", "c"), file="y")
    found = joined([other, table(TWO)])
    assert found.names == ("b", "c", "a")
    assert found.turns.counts.tolist() == [2, 1, 3, 2]
    np.testing.assert_array_equal(
        found.turns.rewards[:2],
        [[[5, 6, nan], [7, 8, nan], [nan] * 3], [[1, nan, 0], [nan] * 3, [nan] * 3]],
    )
    np.testing.assert_array_equal(found.turns.advantages[0], [0.5, 0.7, nan])
    np.testing.assert_array_equal(found.turns.num_tokens[2], [110, 112, 114])


def test_rollouts_joined_from_a_table_without_turns_have_an_unknown_number_of_turns():
    without = replace(table(TWO), turns=None)
    found = joined([without, table(TWO)]).turns
    assert found.counts.tolist() == [0, 0, 0, 1, 3, 2]
    assert np.isnan(found.rewards[:3]).all()
    assert joined([without, without]).turns is None


def test_turns_are_grouped_as_the_rewards_are():
    arrays = table(TWO, groups=[7, 3, 7]).grouped_turns()
    assert arrays.turns.tolist() == [[3, 0], [1, 2]]
    np.testing.assert_array_equal(arrays.rewards[0, 0], [[10, 11], [12, 13], [14, 15]])
    np.testing.assert_array_equal(arrays.rewards[1, 1], [[20, 21], [22, 23], [nan, nan]])
    np.testing.assert_array_equal(
        arrays.advantages, [[[1, 1.2, 1.4], [0, 0, 0]], [[0, 0, 0], [2, 2.2, 0]]]
    )
    assert replace(table(TWO), turns=None).grouped_turns() is None


def test_an_unknown_advantage_of_a_turn_stays_unknown_by_group():
    unknown = replace(TWO, advantages=np.full((3, 3), nan))
    arrays = table(unknown).grouped_turns()
    np.testing.assert_array_equal(arrays.advantages[0, 0], [nan, 0, 0])
