"""Less effect than the weight: what shows it, its causes, and the replayed remedies."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from gdpo.diagnostics import Thresholds, diagnose
from gdpo.diagnostics.diagnosis import Cause, Kind, Range, Remedy, Severity
from gdpo.diagnostics.effect import (
    EFFECT,
    Look,
    Noticed,
    ScoredSteps,
    _kinds,
    _variance_at,
    as_measured,
    best_remedy,
    learned_rewards,
    remedies,
)
from gdpo.diagnostics.influence import Influence, Sums

NAMES = ["k", "o"]


def uniform(seed, groups=256, samples=8):
    return np.random.default_rng(seed).random((groups, samples))


def batch(*, std=1.0, varies=1.0, there=1.0, against=0.0, groups=256, samples=8):
    """A reward, beside one that varies everywhere. The first differs in one respect or more."""
    random, other = np.random.default_rng(0), uniform(1, groups, samples)
    reward = std * (uniform(2, groups, samples) - against * other)
    reward[: round(groups * (1 - varies))] = 0.0
    reward[random.random(reward.shape) >= there] = np.nan
    return np.stack([reward, other], axis=-1)


def effect(rewards, weights=None, estimator="grpo", **options):
    found = diagnose(rewards, weights, NAMES, estimator=estimator, **options).findings
    (finding,) = [each for each in found if each.kind in EFFECT]
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
    rewards, weights, estimator, causes, words = PLANTED[which]
    finding = effect(rewards, weights, estimator)
    assert finding.causes == causes
    assert words in finding.message
    factors = {c: finding.evidence[f"factor_{c.value}"] for c in Cause}
    ratio = finding.evidence["influence_share"] / finding.evidence["weight_share"]
    assert prod(factors.values()) == pytest.approx(max(ratio, 0), rel=1e-12)
    assert all((factors[cause] < 0.75) == (cause in causes) for cause in Cause)


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
        rewards = np.stack([uniform(1), std * uniform(2)], axis=-1)
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
    rewards = np.stack([uniform(1, 2000), uniform(2, 2000)], axis=-1) - 0.5
    advantages = rewards @ [sign * share, 1 - abs(share)]
    found = diagnose(rewards, [sign, 1], NAMES, estimator=None, advantages=advantages).findings
    seen = [(f.kind, f.severity) for f in found if f.kind in EFFECT]
    assert seen == ([(kind, severity)] if kind else [])
    if kind is Kind.IGNORED:
        assert ("is ignored" in found[0].message) == (severity is Severity.WARNING)
    if kind is Kind.REVERSED:
        assert ("pushed down" if sign > 0 else "pushed up") in found[0].message


def test_the_interval_has_to_lie_below_the_limit_in_64_groups_four_of_them_varying():
    close = np.stack([0.1 * uniform(1, 64), uniform(2, 64)], axis=-1)  # 5.8 % ± 8.5
    assert effect(close).severity is Severity.NOTE
    for ignored in (0.12, 0.115):  # below 6 %, but not below 12 %; not below 5.75 %
        thresholds = Thresholds(ignored=ignored)
        assert not diagnose(close, None, NAMES, estimator="grpo", thresholds=thresholds).findings
    clear = np.stack([0.05 * uniform(1, 64), uniform(2, 64)], axis=-1)
    assert effect(clear).kind is Kind.IGNORED
    assert not diagnose(clear[:63], None, NAMES, estimator="grpo").findings
    for live, kinds in ((3, []), (4, [Kind.IGNORED])):
        rare = clear.copy()
        rare[live:, :, 0] = 0.0
        found = diagnose(rare, None, NAMES, estimator="grpo").findings
        assert [f.kind for f in found if f.kind in EFFECT] == kinds


def test_each_threshold_moves_its_limit():
    rewards = np.stack([0.2 * uniform(1, 1024), uniform(2, 1024)], axis=-1)
    assert not diagnose(rewards, None, NAMES, estimator="grpo").findings
    for thresholds, kind, severity in (
        (Thresholds(ignored=0.5), Kind.IGNORED, Severity.NOTE),
        (Thresholds(ignored=0.5, least_share=0.2), Kind.IGNORED, Severity.WARNING),
        (Thresholds(reversed=-0.3), Kind.REVERSED, Severity.WARNING),
    ):
        finding = effect(rewards, thresholds=thresholds)
        assert (finding.kind, finding.severity) == (kind, severity)


def rare_sums(live, share, groups=1000):
    table = np.zeros((len(Sums._fields), 2))
    rows = {"live": [live, groups], "applies": [groups] * 2, "influence": [share, 1 - share]}
    rows["weight"] = [groups / 2] * 2
    for name, row in rows.items():
        table[Sums._fields.index(name)] = row
    return Influence(("k", "o"), groups, Sums(*table), np.eye(2))


def test_the_own_variance_is_that_at_the_limit_as_far_as_the_number_of_groups_allows():
    limit, look = np.array([0.25, 0.25]), Look.at(0, 1)
    c = look.errors
    factor = _variance_at(rare_sums(40, 0.2), limit, look)[0]
    assert factor == pytest.approx(0.25 * 0.8 / (0.2 * 0.75))
    capped = _variance_at(rare_sums(4, 0.01), limit, look)[0]
    most = 4 + c**2 / 2 + c * np.sqrt(4 + c**2 / 4)
    assert capped == pytest.approx(most / 4)
    # Wilson: the bound is c standard errors above 4, at its own rate.
    assert (most - 4) / np.sqrt(most) == pytest.approx(c)
    assert _variance_at(rare_sums(1000, 0.01), limit, look)[0] == 1
    assert _variance_at(rare_sums(4, 0.4), limit, look)[0] == 1
    assert _variance_at(rare_sums(4, 0.0), np.array([-0.05] * 2), look)[0] == 1
    assert np.isfinite(_variance_at(rare_sums(0, 0.0), limit, look)[0])


def test_few_varying_groups_must_show_more_in_a_running_run():
    for live, std in ((5, 0.4), (12, 0.3)):
        rare = diagnose(batch(std=std, varies=live / 64, groups=64), None, NAMES, estimator="grpo")
        for look, kinds in ((Look(), {"k": Kind.IGNORED}), (Look.at(0, 1), {})):
            assert _kinds(rare.influence, look, Thresholds()) == kinds


def test_a_measurement_shows_what_was_noticed_or_a_milder_kind_or_none():
    def measured(of, rewards):
        influence = diagnose(rewards, None, NAMES, estimator="grpo").influence
        shown = as_measured(Noticed(of, ("k",)), influence, Thresholds())
        return None if shown is None else shown.kind

    small, large = batch(std=0.05, groups=64), batch(groups=64)
    against = batch(std=0.2, against=1.2, groups=64)
    assert measured(Kind.REVERSED, against) is Kind.REVERSED
    assert measured(Kind.REVERSED, small) is measured(Kind.IGNORED, small) is Kind.IGNORED
    for of in (Kind.REVERSED, Kind.IGNORED, Kind.CONSTANT):
        assert measured(of, large) is None


REPLAYED = {
    "plain": (batch(std=0.1), [1, 1]),
    "NaN": (batch(std=0.1, there=0.6), [1, 1]),
    "negative weight": (batch(std=0.1), [-1, 1]),
    "weights per prompt": (
        batch(std=0.05),
        np.tile([[1.0, 1], [2, 1], [np.nan, 1], [1, 3]], (64, 1)),
    ),
}


@pytest.mark.parametrize("which", REPLAYED)
def test_a_replayed_share_is_what_the_diagnosis_gives_with_that_setting(which):
    rewards, weights = REPLAYED[which]
    finding = effect(rewards, weights)
    assert {(each.estimator, each.factor > 1) for each in finding.remedies} == {
        ("gdpo", False),
        ("per_reward_batch_std", False),
        ("grpo", True),
    }
    for remedy in finding.remedies:
        raised = np.array(weights, float) * np.array([remedy.factor, 1])
        one = diagnose(rewards, raised, NAMES, estimator=remedy.estimator).rewards[0]
        assert remedy.share == pytest.approx(one.influence_share, abs=1e-12)
        assert remedy.margin == pytest.approx(one.influence_margin, abs=1e-9)
        assert remedy.groups == 256
    assert [r.share for r in finding.remedies] == sorted(
        (r.share for r in finding.remedies), reverse=True
    )


def test_no_setting_is_tried_without_replays():
    tried, plain = (effect(batch(std=0.1), replays=each) for each in (True, False))
    assert tried.remedies
    assert not plain.remedies
    assert (plain.kind, plain.message) == (tried.kind, tried.message)


def test_the_smallest_factor_that_reaches_the_limit_is_tried_and_none_that_does_not():
    (raised,) = [r for r in effect(batch(std=0.1)).remedies if r.factor > 1]
    assert (raised.factor, raised.share > 0.25) == (5, True)
    smaller = diagnose(batch(std=0.1), [3, 1], NAMES, estimator="grpo").rewards[0]
    assert smaller.influence_share < 0.25
    assert not [r for r in effect(batch(std=0.001)).remedies if r.factor > 1]


def test_steps_are_replayed_one_by_one_also_with_one_group_and_another_reward():
    rewards = batch(std=0.1, groups=40)
    steps = [diagnose(rewards[[g]], None, NAMES, estimator="grpo") for g in range(40)]
    other = diagnose(rewards[:2, :, 1:], None, ["o"], estimator="grpo")
    scored = [step.scored for step in (*steps, other)]
    found = {r.estimator: r for r in remedies(scored, "k", 0.25) if r.factor == 1}
    each = [diagnose(rewards[[g]], None, NAMES, estimator="gdpo").influence for g in range(40)]
    sums = np.sum([one.sums.influence for one in each], axis=0)
    # In the step without the reward, the other one has its influence.
    alone = diagnose(rewards[:2, :, 1:], None, ["o"], estimator="gdpo").influence.sums.influence
    share = sums[0] / (sums.sum() + alone.sum())
    assert found["gdpo"].share == pytest.approx(share, abs=1e-12)
    assert found["gdpo"].groups == 42
    # Of two rewards that vary in the only group of a step, both have half, without an error.
    (only, *_) = (r for r in remedies(scored[:-1], "k", 0.25) if r.estimator == "gdpo")
    assert only.margin == pytest.approx(0, abs=1e-6)
    assert remedies([other.scored], "k", 0.25) == ()


def test_what_was_used_is_not_proposed_and_the_weight_is_raised_for_a_known_estimator():
    under = diagnose(batch(varies=0.2), None, NAMES, estimator="gdpo").scored
    tried = {(r.estimator, r.factor > 1) for r in remedies([under], "k", 0.25)}
    assert tried == {("per_reward_batch_std", False), ("gdpo", True)}
    known = diagnose(batch(std=0.1), None, NAMES, estimator="grpo").scored
    unknown = replace(known, estimator="of_a_user")
    for steps in ([unknown], [replace(known, estimator="mo_grpo"), known]):
        assert ("grpo", True) in {(r.estimator, r.factor > 1) for r in remedies(steps, "k", 0.25)}


def test_a_setting_helps_if_it_gives_enough_or_twice_as_much_and_its_interval_shows_more():
    sure, unsure, none = (Remedy("gdpo", 1, 0.3, margin) for margin in (0.04, 0.12, np.nan))
    raised = Remedy("grpo", 3, 0.4, 0.05)
    assert best_remedy([sure, raised], 0.2, 0.02, 0.25) == sure
    assert best_remedy([unsure, raised], 0.2, 0.02, 0.25) == raised
    assert best_remedy([unsure, none], 0.2, 0.02, 0.25) is None
    assert best_remedy([unsure], 0.11, 0.02, 0.25) == unsure
    assert best_remedy([sure], 0.14, 0.02, 0.4) == sure
    assert best_remedy([sure], 0.16, 0.02, 0.4) is None
    assert best_remedy([sure], 0.05, 0.26, 0.4) is None
    small = Remedy("gdpo", 1, 0.1, 0.02)
    assert best_remedy([small, raised], 0.01, 0.02, 0.25) == raised
    assert best_remedy([Remedy("gdpo", 1, 0.02, 0.03)], -0.1, 0.02, 0.25) is None
    close, other = Remedy("gdpo", 1, 0.24, 0.02), Remedy("per_reward_batch_std", 1, 0.3, 0.04)
    assert best_remedy([raised, close], 0.05, 0.02, 0.25) == close
    assert best_remedy([other, sure], 0.05, 0.02, 0.25) == sure


def test_the_advice_is_a_setting_that_helps():
    ranged = effect(batch(std=0.1)).remedy
    assert ranged.startswith("use the estimator gdpo. On the same groups, `k` would have: gdpo ")
    assert "partial credit" not in ranged
    sparse = effect(RARE, estimator="gdpo").remedy
    assert sparse.startswith("use the estimator per_reward_batch_std. On the same groups, `k` ")
    assert ", gdpo with 5 times the weight 36 %" in sparse
    assert sparse.endswith(
        "easier prompts or partial credit may help more, but a replay cannot show this"
    )
    opposed = effect(batch(against=1.2), [1, 2], "gdpo").remedy
    assert opposed.startswith("with the estimator gdpo, multiply the weight of `k` by 2. On the ")
    assert "`k` would have: gdpo with 2 times the weight" in opposed
    assert opposed.endswith("Or gate the other rewards on it")


def test_a_warm_start_is_advised_only_where_no_setting_helps_and_the_reward_is_at_its_bottom():
    rewards = batch(against=1.2)
    for bounds, warm in (((-0.8, 20), True), ((-20, 20), False), (None, False)):
        low, high = (None, None) if bounds is None else ([bounds[0], 0], [bounds[1], 1])
        finding = effect(rewards, [0.01, 1], "gdpo", low=low, high=high)
        assert finding.remedy.startswith(
            "no replayed setting is certain to help. On the same groups, "
        )
        assert not any(remedy.share >= 0.5 * 0.01 / 1.01 for remedy in finding.remedies)
        assert all(str(remedy) in finding.remedy for remedy in finding.remedies)
        assert ("Warm-start" in finding.remedy) == warm
        assert ("by more than 20" in finding.remedy) != warm
    helped = effect(batch(std=0.1), low={"k": 0}, high={"k": 100})
    assert "arm-start" not in helped.remedy


def test_long_runs_are_thinned_evenly():
    kept = ScoredSteps()
    step = diagnose(np.random.default_rng(0).random((64, 64, 2)), None, NAMES).scored
    for _ in range(300):
        kept.add(step)
    assert sum(each.rewards.size for each in kept.steps.values()) <= 2**18
    assert list(kept.steps) == list(range(0, 300, 16))
    few = ScoredSteps()
    for _ in range(32):
        few.add(step)
    assert list(few.steps) == list(range(32))
    one = ScoredSteps()
    one.add(replace(step, rewards=np.zeros((600, 512, 1))))
    assert list(one.steps) == [0]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_reward_at_the_good_end_of_its_declared_range_has_no_effect_finding(sign):
    learned = np.ones((1024, 8))
    learned[:113, 0] = 0
    learned = learned if sign > 0 else 1 - learned
    rewards = np.stack([learned, uniform(1, 1024)], axis=-1)
    assert effect(rewards, [sign, 1]).kind in EFFECT
    bad, outside = ((0, 30), (0, 0.5)) if sign > 0 else ((-30, 1), (0.5, 1))
    for name, bounds in (("learned", (0, 1)), ("bad end", bad), ("outside", outside)):
        low, high = {"k": bounds[0]}, {"k": bounds[1]}
        found = diagnose(rewards, [sign, 1], NAMES, estimator="grpo", low=low, high=high).findings
        assert any(f.kind in EFFECT for f in found) == (name != "learned")


def test_a_declared_range_that_is_far_wider_than_the_variation_shows_no_reward_as_learned():
    assert effect(batch(std=0.1), low={"k": -1000}, high={"k": 0.1}).kind is Kind.IGNORED
    influence = diagnose(batch(std=0.1), None, NAMES).influence
    assert learned_rewards(influence, {"k": Range(-9, 0.1, declared=False)}, Thresholds()) == ()


def test_a_reward_without_a_weight_is_neither_constant_nor_learned():
    rewards = np.stack([np.zeros((100, 8)), uniform(1, 100)], axis=-1)
    found = diagnose(rewards, [0, 1], NAMES, low=[0, 0], high=[1, 1])
    assert not [finding for finding in found.findings if "k" in finding.rewards]
    assert learned_rewards(found.influence, found.ranges, Thresholds()) == ()


def test_the_factors_count_the_size_of_a_share_that_is_negative():
    rewards = np.stack([uniform(1), uniform(2)], axis=-1)
    found = diagnose(rewards, None, NAMES, estimator=None, advantages=rewards @ [0.05, -0.95])
    ignored, reversed_ = sorted(
        (f for f in found.findings if f.kind in EFFECT), key=lambda f: f.rewards
    )
    assert (ignored.kind, reversed_.kind) == (Kind.IGNORED, Kind.REVERSED)
    factors = prod(ignored.evidence[f"factor_{cause.value}"] for cause in Cause)
    evidence = ignored.evidence
    assert factors == pytest.approx(evidence["influence_share"] / evidence["weight_share"])


def test_a_watched_reward_that_is_pushed_changes_no_finding_about_the_others():
    rewards = batch(std=0.1)
    pushed = np.concatenate([rewards, -rewards.sum(axis=-1, keepdims=True)], axis=-1)
    found = diagnose(pushed, [1, 1, 0], [*NAMES, "watched"], estimator="grpo")
    assert found.rewards[2].influence_share < -0.3
    (finding,) = [each for each in found.findings if each.kind in EFFECT]
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
