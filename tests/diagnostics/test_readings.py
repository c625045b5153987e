"""What the weights may mean, and which setting gives each meaning."""

from dataclasses import replace

import numpy as np
import pytest
from tests.diagnostics.healthy import stacked

from gdpo.diagnostics import diagnose
from gdpo.diagnostics.diagnosis import Range
from gdpo.diagnostics.readings import Meaning, Reading, ScoredSteps, readings_of, replayed

NAMES = ["correct", "style"]
GROUPS = 256
EQUAL = (Meaning.EQUAL, [1, 1])


def uniform(seed, groups=GROUPS):
    return np.random.default_rng(seed).random((groups, 8))


SPARSE = (uniform(1) < 0.04).astype(float)
"""1 at a rate of 4 %: it varies in few groups, with a standard deviation of 0.35."""


DENSE = uniform(2)
COIN = DENSE < 0.5


def said(second, weights=None, purpose=None, *, first=SPARSE, **ranges):
    """The readings of the sparse reward, or the first one, beside a second one."""
    rewards = stacked(first, second)
    found = diagnose(rewards, weights, NAMES, estimator="grpo")
    known = {**found.ranges, **{name: Range(*ends) for name, ends in ranges.items()}}
    return readings_of(found.influence, known, purpose)


def as_pairs(readings):
    return [(each.meaning, list(each.weights.values())) for each in readings]


def test_equal_weights_may_mean_that_all_count_equally_or_as_their_sizes_say():
    wide = 4 * COIN
    assert as_pairs(said(wide)) == [EQUAL, (Meaning.SIZES, [0.25, 1])]
    assert as_pairs(said(wide, [-2, -2])) == [
        (Meaning.EQUAL, [-1, -1]),
        (Meaning.SIZES, [-0.25, -1]),
    ]
    assert as_pairs(said(wide, correct=(0, 4))) == [EQUAL]


@pytest.mark.parametrize(("width", "count"), [(1.45, 1), (1.55, 2)])
def test_sizes_are_another_reading_only_if_they_differ_by_more_than_half(width, count):
    assert len(said(COIN, correct=(0, width))) == count


def test_a_dense_reward_has_at_most_its_size_beside_a_sparse_one():
    """Else, a policy could give up the sparse one to earn it."""
    (only,) = said(0.05 * DENSE)
    assert (only.meaning, only.dense, only.less) == (Meaning.EQUAL, ("style",), ("style",))
    assert list(only.weights.values()) == [1, 0.05]
    assert only.small == ("style",)
    assert only.condition == (
        "if the rewards should count equally (but `style` less: a policy can earn it by "
        "giving up the others)"
    )
    large, _ = said(4 * DENSE)
    assert (large.dense, large.less, large.weights["style"]) == (("style",), (), 1)
    varies = np.where(np.arange(GROUPS)[:, None] < 0.8 * GROUPS, DENSE, 0)
    assert not said(0.1 * varies)[0].dense
    spread = 0.05 * COIN  # its standard deviation is half of its range
    assert (said(spread)[0].weights["style"], said(spread)[0].dense) == (1, ())
    for other in (0.1 * uniform(3), np.ones((GROUPS, 8))):  # dense, too; constant
        both, *_ = said(0.2 * DENSE, first=other)
        assert (both.less, list(both.weights.values())) == ((), [1, 1])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_graded_penalty_counts_for_0_3_at_most_also_in_few_groups(sign):
    rare = np.where(np.arange(GROUPS)[:, None] < 0.5 * GROUPS, DENSE, 0)
    for size, weight, small in ((4, 0.3, ()), (0.1, 0.1, ("style",))):
        (equal, *_) = said(-sign * size * rare, [1, sign])
        assert equal.weights == {"correct": 1, "style": pytest.approx(sign * weight, rel=0.02)}
        assert (equal.dense, equal.less, equal.small) == (("style",), ("style",), small)
        assert not said(sign * size * rare, [1, sign])[0].dense
    assert not said(-sign * COIN, [1, sign])[0].dense


def test_weights_that_differ_or_that_the_user_gives_are_the_purpose():
    wide = 4 * DENSE
    assert as_pairs(said(wide, [1, 3])) == [(Meaning.WEIGHTS, [0.33, 1])]
    assert as_pairs(said(wide, [1, -3])) == [(Meaning.WEIGHTS, [0.33, -1])]
    assert as_pairs(said(wide, purpose=Meaning.WEIGHTS)) == [(Meaning.WEIGHTS, [1, 1])]
    assert said(wide, [1, 3])[0].condition == "if the weights say what matters"
    assert said(0.05 * DENSE, [1, 1], Meaning.WEIGHTS)[0].dense == ("style",)


