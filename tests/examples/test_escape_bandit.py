"""The toy learns what it is rewarded for, and what it reports is counted right."""

import math
from functools import partial

import numpy as np
import pytest
from examples.escape_bandit import interval_of_share, main, median, row, steps_to_learn, with_ranges
from numpy.testing import assert_allclose, assert_array_equal

from gdpo.advantages import ESTIMATORS, constrained_grpo, dara_asymmetric, gdpo, grpo, sa_mrpo

TOY = {"prompts": 16, "learning_rate": 0.05, "format_weight": 1.0}
learn = partial(steps_to_learn, **TOY)


# The asymmetric one's advantages do not add up to 0 in a group, so that the baseline matters.
@pytest.mark.parametrize(
    ("estimator", "seed", "steps"),
    [(gdpo, 2, [131, 12]), (dara_asymmetric, 1, [148, 12]), (dara_asymmetric, 2, [104, 13])],
)
def test_the_steps_are_those_of_the_same_toy_with_gradient_and_adam_of_torch(
    estimator, seed, steps
):
    """Recorded with torch 2.13 from the log-probabilities of the drawn formats and levels."""
    assert learn(estimator, seed, steps=150).tolist() == steps


def test_the_weight_of_the_format_reaches_the_estimator():
    seen = []

    def zero(rewards, weights):
        seen.append(weights)
        return np.zeros(rewards.shape[:2])

    steps_to_learn(zero, 0, steps=1, **TOY | {"format_weight": 3.0})
    assert seen == [(3.0, 1.0)]


def test_a_policy_that_starts_with_the_format_has_it_before_the_first_step():
    assert learn(gdpo, 0, steps=1, start=0.9)[0] == 0


def test_a_run_that_needs_all_its_steps_is_not_counted_as_one_that_failed():
    needed = learn(grpo, 0, steps=200).max()
    assert learn(grpo, 0, steps=int(needed)).max() == needed
    assert learn(grpo, 0, steps=int(needed) - 1).max() == math.inf


def test_an_estimator_gets_the_ranges_that_it_needs_and_is_left_out_if_it_needs_more():
    rewards, weights = np.array([[[0.0, -3.0], [1.0, 3.0]]]), (1, 1)
    told = sa_mrpo(rewards, weights, low=[0, -3], high=[1, 3])
    assert_array_equal(with_ranges(sa_mrpo)(rewards, weights), told)
    assert_array_equal(with_ranges(gdpo)(rewards, weights), gdpo(rewards, weights))
    assert with_ranges(constrained_grpo) is None


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_can_be_run_or_is_left_out(name):
    estimator = with_ranges(ESTIMATORS[name])
    assert estimator is None or learn(estimator, 0, steps=5).shape == (2,)


def test_the_median_is_a_step_at_which_half_of_the_seeds_had_learned():
    assert median([40, 10, 30, 20]) == 20
    assert median([10, math.inf, 30]) == 30
    assert median([10, math.inf, math.inf]) == math.inf


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    # From the published tables of Clopper and Pearson's interval.
    [(0, 20, 0.0, 0.168), (2, 20, 0.012, 0.317), (10, 20, 0.272, 0.728), (20, 20, 0.832, 1.0)],
)
def test_the_exact_interval_of_a_share(count, of, low, high):
    assert_allclose(interval_of_share(count, of), [low, high], atol=0.0011)


def test_the_interval_of_the_median_is_the_bootstraps():
    result = np.column_stack([np.arange(1.0, 21.0)] * 2)
    # A resample's tenth smallest of 20 is at most k with the chance that ten draws are: 1.4 % for
    # k = 5, 4.8 % for 6; 94.7 % for 13, 98.3 % for 14.
    assert row("x", result, 300).split(" | ")[2] == "6 to 14"


def test_censored_seeds_are_counted_and_shown_as_beyond_the_last_step():
    result = np.array([[12.0, 3.0], [math.inf, 5.0], [math.inf, 4.0]])
    cells = row("x", result, 300).split("|")[1:-1]
    assert [cell.strip() for cell in cells[:4]] == ["x", ">300", "12 to >300", "12 to >300"]
    assert cells[4].strip().startswith("2 of 3 (")
    assert cells[5].strip() == "4"


def test_the_command_prints_a_row_per_estimator_and_draws_the_picture(
    tmp_path, monkeypatch, capsys
):
    picture = tmp_path / "escape.png"
    options = "--estimators gdpo,constrained_grpo --seeds 2 --steps 3 --prompts 4 --output"
    monkeypatch.setattr("sys.argv", ["escape_bandit.py", *options.split(), str(picture)])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| format alone (grpo) | >3 | >3 to >3 | >3 to >3 | 2 of 2 (")
    assert lines[3].startswith("| gdpo | >3 |")
    assert lines[4].startswith("| constrained_grpo | left out")
    assert picture.read_bytes().startswith(b"\x89PNG")
