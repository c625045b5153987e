"""Less effect than the weight: what shows it, its causes, and what follows from them."""

from math import prod

import numpy as np
import pytest
from tests.diagnostics.healthy import stacked

from gdpo.diagnostics import Thresholds, diagnose
from gdpo.diagnostics.diagnosis import Cause, Kind, Range, Severity
from gdpo.diagnostics.influence import Influence, Sums
from gdpo.diagnostics.looks import (
    OF_INFLUENCE,
    Look,
    Noticed,
    _kinds,
    _variance_at,
    as_measured,
    learned_rewards,
)

NAMES = ["k", "o"]


def uniform(seed, groups=256, samples=8):
    return np.random.default_rng(seed).random((groups, samples))


def batch(*, std=1.0, varies=1.0, there=1.0, against=0.0, groups=256, samples=8):
    """A reward, beside one that varies everywhere. The first differs in one respect or more."""
    random, other = np.random.default_rng(0), uniform(1, groups, samples)
    reward = std * (uniform(2, groups, samples) - against * other)
    reward[: round(groups * (1 - varies))] = 0.0
    reward[random.random(reward.shape) >= there] = np.nan
    return stacked(reward, other)


def diagnosed(rewards, weights=None, estimator="grpo", **options):
    return diagnose(rewards, weights, NAMES, estimator=estimator, **options)


def effects(diagnosis):
    return [each for each in diagnosis.findings if each.kind in OF_INFLUENCE]


def effect(*arguments, **options):
    (finding,) = effects(diagnosed(*arguments, **options))
    return finding


RARE = batch(varies=0.11, groups=1024)

PLANTED = {
    "missing": (
        batch(there=0.1, samples=64),
        [1, 1],
        "gdpo",
        (Cause.MISSING,),
        "from 90 % of the rollouts",
    ),
    "sparse": (RARE, [1, 1], "gdpo", (Cause.SPARSE,), "11 % of its groups (`o`: 100"),
    "opposed": (batch(against=1.2), [1, 2], "gdpo", (Cause.OPPOSED,), "other rewards pull"),
    "range": (batch(std=0.1), [1, 1], "grpo", (Cause.RANGE,), "standard deviation of `o` within a"),
    "range and sparse": (
        batch(std=0.2, varies=0.4),
        [1, 1],
        "grpo",
        (Cause.RANGE, Cause.SPARSE),
        "Cause (range and sparse): ",
    ),
    "sparse and range": (
        batch(std=0.4, varies=0.2),
        [1, 1],
        "grpo",
        (Cause.SPARSE, Cause.RANGE),
        "Cause (sparse and range): ",
    ),
}


@pytest.mark.parametrize("which", PLANTED)
def test_the_planted_cause_is_named_and_the_factors_multiply_to_the_effect(which):
    """What follows from a cause is a fact, and from a range what the weights may mean."""
    rewards, weights, estimator, causes, words = PLANTED[which]
    finding = effect(rewards, weights, estimator)
    assert finding.causes == causes
    assert words in finding.message
    factors = {c: finding.evidence[f"factor_{c.value}"] for c in Cause}
    ratio = finding.evidence["influence_share"] / finding.evidence["weight_share"]
    assert prod(factors.values()) == pytest.approx(max(ratio, 0), rel=1e-12)
    assert all((factors[cause] < 0.75) == (cause in causes) for cause in Cause)
    start = {
        Cause.MISSING: "check why it is missing",
        Cause.SPARSE: "groups in which all samples get the same value teach nothing about it",
        Cause.OPPOSED: "decide which of them matters more",
        Cause.RANGE: "if the rewards should count equally: gdpo with reward_weights=[1, 1]",
    }[causes[0]]
    assert finding.remedy.startswith(start)
    assert ("gdpo" in finding.remedy) == (causes[0] is Cause.RANGE)


