"""Tests the parsing of verl's row names."""

from gdpo.integrations.verl._carried import last_outputs


def test_the_last_output_is_the_one_with_the_highest_number():
    assert last_outputs(["a_0_9", "a_0_10", "b_1_0", "a_0_2"]) == [1, 1, 2, 1]
