"""The script's numbers are those of the formulas, and what the estimators' page says is so."""

import doctest
import re

import numpy as np
import pytest
from docs._estimators import completed, pictures
from examples.estimator_plots import advantages, main, measure, situations
from tests.environments import ROOT

from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS
from gdpo.lab.recipes.read import load_recipe

PAGE = ROOT / "docs" / "estimators" / "README.md"
HEADER = "task: tool_calling\nmodel: none\ndata: {source: none.jsonl}\n"
WORLDS = situations()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


# A reward earned by 95 % varies in that share of the groups.
VARIES = 1 - 0.95**8 - 0.05**8


@pytest.mark.parametrize(
    ("name", "boosts"),
    [("mo_grpo", (1, 1)), ("gdpo", (1, 1)), ("dara_symmetric", (20**0.5, VARIES**-0.5))],
)
def test_the_influence_is_that_of_the_correlations_and_of_how_often_a_reward_varies(name, boosts):
    # Of normalized rewards it is C w; here pi times boost for the one that varies now and then.
    rare, frequent = boosts[0] / 20, boosts[1] * VARIES
    lone = 1 / (1 + 2 * 1.9)
    expected = [0.5, 0.5, rare / (1 + rare), frequent / (1 + frequent), 0.5, lone, 0.5]
    shares = [share for share, _, _ in measure(name, WORLDS).values()]
    np.testing.assert_allclose(shares, expected, atol=0.012)


def test_of_a_plain_sum_the_influence_goes_with_the_spread_and_is_negative_in_opposition():
    shares = {key: figure[0] for key, figure in measure("grpo_no_std", WORLDS).items()}
    assert shares["of 1/8 the other's std"] == pytest.approx(1 / 9, abs=0.012)
    assert shares["only 0.1 % jitter"] == pytest.approx(1 / 1001, abs=0.012)
    assert shares["opposed by twice its std"] == pytest.approx(-0.8 / (0.8 + 1.1), abs=0.012)


def test_the_weights_share_and_the_largest_advantage_are_reported():
    rewards = WORLDS["opposed by twice its std"]
    _, weight, largest = measure("corr_grpo", {"opposed": rewards})["opposed"]
    assert weight == 0.5
    assert largest == np.abs(advantages("corr_grpo", rewards)).max() > 100


def test_the_command_prints_the_estimator_with_grpo_and_gdpo_and_draws_only_it(
    tmp_path, monkeypatch, capsys
):
    options = ["--only", "gdpo_leave_one_out", "--output", str(tmp_path / "new")]
    monkeypatch.setattr("sys.argv", ["estimator_plots.py", *options])
    main()
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows.count("| `gdpo_leave_one_out`") == rows.count("| `gdpo`") == 2
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["gdpo_leave_one_out.png"]
    assert (tmp_path / "new" / "gdpo_leave_one_out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_page_has_a_row_a_section_and_a_small_picture_of_every_estimator():
    page, drawn = completed(PAGE.read_text()), pictures()
    assert list(drawn) == [f"images/estimators/{name}.png" for name in ESTIMATORS]
    for name, picture in zip(ESTIMATORS, drawn.values(), strict=True):
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 60 * 1024
        assert f"(../images/estimators/{name}.png)" in page
        rows = re.findall(rf"^\| `{name}` \| (.*) \|$", page, re.MULTILINE)
        influence, largest = (row.split(" | ") for row in rows if " | " in row)
        assert all(share.endswith("%") for share in influence)
        assert len(influence) == len(largest) == len(WORLDS)
        assert all(float(size) > 0 for size in largest)
    for name, estimator in {**ESTIMATORS, **TURN_ESTIMATORS}.items():
        assert f"| [`{name}`](#{name}) | {estimator.__doc__.splitlines()[0]} |" in page
        assert f"### {name}\n\n::: {estimator.__module__}.{name}\n" in page


def test_a_page_without_a_place_for_a_part_is_an_error():
    with pytest.raises(AssertionError, match="influence"):
        completed(PAGE.read_text().replace("<!-- influence -->", ""))


def test_the_examples_of_the_page_give_the_output_that_it_shows():
    test = doctest.DocTestParser().get_doctest("\n".join(blocks("pycon")), {}, "page", str(PAGE), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_recipe_accepts_the_yaml_of_the_page(saved):
    names = set()
    for i, block in enumerate(blocks("yaml")):
        names.add(load_recipe(saved(f"{i}.yaml", HEADER + block)).advantage)
    assert names == {"gdpo", "constrained_grpo"}