def test_the_factor_of_each_cause_is_the_size_of_the_planted_one():
    sparse = effect(batch(varies=0.125, groups=4096), [1, 1], "gdpo").evidence
    assert sparse["factor_sparse"] == pytest.approx(2 * 0.125 / 1.125, rel=1e-3)
    missing = effect(batch(there=0.1, groups=4096), [1, 1], "gdpo").evidence
    assert missing["factor_missing"] == pytest.approx(2 * 0.1 / 1.1, rel=0.04)


@pytest.mark.parametrize("cause", ["missing", "range"])
def test_a_penalty_has_the_same_factors(cause):
    rewards, weights, estimator, causes, _ = PLANTED[cause]
    reward = effect(rewards, weights, estimator)
    penalty = effect(rewards * [-1, 1], [-weights[0], weights[1]], estimator)
    assert penalty.causes == causes
    for key, value in reward.evidence.items():
        assert penalty.evidence[key] == pytest.approx(value, abs=1e-9), key


def test_where_a_prompt_has_no_weight_for_a_reward_it_is_not_missing():
    rewards, weights = batch(std=0.02), np.ones((256, 2))
    weights[::2, 0] = np.nan
    finding = effect(rewards, weights)
    assert finding.causes == (Cause.RANGE,)
    assert finding.evidence["factor_missing"] == finding.evidence["factor_sparse"] == 1
    assert finding.evidence["weight_share"] == 0.25


def test_a_reward_that_the_advantages_do_not_follow_has_a_cause_too():
    for std, named in ((1, False), (1.2, False), (1.5, True)):
        rewards = stacked(uniform(1), std * uniform(2))
        finding = effect(rewards, None, None, advantages=rewards[..., 1] - std / 2)
        assert finding.causes == (Cause.RANGE,)
        assert ("standard deviation of `o`" in finding.message) == named
        assert ("follow `o` more closely" in finding.message) != named


def test_the_clause_about_a_range_compares_standard_deviations_whatever_the_weights():
    for weights in ([1, 1], [1, 3], np.tile([[np.nan, 1], [1, 3]], (2048, 1))):
        message = effect(batch(std=0.1, groups=4096), weights).message
        assert "standard deviation of `o` within a group is 10 times as large" in message


LIMITS = (
    (0.15, None, None),
    (0.10, Kind.IGNORED, Severity.NOTE),
    (0.03, Kind.IGNORED, Severity.WARNING),
    (-0.1, Kind.REVERSED, Severity.WARNING),
)


@pytest.mark.parametrize(("share", "kind", "severity"), LIMITS)
@pytest.mark.parametrize("sign", [1, -1])
def test_each_limit_has_its_kind_and_severity(share, kind, severity, sign):
    """The advantages follow two unrelated rewards as closely as the test asks for."""
    rewards = stacked(uniform(1, 2000), uniform(2, 2000)) - 0.5
    advantages = rewards @ [sign * share, 1 - abs(share)]
    found = diagnosed(rewards, [sign, 1], None, advantages=advantages)
    seen = [(f.kind, f.severity) for f in effects(found)]
    assert seen == ([(kind, severity)] if kind else [])
    if kind is Kind.IGNORED:
        assert ("is ignored" in found.findings[0].message) == (severity is Severity.WARNING)
    if kind is Kind.REVERSED:
        assert ("pushed down" if sign > 0 else "pushed up") in found.findings[0].message


def test_the_interval_has_to_lie_below_the_limit_in_64_groups_four_of_them_varying():
    close = stacked(0.1 * uniform(1, 64), uniform(2, 64))  # 5.8 % ± 8.5
    assert effect(close).severity is Severity.NOTE
    for ignored in (0.12, 0.115):  # below 6 %, but not below 12 %; not below 5.75 %
        thresholds = Thresholds(ignored=ignored)
        assert not diagnosed(close, thresholds=thresholds).findings
    clear = stacked(0.05 * uniform(1, 64), uniform(2, 64))
    assert effect(clear).kind is Kind.IGNORED
    assert not diagnosed(clear[:63]).findings
    for live, kinds in ((3, []), (4, [Kind.IGNORED])):
        rare = clear.copy()
        rare[live:, :, 0] = 0.0
        assert [f.kind for f in effects(diagnosed(rare))] == kinds


