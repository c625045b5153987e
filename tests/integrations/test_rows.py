"""Tests the conversion of a framework's rows to groups, and of advantages back to rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.examples.adapters import stand_ins
from tests.refusals import data_error

from gdpo import ConfigError, DataError
from gdpo.integrations.rows import advantages_of, as_groups, by_name, make_settings, reward_columns

SIZES = [3, 1, 4, 2]
UIDS = [f"prompt-{p}" for p, size in enumerate(SIZES) for _ in range(size)]
NAMES = ["correct", "format", "length"]


def settings(**options):
    return make_settings("gdpo", NAMES, [1, 2, 0.5], options)


def scored():
    return np.random.default_rng(0).random((len(UIDS), len(NAMES)))


def by_formula(rewards, **options):
    return stand_ins.by_formula(rewards, SIZES, [1, 2, 0.5], **options)


def per_row(rewards, uids, counts=None, asked=None, **places):
    counts = np.ones(len(rewards), dtype=int) if counts is None else counts
    groups = as_groups(rewards, uids, counts, **places)
    return groups.per_row(advantages_of(groups, asked or settings()))


def test_rows_of_ragged_groups_get_the_advantages_of_the_formula():
    assert_allclose(per_row(scored(), UIDS), by_formula(scored()), rtol=0, atol=1e-12)


def test_the_order_of_rows_changes_no_advantage():
    order = np.random.default_rng(1).permutation(len(UIDS))
    shuffled = per_row(scored()[order], [UIDS[i] for i in order])
    assert_allclose(shuffled, by_formula(scored())[order], rtol=0, atol=1e-12)


def test_a_group_of_one_gets_exactly_0():
    assert per_row(scored(), UIDS)[UIDS.index("prompt-1")] == 0


def test_a_missing_reward_is_left_out_and_spreads_nowhere():
    rewards = scored()
    rewards[4, 1] = np.nan
    rewards[5] = np.nan
    advantages = per_row(rewards, UIDS)
    assert_allclose(advantages, by_formula(rewards), rtol=0, atol=1e-12)
    assert advantages[5] == 0


def test_rewards_without_spread_give_exactly_0():
    assert not per_row(np.full((len(UIDS), 3), 0.1), UIDS).any()


def test_rows_that_fill_a_batch_up_count_nowhere():
    rewards = np.concatenate([scored(), np.full((4, 3), 100.0)])
    padding = np.arange(len(rewards)) >= len(UIDS)
    advantages = per_row(rewards, [*UIDS, *["pad"] * 4], padding=padding)
    assert_allclose(advantages[: len(UIDS)], by_formula(scored()), rtol=0, atol=1e-12)
    assert not advantages[len(UIDS) :].any()


def test_a_rollout_of_several_outputs_counts_once_and_each_output_gets_its_advantage():
    again = [0, 0, 5]
    last = np.array([*range(len(UIDS)), *again])
    last[last == 0] = len(UIDS) + 1
    rewards = np.concatenate([scored(), scored()[again]])
    advantages = per_row(rewards, [*UIDS, *(UIDS[i] for i in again)], outputs=last)
    wanted = by_formula(scored())
    assert_allclose(advantages, wanted[[*range(len(UIDS)), *again]], atol=1e-12)


def test_the_batch_step_weights_by_tokens_where_asked_to():
    counts = np.random.default_rng(2).integers(1, 30, len(UIDS))
    by_tokens = settings(token_counts=True)
    advantages = per_row(scored(), UIDS, counts, by_tokens)
    wanted = by_formula(scored(), token_counts=stand_ins.grid(counts, SIZES, fill=0))
    assert_allclose(advantages, wanted, atol=1e-12)
    assert np.abs(advantages - by_formula(scored())).max() > 0.01


def test_none_becomes_nan_and_the_order_is_that_of_the_names():
    columns = {
        "format": np.array([1, None], dtype=object),
        "correct": [True, 0.5],
        "uid": ["a", "b"],
    }
    rewards = reward_columns(columns, ["correct", "format"])
    assert_array_equal(rewards, [[1.0, 1.0], [0.5, np.nan]])


def test_rows_become_columns_with_none_where_a_row_lacks_one():
    assert by_name([{"a": 1}, {"b": 2, "a": 3}]) == {"a": [1, 3], "b": [None, 2]}


@pytest.mark.parametrize(
    ("columns", "name", "error", "named"),
    [
        ({"correct": [1.0], "uid": ["a"]}, "corect", ConfigError, r"'corect'.*Allowed: correct\. "),
        ({"correct": [0.0, "1.0"]}, "correct", DataError, r"'correct' .*'1\.0'.* ?\(?str"),
    ],
)
def test_what_is_no_reward_is_an_error_that_names_it(columns, name, error, named):
    columns = {key: np.array(column, dtype=object) for key, column in columns.items()}
    with pytest.raises(error, match=named):
        reward_columns(columns, [name])


def test_an_infinite_reward_is_an_error_that_names_it():
    rewards = scored()
    rewards[2, 1] = np.inf
    with data_error("'format' is inf"):
        per_row(rewards, UIDS)


def test_a_batch_of_padding_alone_gets_0():
    rewards = np.ones((3, 2))
    groups = as_groups(rewards, ["pad"] * 3, np.zeros(3, int), padding=np.ones(3, bool))
    assert_array_equal(groups.per_row(np.zeros(groups.arrays.rewards.shape[:2])), np.zeros(3))
