"""Gates: rewards with a condition, as in the paper."""

import array_api_strict
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tests.refusals import config_error

from gdpo import gdpo
from gdpo.advantages import mo_grpo
from gdpo.rewards import Gate, Reward, apply_gates
from gdpo.rewards.gates import closed_gates, declared_ranges, describe_rewards
from gdpo.rewards.named import read_gates

NAMES = ["correct", "short"]
GATES = {"short": Gate("correct", at_least=1)}
NAN = float("nan")
R = np.array([[[1.0, 0.7], [0.99, 0.7], [0.0, -3.0]]])


def test_a_closed_gate_gives_zero_and_an_open_one_leaves_the_reward():
    gated = apply_gates(R, NAMES, GATES)
    assert_array_equal(gated[0], [[1, 0.7], [0.99, 0], [0, 0]])
    assert R[0, 1, 1] == 0.7  # the caller's array stays as it is


def test_a_closed_gate_can_make_the_reward_missing():
    gates = {"short": Gate("correct", 1, otherwise="missing")}
    assert_array_equal(apply_gates(R, NAMES, gates)[0, :, 1], [0.7, NAN, NAN])
    with config_error(r"'none': write zero .* or missing"):
        Gate("correct", 1, otherwise="none")


def papo(correct, quality, weight):
    """Return the advantages of one group by PAPO (arXiv 2603.26535, its "method" section).

    A reward that does not vary gives 0, and so does the quality of a single right sample.
    """
    right = correct == 1
    outcome, process = np.zeros(len(correct)), np.zeros(len(correct))
    if correct.std() > 0:
        outcome = (correct - correct.mean()) / correct.std(ddof=1)
    if right.sum() >= 2 and quality[right].std() > 0:
        process[right] = (quality[right] - quality[right].mean()) / quality[right].std(ddof=1)
    return outcome + weight * process


def test_a_missing_reward_is_normalized_among_the_open_gates():
    """`mo_grpo` gives PAPO's advantages, and `gdpo` the same over their batch std."""
    random = np.random.default_rng(0)
    r = np.stack([random.random((40, 8)) < 0.25, random.choice([0, 0.5, 1], (40, 8))], axis=-1)
    right = r[..., 0].sum(axis=1)
    assert {0, 1, 2} < set(right)  # groups without, with one and with several right samples
    wanted = np.array([papo(*group.T, weight=0.5) for group in r])
    gated = apply_gates(r, NAMES, {"short": Gate("correct", 1, otherwise="missing")})
    assert_allclose(mo_grpo(gated, [1, 0.5]), wanted, atol=1e-12)
    assert_allclose(gdpo(gated, [1, 0.5]), wanted / wanted.std(ddof=1), atol=1e-12)


def test_a_range_includes_zero_only_if_a_closed_gate_gives_it():
    short = Reward("short", len, low=0.5, high=1)
    for otherwise, low in (("zero", 0.0), ("missing", 0.5)):
        gates = {"short": Gate("correct", 1, otherwise)}
        assert declared_ranges([short], gates) == ([low], [1])
    described = describe_rewards(["short"], [0.5], [1], gates)
    assert described["short"]["gate"] == {"on": "correct", "at_least": 1, "otherwise": "missing"}


def test_a_missing_condition_makes_the_gated_reward_missing():
    gated = apply_gates(np.array([[[NAN, 0.7], [1.0, NAN], [0.0, NAN]]]), NAMES, GATES)
    assert_array_equal(gated[0, :, 1], [NAN, NAN, NAN])


def test_gates_look_at_rewards_as_they_were_scored():
    names = ["a", "b", "c"]
    gates = {"b": Gate("a", 1), "c": Gate("b", 1)}
    r = np.array([[[0.0, 1.0, 1.0]]])
    assert_array_equal(apply_gates(r, names, gates)[0, 0], [0, 0, 1])


def test_any_array_library_and_shape():
    r = np.array([[1.0, 0.7], [0.0, 0.7]])
    for library in (np.asarray, torch.tensor, array_api_strict.asarray):
        gated = apply_gates(library(r), NAMES, GATES)
        assert type(gated) is type(library(r))
        assert_array_equal(np.asarray(gated), [[1, 0.7], [0, 0]])


def test_closed_gates_are_counted_among_known_conditions():
    r = np.array([[[1.0, 1], [0.0, 1], [0.0, 1], [NAN, 1]]])
    assert closed_gates(r, NAMES, GATES) == {"short": pytest.approx(2 / 3)}
    assert closed_gates(np.full((1, 2, 2), NAN), NAMES, GATES) == {"short": 0.0}


HALF = {"short": Gate("correct", 0.5, of="group")}


def test_a_gate_of_the_group_tests_the_mean_of_the_known_rewards():
    half = [[1.0, 0.7], [0.0, 0.6], [NAN, 0.5]]
    less = [[1.0, 0.7], [0.0, 0.6], [0.0, 0.5]]
    r = np.array([half, less, [[NAN, 0.7], [NAN, 0.6], [NAN, 0.5]]])
    for library in (np.asarray, torch.tensor, array_api_strict.asarray):
        short = np.asarray(apply_gates(library(r), NAMES, HALF))[..., 1]
        assert_array_equal(short, [[0.7, 0.6, 0.5], [0, 0, 0], [NAN, NAN, NAN]])
        assert closed_gates(library(r), NAMES, HALF) == {"short": 0.5}


def test_a_gate_of_the_group_needs_groups():
    with config_error("'short' .* `of: group`.*'correct'"):
        apply_gates(R[0], NAMES, HALF)
    with config_error(r"'batch': write rollout .* or group"):
        Gate("correct", 1, of="batch")


def test_a_gate_of_the_group_is_read_and_described_in_the_same_words():
    assert read_gates({"short": {"on": "correct", "at_least": 0.5, "of": "group"}}) == HALF
    described = describe_rewards(["short"], [0], [1], HALF)
    assert described["short"]["gate"] == {"on": "correct", "at_least": 0.5, "of": "group"}


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ({"long": Gate("correct", 1)}, "'long'"),
        ({"short": Gate("corect", 1)}, "did you mean 'correct'"),
        ({"short": Gate("short", 1)}, "'short'"),
    ],
)
def test_a_gate_between_rewards_that_are_not_there_is_an_error(gates, message):
    with config_error(message):
        apply_gates(np.zeros((1, 2, 2)), NAMES, gates)


def test_a_threshold_must_be_finite():
    with config_error("at_least"):
        Gate("correct", NAN)


def test_an_unknown_key_of_a_gate_is_named_with_the_nearest():
    with config_error(r"length: unknown key 'atleast': .*'at_least'"):
        read_gates({"length": {"on": "correct", "atleast": 1}})
