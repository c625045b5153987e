"""The exact answer to "does this reward always win?" equals trying all groups."""

from dataclasses import replace
from itertools import combinations_with_replacement, product
from math import comb, inf, sqrt

import numpy as np
import pytest
from numpy.random import default_rng
from tests.refusals import config_error

from gdpo.advantages import ESTIMATORS, AdvantageRule
from gdpo.errors import ConfigError
from gdpo.priority import (
    SCORES,
    SUMS,
    Combination,
    Continuous,
    Priority,
    beats,
    in_words,
    priority,
    table_of,
)
from gdpo.rewards import Gate, apply_gates

NAMES = ("right", "format", "short", "safe")
BINARY = {"right": [0, 1], "format": [0, 1]}
LEVELS = ((0, 1), (0, 0.5, 1), (-3, 0, 3), (-1, 0), (0.25, 1, 2), (-2, -1, 1), (0, 1, 2, 20))


def drawn(seed):
    """A combination with its values, small enough to try all groups."""
    random = default_rng(seed)
    samples = int(random.integers(2, 7))
    while True:
        names = NAMES[: random.integers(2, 5)]
        values = {name: LEVELS[random.integers(len(LEVELS))] for name in names}
        signatures = np.prod([len(v) for v in values.values()])
        if comb(int(signatures) + samples - 1, samples) <= 5000:
            break
    weights = {name: float(random.choice((-1, 0, 0.5, 1, 2))) for name in names}
    weights["right"] = float(random.choice((0.5, 1, 3, 8)))
    at_least = float(random.choice(values["right"]))
    gates = {
        name: Gate("right", at_least=at_least, otherwise=str(random.choice(("zero", "missing"))))
        for name in names[1:]
        if random.random() < 0.6
    }
    estimator = str(random.choice((*SUMS, *SCORES)))
    return Combination(weights, samples, estimator, gates=gates), values


def scores_of_all_groups(combined, values):
    """Scores[group, sample, reward], and the primary reward[group, sample], of all groups."""
    raw = np.array(list(product(*values.values())), dtype=float)
    gated = apply_gates(raw[None], list(combined.weights), combined.gates)[0]
    groups = np.array(list(combinations_with_replacement(range(len(raw)), combined.samples)))
    return scored(gated[groups], combined.estimator), raw[groups][..., 0]


def scored(rewards, estimator):
    """Distances from the mean of the group, standardized or not. A missing reward gets 0."""
    n = np.sum(~np.isnan(rewards), axis=1, keepdims=True)
    scores = rewards - np.nansum(rewards, axis=1, keepdims=True) / np.maximum(n, 1)
    if estimator in SCORES:
        std = np.sqrt(np.nansum(scores**2, axis=1, keepdims=True) / np.maximum(n - 1, 1))
        scores = scores / np.where(std > 1e-12, std, inf)
    return np.nan_to_num(scores)


def smallest_by_trying(combined, values):
    scores, primary = scores_of_all_groups(combined, values)
    weights = np.array(list(combined.weights.values()))
    lead = scores[:, None, :, :] - scores[:, :, None, :]  # [group, better, worse, reward]
    ahead = np.where(primary[:, :, None] > primary[:, None, :], -lead[..., 0], np.nan)
    return max(0.0, np.nanmax(lead[..., 1:] @ weights[1:] / ahead, initial=0.0))


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_the_smallest_weight_equals_trying_all_groups(first):
    for seed in range(first, first + 40):
        combined, values = drawn(seed)
        found = priority(combined, values, "right")
        wanted = smallest_by_trying(combined, values)
        assert found.smallest == pytest.approx(wanted, abs=1e-9), (seed, combined, values)
        assert found.holds == (combined.weights["right"] > wanted + 1e-9), (seed, combined)
        if found.holds:
            assert found.counterexample is None
            assert all(abs(combined.weights[k]) < most for k, most in found.largest.items())
            continue
        worst = found.counterexample
        assert worst.rewards[0, 0] > worst.rewards[1, 0]
        assert worst.advantages[1] >= worst.advantages[0] - 1e-9, (seed, combined, worst)


@pytest.mark.parametrize("seed", range(40))
def test_below_the_largest_weight_of_a_reward_the_primary_reward_wins(seed):
    combined, values = drawn(seed)
    found = priority(combined, values, "right")
    for name, largest in found.largest.items():
        for factor, holds in ((0.999, True), (1.001, False)):
            weight = np.copysign(min(largest, 1e3) * factor, combined.weights[name])
            if largest > 0 and (holds or largest < inf):
                changed = replace(combined, weights=combined.weights | {name: float(weight)})
                assert priority(changed, values, "right").holds == holds, (name, largest, combined)


