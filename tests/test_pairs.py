"""What takes the place of a product of options holds every pair of their values."""

from itertools import combinations, product

import pytest
from tests.pairs import combinations_of


@pytest.mark.parametrize(
    "sizes",
    [(2, 3), (3, 2, 2), (7, 5, 3), (4, 4, 4, 4)],
    ids=lambda sizes: "x".join(map(str, sizes)),
)
def test_any_two_values_are_together_in_a_combination_and_few_are_needed(sizes):
    options = [
        [f"{name}{i}" for i in range(size)] for name, size in zip("abcd", sizes, strict=False)
    ]
    chosen = combinations_of(*options)
    for one, other in combinations(range(len(options)), 2):
        together = {(combination[one], combination[other]) for combination in chosen}
        assert together == set(product(options[one], options[other]))
    largest, second = sorted(sizes)[:-3:-1]
    assert largest * second <= len(chosen) <= 2 * largest * second
    assert len(set(chosen)) == len(chosen)


def test_a_value_need_not_be_one_that_can_be_hashed():
    assert combinations_of([[1], [2]], [{}]) == [([1], {}), ([2], {})]
