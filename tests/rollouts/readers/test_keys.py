"""Keys are equal where texts are equal, and nowhere else."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpo.rollouts.readers.keys import NO_KEY, grouping, key_of, keys_of, restarted

TEXTS = st.sampled_from(["", "a", "b", "ab", "é"])
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": TEXTS, "content": TEXTS | st.none()}), max_size=3
)
TYPE = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def test_a_text_has_the_same_key_in_any_file():
    texts = ["a", "b", "", "a"]
    column = pa.array(texts)
    expected = [key_of(text) for text in texts]
    assert keys_of(column).view(np.int64).tolist() == expected
    assert keys_of(column.dictionary_encode()).view(np.int64).tolist() == expected
    assert keys_of(pa.array(texts, pa.large_string())).view(np.int64).tolist() == expected
    assert len(set(expected)) == 3


def test_whole_numbers_are_their_own_key():
    assert key_of(7) == 7
    assert -(2**63) <= key_of(2**70) < 2**63


@given(st.lists(MESSAGES, min_size=2, max_size=12))
def test_conversations_are_equal_where_every_message_is(conversations):
    """Order, roles and length all count."""
    keys = keys_of(pa.array(conversations, TYPE)).tolist()
    written = [json.dumps(conversation, sort_keys=True) for conversation in conversations]
    for a, text_a in zip(keys, written, strict=True):
        for b, text_b in zip(keys, written, strict=True):
            assert (a == b) == (text_a == text_b)


@given(st.lists(MESSAGES | st.none(), min_size=1, max_size=12), st.integers(0, 11))
def test_a_part_of_a_column_has_the_keys_of_that_part(conversations, first):
    column = pa.array(conversations, TYPE)
    np.testing.assert_array_equal(keys_of(column)[first:], keys_of(column.slice(first)))


def keys(*values):
    return np.array([NO_KEY if value is None else value for value in values])


def groups_of(ids, prompts, steps=None):
    none = np.full(len(ids), NO_KEY)
    steps = np.zeros(len(ids), np.int64) if steps is None else np.array(steps)
    return grouping(steps, keys(*ids), keys(*prompts), none, none)


GROUPS = {
    "prompts agree": ([1, 1, 2, 2], [5, 5, 5, 5], None, "", [0, 0, 2, 2]),
    "half of the ids have several": ([1, 1, 1, 1, 2, 2], [5, 5, 6, 6, 7, 7], None, "", [0] * 4),
    "most ids have several": ([1, 1, 1, 1], [5, 5, 6, 6], None, "split", [0, 0, 2, 2]),
    "every rollout has its own": ([1, 1, 2, 2], [5, 6, 7, 8], None, "", [0, 0, 2, 2]),
    "other steps": ([1, 1, 1, 1], [5, 5, 6, 6], [0, 0, 1, 1], "", [0, 0, 0, 0]),
    "no id": ([1, None, None], [5, 6, 6], None, "", [0, 1, 1]),
    "ids of one row, few shared prompts": ([1, 2, 3, 4], [5, 5, 6, 7], None, "", [0, 1, 2, 3]),
    "ids of one row, shared prompts": ([1, 2, 3, 4], [5, 5, 6, 6], None, "alone", [0, 1, 2, 3]),
    "ids of one row in each step": ([1, 2, 3, 4], [5, 5, 6, 6], range(4), "", [0, 1, 2, 3]),
}


@pytest.mark.parametrize("case", GROUPS)
def test_rows_are_grouped_by_ids_if_the_prompts_agree(case):
    ids, prompts, steps, how, expected = GROUPS[case]
    found = groups_of(ids, prompts, steps)
    assert (found.split, found.alone) == (how == "split", how == "alone")
    first = [found.keys.tolist().index(key) for key in found.keys]
    assert first[: len(expected)] == expected


def test_an_id_that_comes_again_with_another_prompt_has_restarted():
    ids, first, later = keys(1, 1, 2, 2), keys(5, 5, 6, 6), keys(7, 7, 6, 6)
    _, seen = restarted(groups_of(ids, first), ids, first, None)
    again, seen = restarted(groups_of(ids, later), ids, later, seen)
    assert again.keys[0] == again.keys[1] != 1
    assert again.keys[2:].tolist() == [2, 2]
    assert seen[0].tolist() == [1, 2]
