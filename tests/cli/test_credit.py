"""`gdpo credit` prints the bias of an estimator for turns, and exits with 1 if it has one."""

import json
import sys

import pytest

OWN = """
import numpy as np

def totals(rewards, weights, *, turns):
    there = np.arange(rewards.shape[2]) < turns[:, :, None]
    total = np.where(there[..., None], rewards, 0).sum(axis=2) @ weights
    return there * (total - total.mean(axis=1, keepdims=True))[:, :, None]

def at_random(rewards, weights, *, turns):
    return np.random.default_rng().normal(size=rewards.shape[:3])

def failing(rewards, weights, *, turns):
    return rewards[0, 0, 0, 7]

nothing = None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_credit.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])


def test_an_unbiased_estimator_exits_with_0(gdpo_says):
    code, out, _ = gdpo_says("credit", "turn_gdpo")
    assert code == 0
    assert "turn_gdpo: unbiased" in out
    for reward in ("dense", "outcome + 1", "conflict"):
        assert reward in out


def test_a_biased_estimator_exits_with_1_and_is_explained(gdpo_says, tmp_path):
    file = tmp_path / "table.json"
    code, out, _ = gdpo_says("credit", "turn_index_centred", "--output", file)
    assert code == 1
    for part in ("biased for 9 of 9", "'outcome + 1'", "turn 1", "reaching turn 2 is missing"):
        assert part in out
    assert "equal outcomes" in out
    written = json.loads(file.read_text())
    assert written["unbiased"] is False
    assert written["rows"][0]["reward"] == "dense"
    assert written["rows"][5]["degrees"] is None  # the mean gradient of this reward is 0
    assert len(written["reached"]) == 4


def test_an_estimator_of_ones_own_is_measured(gdpo_says, own):
    code, out, _ = gdpo_says("credit", "own_credit:totals")
    assert code == 1
    assert "only the size is wrong" in out
    assert gdpo_says("credit", "own_credit:totals", "--any-factor")[0] == 0
    assert gdpo_says("credit", "own_credit:totals", "--size", "2", "--bias", "0.6")[0] == 0


def test_batches_are_drawn_for_statistics_of_the_batch(gdpo_says, own):
    code, out, _ = gdpo_says("credit", "own_credit:totals", "--batch", "4")
    assert code == 0
    assert "batches of 4 groups" in out
    assert "noise" in out


def test_drawn_batches_that_are_too_noisy_to_tell_do_not_pass(gdpo_says, own):
    code, out, _ = gdpo_says("credit", "own_credit:at_random", "--batch", "4", "--bias", "1")
    assert code == 1
    assert "cannot tell" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("turn_gpdo",), "turn_gdpo"),
        (("own_credit:failing",), "IndexError"),
        (("own_credit:nothing",), "function"),
        (("own_credit:at_random",), "random numbers"),
        (("turn_gdpo", "--size", "9"), "groups"),
        (("turn_gdpo", "--bias", "inf"), "bias"),
        (("turn_gdpo", "--output", "missing/table.json"), "missing/table.json"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(gdpo_says, own, arguments, named):
    code, _, err = gdpo_says("credit", *arguments)
    assert code == 2
    assert err.startswith("gdpo: ")
    assert named in err
