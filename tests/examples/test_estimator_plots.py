"""The script's numbers are those of the formulas, and what the estimators' pages say is so."""

import doctest
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from examples.estimator_plots import advantages, main, measure, situations, table

from gdpo.advantages import ESTIMATORS, TURN_ESTIMATORS, AdvantageRule
from gdpo.advantages.registry import weights_by_name
from gdpo.errors import ConfigError
from gdpo.recipes.read import load_recipe
from gdpo.rewards import Gate
from gdpo.rewards.gates import check_gates
from gdpo.training._quiet import quiet

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "estimators").glob("*.md"))
TURNS = DOCS / "estimators" / "turn_gdpo.md"
INDEX_PAGE = DOCS / "estimators" / "README.md"
INDEX = INDEX_PAGE.read_text()
REWARDS = ["format", "correctness"]
HEADER = "task: tool_calling\nmodel: none\ndata: {source: none.jsonl}\n"
WORLDS = situations()


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def page_of(name):
    """The page that an estimator's row of the index leads to. Estimators for turns share one."""
    if name in TURN_ESTIMATORS:
        return TURNS
    rows = re.findall(rf"^\| `{name}` \|.*\]\((\w+\.md)\) \|$", INDEX, re.MULTILINE)
    assert len(rows) == 1, f"{name} has {len(rows)} rows"
    return DOCS / "estimators" / rows[0]


def anchors(text):
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


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


def test_rewards_said_to_agree_or_to_be_opposed_do_so_in_nine_rollouts_of_ten():
    for situation, same in (
        ("next to two that agree", lambda r: r[..., 1] == r[..., 2]),
        ("opposed by twice its std", lambda r: np.isclose(1 - r[..., 0], r[..., 1] / 2)),
    ):
        assert same(WORLDS[situation]).mean() == pytest.approx(0.9, abs=0.005)


def test_the_rare_reward_is_earned_once_in_20_groups():
    rare = WORLDS["earned once in 20 groups"][..., 0]
    assert np.flatnonzero(rare.any(axis=1)).tolist() == list(range(0, len(rare), 20))
    assert rare.sum() == len(rare) / 20


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


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_has_a_row_a_page_and_a_small_picture_on_it(name):
    page = page_of(name).read_text()
    assert f"`{name}`" in page.splitlines()[0]
    assert f"(../images/estimators/{name}.png)" in page
    picture = (DOCS / "images" / "estimators" / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60 * 1024


def test_every_page_belongs_to_an_estimator_and_every_picture_too():
    others = {INDEX_PAGE, TURNS}
    assert {page_of(name) for name in ESTIMATORS} == set(PAGES) - others
    pictures = (DOCS / "images" / "estimators").iterdir()
    assert {picture.stem for picture in pictures} == set(ESTIMATORS)


def test_the_table_of_the_index_is_what_the_script_prints():
    measured = {name: measure(name, WORLDS) for name in ESTIMATORS}
    assert table("influence of a reward that is", measured, 0, "{:.0%}") in INDEX


@pytest.mark.parametrize(
    ("name", "situation", "largest"),
    [
        ("gdpo", "opposed by twice its std", "8.7"),
        ("gdpo_leave_one_out", "opposed by twice its std", "17.4"),
        ("gdpo_leave_one_out", "one of two alike", "9.0"),
        ("grpo_no_std", "of 1/8 the other's std", "5.8"),
        ("mo_grpo", "next to two that agree", "6.3"),
        ("mo_grpo", "opposed by twice its std", "3.7"),
        ("per_reward_batch_std", "earned once in 20 groups", "14.1"),
        ("saw", "earned once in 20 groups", "12.0"),
        ("dara_symmetric", "earned once in 20 groups", "9.8"),
        ("dara_asymmetric", "earned once in 20 groups", "10.1"),
        ("corr_grpo", "opposed by twice its std", "684"),
        ("gd2po_hard", "opposed by twice its std", "4.9"),
        ("gd2po_snr", "opposed by twice its std", "6.6"),
        ("constrained_grpo", "next to two that agree", "8.7"),
    ],
)
def test_the_largest_advantages_that_a_page_quotes_are_what_the_script_prints(
    name, situation, largest
):
    measured = measure(name, {situation: WORLDS[situation]})[situation][2]
    assert largest in (f"{measured:.1f}", f"{measured:.0f}")
    assert largest in page_of(name).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_give_the_output_that_it_shows(page):
    text = "\n".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_accepts_the_yaml_of_a_page(page, tmp_path):
    names = set()
    for i, block in enumerate(blocks(page, "yaml")):
        file = tmp_path / f"{i}.yaml"
        file.write_text(HEADER + block)
        names.add(load_recipe(file).advantage)
    assert page in (INDEX_PAGE, TURNS, *map(page_of, names))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_trl_config_accepts_the_python_of_a_page(page, tmp_path):
    from gdpo.integrations.trl import GDPOConfig

    for block in blocks(page, "python"):
        *before, call = block.splitlines()
        known = {"GDPOConfig": partial(GDPOConfig, output_dir=str(tmp_path), use_cpu=True)}
        exec("\n".join(before), known)
        with quiet():
            config = eval(call, known)
        turns = config.advantage in TURN_ESTIMATORS
        AdvantageRule(config.advantage, REWARDS, config.advantage_options, turns=turns)
        weights_by_name(REWARDS, config.reward_weights)
        check_gates(REWARDS, {name: Gate(**gate) for name, gate in (config.gates or {}).items()})
        assert page in (INDEX_PAGE, page_of(config.advantage))


def test_an_option_that_a_page_invents_would_be_refused(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(HEADER + "advantage: saw\nadvantage_options: {gamma: 0.5}\n")
    with pytest.raises(ConfigError, match="no option 'gamma'"):
        load_recipe(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target
