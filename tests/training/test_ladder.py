"""A step of two recipes is the published step, once every difference is taken away."""

import json

import numpy as np
import pytest
from benchmarks.ladder.__main__ import GOLDEN, LADDERS, digest, ours, rows_read
from benchmarks.ladder._cases import write_cases
from benchmarks.ladder._recording import sketch

EXACT = 1e-4
"""Relative distance of a cosine of 1 - 5e-9. Other versions of torch may round differently."""


def distance(a, b):
    return np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b)


@pytest.mark.slow
@pytest.mark.parametrize("ladder", LADDERS, ids=lambda ladder: ladder.task)
def test_the_last_rung_is_the_published_gradient(ladder, tmp_path):
    published = json.loads(GOLDEN.read_text())[ladder.task]
    rows = write_cases(tmp_path, ladder.task, ladder.sizes, batches=ladder.batches, spare=2)
    assert digest(rows) == published["rollouts"]
    mine = ours(ladder, tmp_path, rows, ladder.differences, ladder.batches, published["plan"])
    for advantages, expected in zip(mine.advantages, published["advantages"], strict=True):
        np.testing.assert_allclose(advantages, expected, atol=1e-5)
    for gradient, expected in zip(mine.gradients, published["gradients"], strict=True):
        assert distance(np.multiply(sketch(gradient), ladder.scale), expected) < EXACT


def test_other_rows_take_the_places_of_rows_that_are_left_out():
    ladder = LADDERS[0]
    rows = [{"overflows": i == 2, "number": i} for i in range(ladder.sizes.prompts + 1)]
    used = [row["number"] for row in rows_read(ladder, rows, 1, truncates=False)]
    assert used == [0, 1, 16, *range(3, 16), 2]