def test_each_threshold_moves_its_limit():
    rewards = stacked(0.2 * uniform(1, 1024), uniform(2, 1024))
    assert not diagnosed(rewards).findings
    for thresholds, kind, severity in (
        (Thresholds(ignored=0.5), Kind.IGNORED, Severity.NOTE),
        (Thresholds(ignored=0.5, least_share=0.2), Kind.IGNORED, Severity.WARNING),
        (Thresholds(reversed=-0.3), Kind.REVERSED, Severity.WARNING),
    ):
        finding = effect(rewards, thresholds=thresholds)
        assert (finding.kind, finding.severity) == (kind, severity)


def rare_sums(live, share):
    groups = 1000
    table = np.zeros((len(Sums._fields), 2))
    rows = {"live": [live, groups], "applies": [groups] * 2, "influence": [share, 1 - share]}
    rows["weight"] = [groups / 2] * 2
    for name, row in rows.items():
        table[Sums._fields.index(name)] = row
    return Influence(("k", "o"), groups, Sums(*table), np.eye(2))


def test_the_own_variance_is_that_at_the_limit_as_far_as_the_number_of_groups_allows():
    limit, c = np.array([0.25, 0.25]), Look.at(0, 1).standard_errors
    factor = _variance_at(rare_sums(40, 0.2), limit, c)[0]
    assert factor == pytest.approx(0.25 * 0.8 / (0.2 * 0.75))
    capped = _variance_at(rare_sums(4, 0.01), limit, c)[0]
    most = 4 + c**2 / 2 + c * np.sqrt(4 + c**2 / 4)
    assert capped == pytest.approx(most / 4)
    # Wilson: the bound is c standard errors above 4, at its own rate.
    assert (most - 4) / np.sqrt(most) == pytest.approx(c)
    assert _variance_at(rare_sums(1000, 0.01), limit, c)[0] == 1
    assert _variance_at(rare_sums(4, 0.4), limit, c)[0] == 1
    assert _variance_at(rare_sums(4, 0.0), np.array([-0.05] * 2), c)[0] == 1
    assert np.isfinite(_variance_at(rare_sums(0, 0.0), limit, c)[0])


def test_few_varying_groups_must_show_more_in_a_running_run():
    for live, std in ((5, 0.4), (12, 0.3)):
        rare = diagnosed(batch(std=std, varies=live / 64, groups=64))
        for look, kinds in ((Look(), {"k": Kind.IGNORED}), (Look.at(0, 1), {})):
            assert _kinds(rare.influence, look, Thresholds()) == kinds


def test_a_measurement_shows_what_was_noticed_or_a_milder_kind_or_none():
    def measured(of, rewards):
        influence = diagnosed(rewards).influence
        shown = as_measured(Noticed(of, ("k",)), influence, Thresholds())
        return None if shown is None else shown.kind

    small, large = batch(std=0.05, groups=64), batch(groups=64)
    against = batch(std=0.2, against=1.2, groups=64)
    assert measured(Kind.REVERSED, against) is Kind.REVERSED
    assert measured(Kind.REVERSED, small) is measured(Kind.IGNORED, small) is Kind.IGNORED
    for of in (Kind.REVERSED, Kind.IGNORED, Kind.CONSTANT):
        assert measured(of, large) is None


def test_the_sizes_of_the_rewards_of_one_batch_are_a_reading_without_a_declared_range():
    assert "if the sizes of the rewards say what matters (0.1 : 1)" in effect(batch(std=0.1)).remedy
    declared = effect(batch(std=0.1), low=[0, 0], high=[0.2, 1]).remedy
    assert declared.endswith("(0.2 : 1): nothing to do")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_reward_with_under_a_tenth_of_the_largest_weight_is_a_note(sign):
    """It may be pushed against its weight as long as the others pay for it."""
    rewards = stacked(uniform(1, 2000), uniform(2, 2000)) - 0.5
    for weight, severity in ((0.11, Severity.WARNING), (0.09, Severity.NOTE)):
        for share, kind in ((-0.1, Kind.REVERSED), (0.0, Kind.IGNORED)):
            advantages = rewards @ [sign * share, 1]
            options = {"estimator": None, "advantages": advantages}
            finding = effect(rewards, [sign * weight, 1], **options)
            assert (finding.kind, finding.severity) == (kind, severity)
    kept = effect(rewards, [sign * 0.09, 1], thresholds=Thresholds(nudge=0.08), **options)
    assert kept.severity is Severity.WARNING