def test_binary_rewards_have_the_closed_form():
    for samples in (2, 4, 8, 16, 64):
        for others in (1, 3, 7):
            values = {"right": [0, 1], **{f"cheap{k}": [0, 1] for k in range(others)}}
            expected = {"grpo": others, "gdpo": others * sqrt(samples**2 // 4 / (samples - 1))}
            for estimator, limit in expected.items():
                combined = Combination(dict.fromkeys(values, 1.0), samples, estimator)
                assert priority(combined, values, "right").smallest == pytest.approx(limit)


@pytest.mark.parametrize("gate", [None, "zero", "missing"])
@pytest.mark.parametrize("estimator", ["gdpo", "grpo"])
@pytest.mark.parametrize("low", [-1.0, 0.0, 0.5])
def test_no_group_of_a_range_exceeds_the_answer_and_one_reaches_it(low, estimator, gate):
    random = default_rng(0)
    gates = {"length": Gate("right", at_least=1, otherwise=gate)} if gate else {}
    combined = Combination({"right": 1e-3, "length": 1.0}, 5, estimator, gates=gates)
    found = priority(combined, {"right": [0, 1], "length": Continuous(low, 2.0)}, "right")
    values = np.where(random.random((20_000, 5)) < 0.3, low, random.uniform(low, 2, (20_000, 5)))
    rewards = np.stack([random.integers(0, 2, values.shape), values], axis=-1).astype(float)
    scores = scored(apply_gates(rewards, list(combined.weights), gates), estimator)
    totals = scores @ [found.smallest * (1 + 1e-6) + 1e-9, 1.0]
    wrong = np.where(rewards[..., 0] == 0, totals, -inf).max(axis=1)
    assert (wrong < np.where(rewards[..., 0] == 1, totals, inf).min(axis=1)).all()
    if found.smallest:
        at = Combination({"right": found.smallest, "length": 1.0}, 5, estimator, gates=gates)
        tie = priority(at, {"right": [0, 1], "length": Continuous(low, 2.0)}, "right")
        assert tie.counterexample.advantages[1] == pytest.approx(tie.counterexample.advantages[0])


def test_a_continuous_primary_reward_never_wins_against_another():
    values = {**BINARY, "right": Continuous(0, 1)}
    found = priority(Combination({"right": 9, "format": 1}, 4), values, "right")
    assert found.smallest == inf
    assert found.counterexample.advantages[1] >= found.counterexample.advantages[0]
    assert found.largest == {"format": 0.0}
    alone = priority(Combination({"right": 9, "format": 0}, 4), values, "right")
    assert (alone.smallest, alone.holds) == (0, True)


@pytest.mark.parametrize("otherwise", ["zero", "missing"])
def test_values_around_0_and_missing_ones_count_where_both_samples_open_the_gate(otherwise):
    """Two of three values of the primary reward open the gate."""
    gates = {"length": Gate("right", at_least=1, otherwise=otherwise)}
    limits = []
    for length in (Continuous(-1, 2), (-1, 0, 0.5, 1, 2), (0, 0.5, 1)):
        combined = Combination({"right": 1.0, "length": 1.0}, 6, gates=gates)
        values = {"right": (0, 1, 1.1), "length": length}
        limits.append(priority(combined, values, "right").smallest)
        if not isinstance(length, Continuous):
            assert limits[-1] == pytest.approx(smallest_by_trying(combined, values))
    assert limits[0] >= limits[1] - 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_a_sample_that_can_beat_another_equals_trying_all_groups(seed):
    combined, values = drawn(seed)
    raw = np.array(list(product(*values.values())), dtype=float)
    random = default_rng(seed)
    wrong, right = raw[np.sort(random.choice(len(raw), 2))]
    if right[0] == wrong[0]:
        right[0], wrong[0] = values["right"][-1], values["right"][0]
    answer = beats(
        combined,
        values,
        "right",
        dict(zip(values, right, strict=True)),
        dict(zip(values, wrong, strict=True)),
    )
    scores, _ = scores_of_all_groups(combined, values)
    totals = scores @ np.array(list(combined.weights.values()))
    groups = np.array(list(combinations_with_replacement(range(len(raw)), combined.samples)))
    is_right, is_wrong = ((raw[groups] == one).all(axis=-1) for one in (right, wrong))
    lead = np.where(
        is_wrong[:, :, None] & is_right[:, None], totals[:, :, None] - totals[:, None], -inf
    )
    assert (answer is not None) == (np.max(lead) >= -1e-9), (combined, values, right, wrong)
    if answer is not None:
        assert answer.advantages[1] >= answer.advantages[0] - 1e-9


def signs(values):
    return np.sign(np.round(values[:, :, None] - values[:, None, :], 9))


def test_the_tables_hold_exactly_the_estimators_that_order_a_group_by_a_sum():
    random = default_rng(0)
    chance = np.array([0.9, 0.3, 0.1])
    batches = (random.random((50, 6, 5, 3)) < chance) * np.array([1.0, 3.0, 10.0])
    weights = np.array([1.0, 2.0, 0.5])
    orders = {"sum": set(ESTIMATORS), "scores": set(ESTIMATORS)}
    for name in ESTIMATORS:
        try:
            rule = AdvantageRule(name, NAMES[:3], low=[0] * 3, high=[1, 3, 10])
        except ConfigError:  # it needs options, which decide the order
            rule = None
        for rewards in batches:
            for how, like in (("sum", "grpo"), ("scores", "gdpo")):
                order = signs(scored(rewards, like) @ weights)
                if rule is None or not (signs(rule(rewards, weights)) == order).all():
                    orders[how].discard(name)
    assert orders["sum"] == set(SUMS)
    assert orders["scores"] == set(SCORES)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"estimator": "gdpo_leave_one_out"}, "not known for gdpo_leave_one_out"),
        ({"options": {"noise_floor": 0.1}}, "not known for gdpo with these options or gates"),
        ({"gates": {"right": Gate("format", at_least=1)}}, "these options or gates"),
        ({"gates": {"format": Gate("right", 0.5, of="group")}}, "these options or gates"),
        (
            {"gates": {"form": Gate("right", at_least=1), "format": Gate("right", at_least=2)}},
            "these options or gates",
        ),
    ],
)
def test_without_a_closed_form_the_answer_is_not_known(changed, said):
    values = {**BINARY, "right": [0, 1, 2], "form": [0, 1]}
    combined = replace(Combination(dict.fromkeys(values, 1.0), 4), **changed)
    found = priority(combined, values, "right")
    assert found == Priority("right")
    assert said in in_words(combined, found)
    assert {row[-1] for row in table_of(combined, values, found)[1:]} == {"not known"}
    with config_error("not known"):
        beats(combined, values, "right", dict.fromkeys(values, 1), dict.fromkeys(values, 0))


