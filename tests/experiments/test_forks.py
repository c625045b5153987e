"""A fork goes on as its run did, but for its one change, and effects are measured exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks import length_penalty
from benchmarks.forks import _fork
from benchmarks.forks._fork import base_run, clips, fork, named, unclipped, without
from benchmarks.forks._measure import Samples, weighed
from benchmarks.forks._statistics import concordance, over_warm_starts
from benchmarks.length_penalty import RECIPES, WITHOUT, measured, outcome, print_table
from tests.test_docs_blocks import ROOT, blocks_of

PAGE = (ROOT / "docs" / "how-to" / "length_penalty.md").read_text("utf-8")


def test_the_recipes_of_the_page_are_those_that_were_run():
    shown = [block.code for block in blocks_of(PAGE) if block.language == "yaml"]
    assert shown == [text for name, text in RECIPES.items() if name != WITHOUT]


def test_the_table_of_the_page_is_printed_from_the_records(capsys):
    print_table(length_penalty.RECORDS)
    assert capsys.readouterr().out in PAGE


def test_an_interval_that_holds_both_0_and_the_margin_decides_nothing():
    changes = {"hurt": (-0.3, 0.02), "not hurt": (0.0, 0.02), "not decided": (-0.05, 0.2)}
    for wanted, (mean, size) in changes.items():
        assert outcome(mean + size * np.array([-1, -0.5, 0, 0.5, 1])) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_of_the_page_trains(name, tmp_path, monkeypatch):
    monkeypatch.setattr(length_penalty, "STEPS", 2)
    monkeypatch.setattr(length_penalty, "FRESH", replace(length_penalty.FRESH, fresh=4))
    after = measured(name, 2, tmp_path)["after"]
    assert 0 <= after["right"] <= 1 < after["tokens"] <= 12


@pytest.mark.slow
def test_an_unchanged_fork_is_the_run_and_any_change_shows(recipe, monkeypatch):
    monkeypatch.setattr(_fork, "POINTS", (2,))
    monkeypatch.setattr(_fork, "HORIZONS", (1, 2))
    recipe = recipe.model_copy(update={"trainer": {**recipe.trainer, "max_grad_norm": 0.01}})
    run = base_run(recipe)
    assert clips(run, 2, 2)
    changed = {
        "unchanged": (recipe, False),
        "without": (without(recipe, "brief"), False),
        "unclipped": (unclipped(recipe), False),
        "fresh": (recipe, True),
    }
    models = {
        name: fork(named(each, name), run, 2, 2, fresh_optimizer=fresh).models
        for name, (each, fresh) in changed.items()
    }
    for step in (3, 4):
        own = run.models[step]
        same = {n: all(torch.equal(own[k], m[step][k]) for k in own) for n, m in models.items()}
        assert same == {"unchanged": True, "without": False, "unclipped": False, "fresh": False}


def test_importance_weights_give_the_mean_under_the_other_policy():
    """One prompt, two responses: all pairs of samples, weighed by how often they are drawn."""
    old, new, reward = np.array([0.6, 0.4]), np.array([0.3, 0.7]), np.array([1.0, 5.0])
    found = 0.0
    for i in range(2):
        for j in range(2):
            drawn = [i, j]
            samples = Samples([], [], reward[drawn].reshape(1, 2, 1))
            mean = weighed(samples, np.log(old[drawn]), np.log(new[drawn])).mean()
            found += old[i] * old[j] * mean
    assert found == pytest.approx(new @ reward)


def test_concordance_by_hand():
    assert concordance([0.1, 0.2, 0.7], [1, 3, 2]) == pytest.approx(2 / 3)
    assert concordance([0.5, 0.5], [1, 2]) == 0.5
    assert np.isnan(concordance([0.1, 0.9], [1, 2], lambda i, j: False))


def test_the_interval_over_warm_starts_is_students():
    mean = over_warm_starts([1.0, 2.0, float("nan"), 3.0])
    half = 4.302653 / np.sqrt(3)
    assert (mean.mean, mean.low, mean.count) == (2, pytest.approx(2 - half), 3)
