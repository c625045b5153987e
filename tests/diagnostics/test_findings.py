"""Each finding: a batch that has it, and one nearby that does not."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.diagnostics.healthy import HEALTHY, false_alarms, stacked

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.diagnosis import Kind, Severity

NAN = np.nan
UNIT = {"low": [0, 0], "high": [1, 1]}
A, B = ["a"], ["a", "b"]
SIZE = 64, 8


def rng(seed=0):
    return np.random.default_rng(seed)


def uniform(seed=0, prompts=64, samples=8):
    return rng(seed).random((prompts, samples))


FIRST, SECOND = uniform(1), uniform(2)


def varies_in(groups, reward, *, otherwise):
    """The reward in its first groups, and a constant in the others."""
    result = np.full_like(reward, otherwise)
    result[:groups] = reward[:groups]
    return result


def found(kind, rewards, names, weights=None, **options):
    """The findings of one kind."""
    diagnosis = diagnose(rewards, weights, names, **options)
    return [finding for finding in diagnosis.findings if finding.kind is kind]


def the(kind, *arguments, **options):
    (finding,) = found(kind, *arguments, **options)
    return finding


def assert_says(finding, severity, rewards, *words):
    assert (finding.severity, *finding.rewards) == (severity, *rewards)
    assert all(word in finding.message for word in words)


def kinds(*arguments, **options):
    return {finding.kind for finding in diagnose(*arguments, **options).findings}


def test_a_reward_that_is_constant_at_the_top_of_its_range_is_saturated():
    format_ = varies_in(6, FIRST < 0.7, otherwise=True)
    batch = stacked(format_, SECOND)
    finding = the(Kind.SATURATED, batch, ["format", "style"], **UNIT)
    assert_says(finding, Severity.NOTE, ["format"], "`format`", "91 %", "0.971", "top", "learned")
    assert "remove" not in finding.remedy
    assert finding.evidence["zero_variance_groups"] == 58 / 64
    more = stacked(varies_in(7, FIRST < 0.7, otherwise=True), SECOND)
    assert not found(Kind.SATURATED, more, B, **UNIT)


@pytest.mark.parametrize("value", [5.0, -5.0])
def test_a_constant_outside_of_its_declared_range_is_neither_learned_nor_out_of_reach(value):
    batch = stacked(np.full(SIZE, value), SECOND)
    finding = the(Kind.CONSTANT, batch, ["format", "style"], **UNIT)
    assert all(word in finding.message for word in ("`format`", f"{value:.3g}", "[0, 1]"))


def right_in_the_first(counts):
    """1 for so many samples of each group, else 0."""
    return (np.arange(8) < np.array(counts)[:, None]).astype(float)


@pytest.mark.parametrize(
    ("constant", "lost", "zero_variance"), [(1e4, 0, 0), (1e5, 0.5, 0.5), (3e5, 1, 1), (1e6, 1, 1)]
)
def test_signal_below_the_resolution_of_its_type_is_a_finding(constant, lost, zero_variance):
    """4 of 8 right in half of the groups and 1 of 8 in the others, on top of a constant."""
    batch = stacked(constant + right_in_the_first([4] * 8 + [1] * 8), uniform(2, 16))
    assert not found(Kind.BELOW_RESOLUTION, batch, B)
    single = batch.astype(np.float32)
    diagnosis = diagnose(single, None, B)
    assert diagnosis.rewards[0].below_resolution == lost
    assert diagnosis.rewards[0].zero_variance_groups == zero_variance
    findings = found(Kind.BELOW_RESOLUTION, single, B)
    assert bool(findings) == bool(lost)
    for finding in findings:
        words = "`a`", f"{100 * lost:.0f} %", "float32", "rounding"
        assert_says(finding, Severity.WARNING, ["a"], *words)
        assert "float64" in finding.remedy
        assert finding.evidence["below_resolution"] == lost
    assert not found(Kind.CONSTANT, single, B)


def test_rounding_of_the_reward_itself_is_reported_too_but_not_in_few_groups():
    thirds = np.where(right_in_the_first([4] * 16) > 0, 0.1 + 0.2, 0.3)
    batch = stacked(thirds, uniform(2, 16))
    finding = the(Kind.BELOW_RESOLUTION, batch, B)
    assert "float64" in finding.message
    assert "float64" not in finding.remedy
    assert "round" in finding.remedy
    rarely = stacked(varies_in(1, thirds, otherwise=0.3), uniform(2, 16))
    assert Kind.BELOW_RESOLUTION not in kinds(rarely, None, B)
    assert the(Kind.BELOW_RESOLUTION, batch[:3], B).severity is Severity.NOTE


def test_missing_values_differ_from_nothing():
    batch = stacked(1e6 + right_in_the_first([1] * 16), uniform(2, 16)).astype(np.float32)
    batch[:, 0, 0] = NAN  # the one that was right
    batch[:4, :, 0] = NAN
    assert diagnose(batch, None, B).rewards[0].below_resolution == 0
    batch[4:8, 1, 0] += 1
    assert diagnose(batch, None, B).rewards[0].below_resolution == 4 / 12
    assert diagnose(batch[:4], None, B).rewards[0].below_resolution is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.96, Kind.SATURATED),
        (0.94, Kind.CONSTANT),
        (0.06, Kind.CONSTANT),
        (0.04, Kind.OUT_OF_REACH),
    ],
)
def test_the_position_of_a_constant_reward_in_its_range_gives_one_of_three_kinds(value, kind):
    batch = stacked(np.full(SIZE, value), uniform())
    bounds = {"low": {"a": 0}, "high": {"a": 1}}
    three = {Kind.SATURATED, Kind.CONSTANT, Kind.OUT_OF_REACH}
    assert three & kinds(batch, None, B, **bounds) == {kind}
    assert the(kind, batch, B, **bounds).rewards == ("a",)


def test_out_of_reach_and_constant_are_warnings_and_the_unknown_range_is_asked_for():
    batch = stacked(np.zeros(SIZE), uniform())
    out = the(Kind.OUT_OF_REACH, batch, B, **UNIT)
    assert out.severity is Severity.WARNING
    assert out.remedy == (
        "check the function first: print what it gives to three rollouts. If it is right, samples "
        "that earn it are too rare for the policy to learn it"
    )
    constant = the(Kind.CONSTANT, batch, B)
    assert constant.severity is Severity.WARNING
    assert all(
        word in constant.line
        for word in ("Check the", "(low, high)", "At its best value, 0 is learned", "At its worst")
    )
    known = the(Kind.CONSTANT, batch, B, low=[-1, 0], high=[1, 1])
    assert not any(word in known.line for word in ("(low, high)", "best", "worst"))
    assert known.remedy.endswith("If it is right, it does not train the policy")
    rare = the(
        Kind.OUT_OF_REACH,
        stacked(varies_in(1, 0.1 * FIRST, otherwise=0), uniform()),
        B,
        **UNIT,
    )
    assert rare.remedy == "samples that earn it are too rare for the policy to learn it"
    assert "saturation" not in constant.evidence


@pytest.mark.parametrize(
    ("groups", "severity"), [(35, Severity.NOTE), (36, Severity.WARNING), (64, Severity.WARNING)]
)
def test_a_share_of_few_groups_is_only_a_note(groups, severity):
    """In 36 groups, a reward that varies in a tenth varies in none in 2.3 % of the cases."""
    batch = stacked(np.zeros((groups, 8)), uniform(prompts=groups))
    assert the(Kind.CONSTANT, batch, B).severity is severity
    assert the(Kind.OUT_OF_REACH, batch, B, **UNIT).severity is severity
    assert the(Kind.NO_SIGNAL, batch[:, :, :1], A).severity is severity


def test_groups_that_a_reward_does_not_apply_to_are_none_of_its_handful():
    reward = np.full(SIZE, NAN)
    reward[:6] = 0.0
    assert the(Kind.CONSTANT, stacked(reward, uniform()), B).severity is Severity.NOTE


def test_a_reward_that_is_missing_everywhere_never_applies():
    batch = stacked(np.full(SIZE, NAN), uniform())
    finding = the(Kind.NEVER_APPLIES, batch, B)
    assert_says(finding, Severity.WARNING, ["a"])
    batch[0, 0, 0] = 1.0
    assert not found(Kind.NEVER_APPLIES, batch, B)


def test_a_reward_that_is_missing_nearly_everywhere_is_noted():
    a = uniform(1, 50, 8)
    a[5:] = NAN
    finding = the(Kind.MOSTLY_MISSING, stacked(a, uniform(2, 50, 8)), B)
    assert_says(finding, Severity.NOTE, ["a"], "`a`", "missing", "90 %")
    a[5] = 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8
    assert not found(Kind.MOSTLY_MISSING, stacked(a, uniform(2, 50, 8)), B)


def test_a_reward_with_a_smaller_std_is_ignored_under_grpo_and_not_under_gdpo():
    batch = stacked(20 * FIRST, SECOND)
    names = ["steps", "style"]
    finding = the(Kind.IGNORED, batch, names, estimator="grpo")
    assert_says(finding, Severity.WARNING, ["style"], "`style`", "50 %", "of `steps`", "20 times")
    assert finding.remedy.startswith(
        "if the rewards should count equally: gdpo with reward_weights=[1, 1]; if the sizes of the "
        "rewards say what matters (20 : 1): nothing to do"
    )
    assert abs(finding.evidence["influence_share"]) < 0.1
    assert not diagnose(batch, None, names).findings


def test_a_reward_that_has_little_influence_because_its_weight_asks_for_it_is_no_finding():
    batch = stacked(FIRST, SECOND)
    heavy = diagnose(batch, [30, 1], B, estimator="grpo")
    assert heavy.rewards[0].influence_share > 0.9
    assert not heavy.findings


def test_a_weight_that_is_nearly_zero_asks_for_nothing():
    batch = stacked(20 * FIRST, 20 * SECOND, 0.01 * uniform(3), 0.01 * uniform(4))
    finding = the(Kind.IGNORED, batch, list("abcd"), [1e200] * 3 + [1e-200], estimator="grpo")
    assert finding.rewards == ("c",)


def test_each_ignored_reward_is_found_whichever_other_one_dominates():
    tiny = [0.001 * uniform(seed) for seed in (3, 4)]
    batch = stacked(20 * FIRST, 20 * SECOND, *tiny)
    findings = found(Kind.IGNORED, batch, list("abcd"), estimator="grpo")
    shares = [finding.evidence["influence_share"] for finding in findings]
    assert {finding.rewards for finding in findings} == {("c",), ("d",)}
    assert shares == sorted(shares)
    near = stacked(3 * FIRST, 3 * SECOND, uniform(3))
    assert not diagnose(near, None, ["a", "b", "style"], estimator="grpo").findings


def test_a_reward_that_has_its_share_is_not_ignored_where_a_few_groups_have_all_advantages():
    """Not normalized, one group has 200 times the advantages of the others."""
    batch = stacked(rng().normal(size=(256, 8)))
    batch[0] *= 200
    assert Kind.IGNORED not in kinds(batch, None, A, estimator="grpo_no_std")
    silent = stacked(FIRST, SECOND)
    assert Kind.IGNORED not in kinds(silent, None, B, advantages=np.zeros(SIZE))


@pytest.mark.parametrize("size", [1e-200, 1e-170, 1e155, 1e200])
def test_the_unit_of_recorded_advantages_makes_no_finding(size):
    batch = stacked(FIRST, SECOND)
    advantages = size * (batch.sum(axis=-1) - 1)
    found = kinds(batch, None, B, estimator=None, advantages=advantages)
    assert not found & {Kind.IGNORED, Kind.REVERSED}


def test_a_reward_is_reversed_if_those_that_it_is_against_outweigh_it():
    batch = stacked(FIRST, 0.9 * FIRST + 0.3 * SECOND, -FIRST + 0.4 * uniform(3))
    finding = the(Kind.REVERSED, batch, list("abc"), [1, 1, 0.5])
    assert_says(finding, Severity.WARNING, ["c"], "`c`", "down", "positive", "64 groups")
    assert not found(Kind.REVERSED, batch, list("abc"), [1, 1, -0.5])
    heavier = found(Kind.REVERSED, batch, list("abc"), [0.3, 0.3, 1.5])
    assert {finding.rewards for finding in heavier} == {("a",), ("b",)}


def test_a_wrong_sign_within_the_noise_or_without_a_share_is_no_finding():
    seen = [found(Kind.REVERSED, rng(s).random((64, 4, 2)), B, [1, 0.05]) for s in range(50)]
    assert not any(seen)
    slightly_against = stacked(uniform(1, 4096), 8 * uniform(2, 4096) - uniform(1, 4096))
    assert -0.04 < diagnose(slightly_against, [1, 0.08], B).rewards[1].influence < -0.02
    assert not found(Kind.REVERSED, slightly_against, B, [1, 0.08])


@pytest.mark.parametrize(("share", "opposed"), [(0.7, True), (0.3, False)])
def test_strongly_negative_correlation_is_opposition(share, opposed):
    batch = stacked(FIRST, -share * FIRST + (1 - share) * SECOND)
    findings = found(Kind.OPPOSED, batch, B)
    assert bool(findings) == opposed
    if opposed:
        assert (findings[0].severity, findings[0].rewards) == (Severity.WARNING, ("a", "b"))
        assert findings[0].evidence["correlation"] < -0.5


@pytest.mark.parametrize(
    ("sign", "weights", "kind"),
    [
        (1, [1, 1], Kind.REDUNDANT),
        (1, [1, -2], Kind.OPPOSED),
        (1, [1, 0], None),
        (-1, [1, 1], Kind.OPPOSED),
        (-1, [1, -2], Kind.REDUNDANT),
        (-1, [-1, -2], Kind.OPPOSED),
        (-1, [0, 1], None),
    ],
)
def test_a_pair_is_opposed_or_redundant_in_what_is_asked_and_signs_that_differ_are_named(
    sign, weights, kind
):
    findings = diagnose(stacked(FIRST, sign * FIRST + 0.02 * SECOND), weights, B).findings
    of_pairs = [f for f in findings if f.kind in (Kind.REDUNDANT, Kind.OPPOSED)]
    assert [finding.kind for finding in of_pairs] == [kind] * (kind is not None)
    for finding in of_pairs:
        assert ("opposite signs" in finding.message) == (weights[0] * weights[1] < 0)
        assert f"{finding.evidence['correlation']:.2f}" in finding.message


def test_rewards_that_nearly_say_the_same_are_redundant_and_those_that_often_do_are_not():
    finding = the(Kind.REDUNDANT, stacked(FIRST, FIRST + 0.2 * SECOND), B)
    assert_says(finding, Severity.WARNING, ["a", "b"])
    assert finding.remedy == "together, they count as one reward with both weights"
    assert not found(Kind.REDUNDANT, stacked(FIRST, FIRST + 0.5 * SECOND), B)


def test_a_correlation_over_few_samples_shows_nothing():
    batch = stacked([[0, 1], [1, 0], [0, 1]], [[1, 0], [0, 1], [1, 0]])
    assert diagnose(batch, None, B).correlation[0][1] == pytest.approx(-1)
    assert not found(Kind.OPPOSED, batch, B)
    assert found(Kind.OPPOSED, np.tile(batch, (4, 1, 1)), B)


def test_nine_of_ten_groups_without_signal_are_too_many():
    """As a note, if chance may explain them."""
    for live, share, severity in (
        (1, "98 %", Severity.WARNING),
        (2, "97 %", Severity.NOTE),
        (6, "90 %", Severity.NOTE),
    ):
        batch = stacked(varies_in(live, uniform(1, 60), otherwise=0.5))
        finding = the(Kind.NO_SIGNAL, batch, A)
        assert_says(finding, severity, [], f"{share} of the 60 groups", "exactly 0")
    assert not found(Kind.NO_SIGNAL, stacked(varies_in(7, uniform(1, 60), otherwise=0.5)), A)


def test_weights_of_zero_give_no_signal_and_the_remedy_names_the_weight():
    finding = the(Kind.NO_SIGNAL, stacked(uniform(), FIRST), B, [0, 0])
    assert "weight other than 0" in finding.remedy


def test_one_group_undoes_what_gdpo_adds_between_groups():
    batch = stacked(uniform(1, 1), uniform(2, 1) ** 3)
    finding = the(Kind.ONE_GROUP, batch, B)
    assert finding.severity is Severity.WARNING
    assert "mo_grpo" in finding.remedy
    padded = np.concatenate([batch, np.full((1, 3, 2), NAN)], axis=1)
    assert found(Kind.ONE_GROUP, padded, B)
    for without_batch_step in ("grpo", "grpo_no_std", "mo_grpo", "rloo"):
        assert not found(Kind.ONE_GROUP, batch, B, estimator=without_batch_step)
    assert not found(Kind.ONE_GROUP, stacked(uniform(1, 2), uniform(2, 2) ** 3), B)
    assert not found(Kind.ONE_GROUP, stacked(uniform(1, 1)), A)


def test_findings_come_worst_first_are_sentences_with_a_remedy_and_can_be_pickled():
    batch = stacked(np.full(SIZE, NAN), np.zeros(SIZE), np.ones(SIZE), FIRST, -FIRST)
    diagnosis = diagnose(batch, [1, 1, 1, 1, 0.9], list("abcde"), low=[0] * 5, high=[1] * 5)
    severities = [finding.severity for finding in diagnosis.findings]
    assert severities == sorted(severities, key=list(Severity).index)
    warnings = [f.kind for f in diagnosis.findings if f.severity is Severity.WARNING]
    assert warnings == sorted(warnings, key=list(Kind).index)
    assert {Kind.NEVER_APPLIES, Kind.REVERSED, Kind.OUT_OF_REACH, Kind.OPPOSED} <= set(warnings)
    for finding in diagnosis.findings:
        assert finding.remedy
        assert finding.message
        assert not finding.message.endswith(".")
        assert all(np.isfinite(value) for value in finding.evidence.values())
        assert all(f"`{name}`" in finding.message for name in finding.rewards[:1])
    assert pickle.loads(pickle.dumps(diagnosis.findings)) == diagnosis.findings


def test_a_warning_of_a_lesser_kind_comes_before_a_note_of_a_worse_one():
    x = uniform(1, 6, 16)
    findings = diagnose(stacked(np.zeros((6, 16)), x, 2 * x), None, list("abc")).findings
    assert [(f.kind, f.severity) for f in findings[:2]] == [
        (Kind.REDUNDANT, Severity.WARNING),
        (Kind.CONSTANT, Severity.NOTE),
    ]


def test_every_kind_of_finding_has_a_test():
    """The names in the files of this folder and of the runs are what `Kind` has."""
    files = Path(__file__).parents[1].glob("[ad]*s*/test_*.py")
    tested = "".join(file.read_text("utf-8") for file in files)
    assert [kind.name for kind in Kind if f"Kind.{kind.name}" not in tested] == []


@pytest.mark.parametrize("which", HEALTHY)
@pytest.mark.parametrize(("prompts", "samples"), [(32, 8), (64, 16)])
def test_a_healthy_batch_gives_no_warning(which, prompts, samples):
    assert false_alarms(which, prompts, samples, seeds=range(20)) == Counter()


@pytest.mark.slow
@pytest.mark.parametrize("which", HEALTHY)
def test_a_small_healthy_batch_hardly_ever_gives_one(which):
    assert false_alarms(which, 8, 4, seeds=range(100))["any"] <= 3