def test_sizes_are_the_only_reading_if_the_user_says_so_whatever_the_weights():
    (only,) = said(4 * COIN, [1, 1], Meaning.SIZES)
    assert as_pairs([only]) == [(Meaning.SIZES, [0.25, 1])]
    assert only.condition == "if the sizes of the rewards say what matters (1 : 4)"
    assert as_pairs(said(COIN, [1, 3], Meaning.SIZES)) == [(Meaning.SIZES, [0.33, 1])]
    assert as_pairs(said(COIN, None, Meaning.SIZES)) == [EQUAL]


def test_one_trained_reward_has_no_reading():
    assert said(DENSE, [1, 0]) == said(DENSE, [0, 0]) == ()


def test_a_reward_without_a_known_range_has_no_size():
    assert as_pairs(said(4 * COIN, correct=())) == [EQUAL]
    assert said(4 * COIN, None, Meaning.SIZES, correct=()) == ()
    assert as_pairs(said(4 * COIN, first=np.ones((GROUPS, 8)))) == [EQUAL]


@pytest.mark.parametrize("weights", [[1, 1], [-1, 1], np.tile([[1, 1], [np.nan, 1]], (128, 1))])
def test_a_replayed_share_is_what_the_diagnosis_gives_with_that_setting(weights):
    rewards = stacked(0.1 * uniform(1), DENSE)
    rewards[np.random.default_rng(3).random((GROUPS, 8)) < 0.2, 0] = np.nan
    found = diagnose(rewards, weights, NAMES, estimator="grpo")
    for reading in readings_of(found.influence, found.ranges):
        seen = replayed(reading, [found.scored])
        new = np.where(np.isnan(weights), np.nan, list(reading.weights.values()))
        for one in diagnose(rewards, new, NAMES, estimator="gdpo").rewards:
            assert seen.shares[one.name] == pytest.approx(
                (one.influence_share, one.influence_margin)
            )
        assert seen.groups == GROUPS
        assert replace(seen, shares={}, groups=0) == reading


def test_steps_are_replayed_one_by_one_also_with_one_group_and_another_reward():
    rewards = stacked(0.1 * uniform(1, 40), uniform(2, 40))
    steps = [diagnose(rewards[[g]], None, NAMES) for g in range(40)]
    steps.append(diagnose(rewards[:2, :, 1:], None, ["style"]))
    reading = Reading(Meaning.EQUAL, {"correct": 1.0, "style": 1.0})
    seen = replayed(reading, [step.scored for step in steps])
    # In the step without the reward, the other one has its influence.
    own = sum(step.influence.sums.influence[0] for step in steps[:-1])
    all_ = sum(step.influence.sums.influence.sum() for step in steps)
    assert seen.shares["correct"][0] == pytest.approx(own / all_, abs=1e-12)
    assert seen.groups == 42
    assert replayed(reading, []) == reading


def test_a_reading_says_the_setting_and_the_share_that_every_reward_would_have():
    shares = {"correct": (0.48, 0.03), "style": (0.52, 0.03)}
    reading = Reading(Meaning.EQUAL, {"correct": 1.0, "style": 1.0}, shares=shares)
    setting = "gdpo with reward_weights=[1, 1]"
    assert reading.setting == setting
    assert str(reading) == (
        f"if the rewards should count equally: {setting} (`correct` 48 % ± 3, `style` 52 % ± 3)"
    )
    assert str(replace(reading, shares={})).endswith(f"equally: {setting}")
    assert str(replace(reading, needed=False)).endswith("equally: nothing to do")
    sizes = {"correct": 1.0, "style": 2.0, "length": 3.0}
    many = replace(reading, sizes=sizes, dense=("style", "length"), less=("style", "length"))
    assert many.small == ()  # each is larger than the only other one
    two = replace(reading, less=("correct", "style")).condition
    assert "equally (but `correct` and `style` less: " in two


def test_long_runs_are_thinned_evenly():
    kept = ScoredSteps()
    step = diagnose(np.random.default_rng(0).random((64, 64, 2)), None, NAMES).scored
    for place in range(300):
        kept.add(replace(step, weights=place))
    assert sum(each.rewards.size for each in kept.steps) <= 2**18
    assert [each.weights for each in kept.steps] == list(range(0, 300, 16))
    few = ScoredSteps()
    for place in range(32):
        few.add(replace(step, weights=place))
    assert [each.weights for each in few.steps] == list(range(32))
    one = ScoredSteps()
    one.add(replace(step, rewards=np.zeros((600, 512, 1))))
    assert len(one.steps) == 1
