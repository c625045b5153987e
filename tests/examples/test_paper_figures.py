"""The example's counts are the paper's, and its pictures are drawn."""

import json
from itertools import permutations

import numpy as np
import pytest
from examples.paper_figures import better_ones_advantage, distinct_groups, every_group, main, table
from numpy.testing import assert_allclose
from tests.environments import ROOT

from gdpo.advantages import grpo, grpo_no_std, mo_grpo

PAPER = json.loads((ROOT / "tests/golden/paper_figure_3.json").read_text())
ESTIMATORS = {"grpo": grpo, "gdpo": mo_grpo}


def published(points, over, name):
    return dict(zip(PAPER[points][over], PAPER[points][name], strict=False))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_published_point_of_figure_3_left(name):
    points = published("two_rewards_by_samples", "samples", name)
    assert {g: distinct_groups(ESTIMATORS[name], g, 2) for g in points} == points


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_published_point_of_figure_3_right(name):
    points = published("four_samples_by_rewards", "rewards", name)
    assert {n: distinct_groups(ESTIMATORS[name], 4, n) for n in points} == points


@pytest.mark.parametrize(("samples", "rewards"), [(3, 2), (2, 3), (2, 4), (3, 4)])
def test_every_group_is_on_the_list_up_to_order(samples, rewards):
    def sorted_both_ways(group):
        columns = (group[:, list(order)] for order in permutations(range(rewards)))
        return min(tuple(sorted(map(tuple, c.tolist()))) for c in columns)

    listed = {sorted_both_ways(g) for g in every_group(samples, rewards)}
    bits = np.arange(2 ** (samples * rewards))[:, None] >> np.arange(samples * rewards) & 1
    every = bits.reshape(-1, samples, rewards).astype(float)
    assert listed == {sorted_both_ways(g) for g in every}


def test_figure_2_has_two_groups_for_grpo_and_three_for_the_others():
    assert_allclose(better_ones_advantage(grpo), [0, 0, 0] + 3 * [0.5**0.5])
    assert_allclose(better_ones_advantage(grpo_no_std), [0, 0, 0, 0.5, 0.5, 1])
    expected = [0, 0, 0, 0.5**0.5, 0.5**0.5, 2**0.5]
    assert_allclose(better_ones_advantage(mo_grpo), expected)


def test_a_row_that_is_too_short_ends_in_dashes():
    assert table("n", [1, 2], {"GDPO": [3]}).splitlines()[-1] == "| GDPO | 3 | – |"


@pytest.mark.slow
def test_the_command_prints_the_tables_and_draws_the_picture(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "figures.png"
    monkeypatch.setattr("sys.argv", ["paper_figures.py", "--output", str(picture)])
    main()
    out = capsys.readouterr().out
    assert "| GDPO | 0.0 | 0.0 | 0.0 | 0.7071 | 0.7071 | 1.4142 |" in out
    assert "| GDPO | 4 | 14 | 45 | 127 | 318 | 722 | – | – |" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
