"""Keys are equal where texts are equal, and nowhere else."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gdpo.rollouts.readers.keys import key_of, keys_of

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