def test_two_rewards_with_many_values_and_a_gate_are_fast():
    levels = np.linspace(0, 1, 64)
    gates = {"format": Gate("right", at_least=0.5)}
    asked = {"right": levels, "format": levels}
    found = priority(Combination({"right": 1, "format": 1}, 8, gates=gates), asked, "right")
    assert found.smallest == pytest.approx(63 * 1.5, rel=0.5)  # minutes, if all pairs are tried


def test_a_sample_that_is_compared_needs_every_reward():
    combined = Combination({"right": 1, "format": 1}, 4)
    with config_error("format"):
        beats(combined, BINARY, "right", {"right": 1}, {"right": 0})


def test_a_primary_reward_with_one_value_cannot_be_beaten():
    gates = {"format": Gate("right", at_least=1)}
    for given in ({}, gates):
        combined = Combination({"right": 1, "format": 1}, 4, gates=given)
        found = priority(combined, {**BINARY, "right": [1]}, "right")
        assert (found.holds, found.smallest) == (True, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"samples": 1}, "samples"),
        ({"weights": {"right": 0.0, "format": 1.0}}, "right"),
        ({"values": {**BINARY, "format": []}}, "format"),
        ({"values": {**BINARY, "format": [np.nan]}}, "format"),
        ({"values": {"right": [0, 1]}}, "format"),
        ({"values": {**BINARY, "format": Continuous(1, 0)}}, "format"),
        ({"values": {**BINARY, "right": Continuous(1, 1)}}, "right"),
        ({"values": {**BINARY, "format": [-1e308, 1e308]}}, "1e\\+60"),
        ({"values": {**BINARY, "format": np.arange(65)}}, "Continuous"),
        ({"weights": {"right": 1.0, "format": np.inf}}, "format"),
        ({"primary": "rihgt"}, "did you mean 'right'"),
        ({"gates": {"format": Gate("rihgt", at_least=1)}}, "rihgt"),
    ],
)
def test_wrong_questions_are_refused(change, named):
    asked = {
        "weights": {"right": 1.0, "format": 1.0},
        "samples": 4,
        "gates": {},
        "values": BINARY,
        "primary": "right",
    } | change
    with config_error(named):
        priority(
            Combination(asked["weights"], asked["samples"], gates=asked["gates"]),
            asked["values"],
            asked["primary"],
        )