@pytest.mark.parametrize("sign", [1, -1])
def test_a_reward_at_the_good_end_of_its_declared_range_has_no_effect_finding(sign):
    learned = np.ones((1024, 8))
    learned[:113, 0] = 0
    learned = learned if sign > 0 else 1 - learned
    rewards = stacked(learned, uniform(1, 1024))
    assert effect(rewards, [sign, 1]).kind in OF_INFLUENCE
    bad, outside = ((0, 30), (0, 0.5)) if sign > 0 else ((-30, 1), (0.5, 1))
    for name, bounds in (("learned", (0, 1)), ("bad end", bad), ("outside", outside)):
        low, high = {"k": bounds[0]}, {"k": bounds[1]}
        found = diagnosed(rewards, [sign, 1], low=low, high=high)
        assert bool(effects(found)) == (name != "learned")


def test_a_declared_range_that_is_far_wider_than_the_variation_shows_no_reward_as_learned():
    assert effect(batch(std=0.1), low={"k": -1000}, high={"k": 0.1}).kind is Kind.IGNORED
    influence = diagnose(batch(std=0.1), None, NAMES).influence
    assert learned_rewards(influence, {"k": Range(-9, 0.1, declared=False)}, Thresholds()) == ()


def test_a_reward_without_a_weight_is_neither_constant_nor_learned():
    rewards = stacked(np.zeros((100, 8)), uniform(1, 100))
    found = diagnose(rewards, [0, 1], NAMES, low=[0, 0], high=[1, 1])
    assert not [finding for finding in found.findings if "k" in finding.rewards]
    assert learned_rewards(found.influence, found.ranges, Thresholds()) == ()


def test_the_factors_count_the_size_of_a_share_that_is_negative():
    rewards = stacked(uniform(1), uniform(2))
    found = diagnosed(rewards, None, None, advantages=rewards @ [0.05, -0.95])
    ignored, reversed_ = sorted(effects(found), key=lambda f: f.rewards)
    assert (ignored.kind, reversed_.kind) == (Kind.IGNORED, Kind.REVERSED)
    factors = prod(ignored.evidence[f"factor_{cause.value}"] for cause in Cause)
    evidence = ignored.evidence
    assert factors == pytest.approx(evidence["influence_share"] / evidence["weight_share"])


def test_a_watched_reward_that_is_pushed_changes_no_finding_about_the_others():
    rewards = batch(std=0.1)
    pushed = np.concatenate([rewards, -rewards.sum(axis=-1, keepdims=True)], axis=-1)
    found = diagnose(pushed, [1, 1, 0], [*NAMES, "watched"], estimator="grpo")
    assert found.rewards[2].influence_share < -0.3
    (finding,) = effects(found)
    alone = effect(rewards)
    assert (finding.kind, finding.rewards, finding.causes) == (alone.kind, ("k",), alone.causes)
    assert finding.evidence == pytest.approx(alone.evidence)


def test_a_single_reward_may_be_reversed():
    rewards = uniform(1)[..., None]
    (finding,) = diagnose(
        rewards, None, ["k"], estimator=None, advantages=-rewards[..., 0]
    ).findings
    assert (finding.kind, finding.causes) == (Kind.REVERSED, (Cause.RANGE,))


def test_the_smallest_factor_is_the_cause_if_none_is_small():
    rewards = batch(there=0.63, varies=0.72, std=0.8, groups=1024)
    finding = effect(rewards, thresholds=Thresholds(ignored=0.5))
    assert min(finding.evidence[f"factor_{cause.value}"] for cause in Cause) > 0.75
    assert finding.causes == (Cause.SPARSE,)
