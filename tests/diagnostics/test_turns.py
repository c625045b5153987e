"""The diagnosis of each turn: by hand, against `diagnose`, and each finding with its neighbours."""

from math import nan

import numpy as np
import pytest
from tests.analysis.turn_rollouts import NAMES, per_turn

from gdpo.advantages import TURN_ESTIMATORS, gdpo, turn_gdpo
from gdpo.diagnostics import Thresholds, diagnose, diagnose_turns
from gdpo.diagnostics.diagnosis import Kind
from gdpo.diagnostics.turns import pooled_turns, to_go
from gdpo.errors import ConfigError, DataError

A, B = ["a"], ["a", "b"]


def simulated(seed=0, prompts=16, samples=6, longest=4, rewards=2):
    """Rewards that vary at every turn, and the number of turns of each rollout."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, longest + 1, (prompts, samples))
    return random.standard_normal((prompts, samples, longest, rewards)), counts


def to_go_of(rewards, counts):
    taken = np.arange(rewards.shape[2]) < counts[..., None]
    return to_go(rewards, taken, np.zeros((1, rewards.shape[-1]), bool))


def kinds(rewards, counts, names=NAMES, weights=None, **options):
    found = diagnose_turns(rewards, weights, names, turns=counts, **options).findings
    return {finding.kind for finding in found}


def the(kind, rewards, counts, names=NAMES, weights=None, **options):
    found = diagnose_turns(rewards, weights, names, turns=counts, **options).findings
    (finding,) = [finding for finding in found if finding.kind is kind]
    return finding


# Two groups. In the first, two rollouts take a second turn; in the second, one does.
WORKED = np.array([[[1.0, 5.0], [0.0, 2.0], [4.0, nan]], [[1.0, 1.0], [3.0, nan], [2.0, nan]]])
COUNTS = np.array([[2, 2, 1], [2, 1, 1]])


def test_a_turn_is_diagnosed_with_the_returns_to_go_of_the_rollouts_that_took_it():
    a = np.array([[[1.0, 2.0], [0.5, -2.0], [-1.5, 9.0]], [[0.0, 7.0], [1.0, nan], [-1.0, nan]]])
    found = diagnose_turns(WORKED[..., None], None, A, turns=COUNTS, advantages=a, estimator=None)
    first, second = found.turns
    assert (first.turn, first.alive, second.turn, second.alive) == (1, 1.0, 2, 0.5)
    earned = np.array([[[6.0], [2.0], [4.0]], [[2.0], [3.0], [2.0]]])
    wanted = diagnose(earned, None, A, advantages=a[:, :, 0], estimator=None)
    assert first.diagnosis.rewards == wanted.rewards
    assert first.diagnosis.prompts == 2
    # Only the first group has two rollouts at turn 2; the third is not one of them.
    later = np.array([[[5.0], [2.0], [nan]]])
    wanted = diagnose(later, None, A, advantages=np.array([[2.0, -2.0, 0.0]]), estimator=None)
    assert second.diagnosis.rewards == wanted.rewards
    assert (second.diagnosis.prompts, second.diagnosis.rollouts) == (1, 2)
    assert first.diagnosis.findings == second.diagnosis.findings == ()


def test_a_turn_that_nobody_can_be_compared_at_has_no_diagnosis():
    rewards, counts = np.ones((2, 2, 3, 1)), [[3, 2], [3, 1]]
    turns = diagnose_turns(rewards, None, A, turns=counts).turns
    assert [turn.diagnosis is None for turn in turns] == [False, False, True]
    assert [turn.alive for turn in turns] == [1, 0.75, 0.5]


def test_very_many_turns_are_not_diagnosed_one_by_one():
    rewards = np.zeros((2, 2, 20_000, 1))
    rewards[:, 0, -1] = 1.0
    found = diagnose_turns(rewards, None, A, turns=np.full((2, 2), 20_000))
    assert len(found.turns) == len(found.sums.alive) == 100
    assert found.turns[0].diagnosis.rewards[0].zero_variance_groups == 0


@pytest.mark.parametrize("estimator", TURN_ESTIMATORS)
def test_an_estimator_for_turns_gives_the_advantages_of_each_turn(estimator):
    rewards, counts = simulated()
    a = TURN_ESTIMATORS[estimator](rewards, [1.0, 2.0], turns=counts)
    named = diagnose_turns(rewards, [1, 2], B, turns=counts, estimator=estimator)
    given = diagnose_turns(rewards, [1, 2], B, turns=counts, advantages=a, estimator=estimator)
    assert named == given
    assert named.turns[0].diagnosis.estimator == estimator


def test_the_advantage_of_a_rollout_counts_for_all_its_turns():
    rewards, counts = simulated()
    a = gdpo(to_go_of(rewards, counts)[:, :, 0], [1, 1])
    of_rollouts = diagnose_turns(rewards, None, B, turns=counts, advantages=a, estimator="gdpo")
    named = diagnose_turns(rewards, None, B, turns=counts, estimator="gdpo")
    by_turn = np.repeat(a[..., None], 4, axis=2)
    of_turns = diagnose_turns(rewards, None, B, turns=counts, advantages=by_turn, estimator="gdpo")
    assert of_rollouts == named == of_turns


def test_with_one_turn_the_numbers_are_those_of_diagnose():
    rewards, _ = simulated(longest=1)
    a = turn_gdpo(rewards, [1, 1], turns=np.ones((16, 6)))
    (turn,) = diagnose_turns(rewards, None, B, turns=np.ones((16, 6))).turns
    wanted = diagnose(rewards[:, :, 0], None, B, advantages=a[:, :, 0], estimator="turn_gdpo")
    assert turn.diagnosis.rewards == wanted.rewards


def test_what_lies_beyond_the_last_turn_does_not_matter():
    rewards, counts = simulated()
    wanted = diagnose_turns(rewards, None, B, turns=counts)
    beyond = np.arange(4) >= counts[..., None]
    for value in (nan, np.inf, 1e9):
        other = np.where(beyond[..., None], value, rewards)
        assert diagnose_turns(other, None, B, turns=counts) == wanted
    padded = np.concatenate([rewards, np.full((16, 6, 3, 2), nan)], axis=2)
    assert diagnose_turns(padded, None, B, turns=counts) == wanted


def test_a_reward_that_is_missing_at_a_turn_is_left_out_for_the_rollout():
    rewards, counts = simulated()
    counts[:] = 3
    rewards[0, 0, 1, 0] = nan
    turns = diagnose_turns(rewards, None, B, turns=counts).turns
    assert len(turns) == 3
    for turn in turns:
        assert [reward.missing for reward in turn.diagnosis.rewards] == [1 / 96, 0]


def test_padding_is_no_rollout():
    rewards, counts = simulated()
    wide = np.full((16, 8, 4, 2), 7.0)
    wide[:, :6] = rewards
    padded = np.pad(counts, ((0, 0), (0, 2)))
    wanted, found = (
        diagnose_turns(r, None, B, turns=c) for r, c in ((rewards, counts), (wide, padded))
    )
    for one, other in zip(wanted.turns, found.turns, strict=True):
        assert one.alive == other.alive
        for a, b in zip(one.diagnosis.rewards, other.diagnosis.rewards, strict=True):
            assert b.influence_share == pytest.approx(a.influence_share)
            assert b.zero_variance_groups == a.zero_variance_groups


def test_a_weight_of_nan_leaves_the_reward_out_of_the_prompt():
    rewards, counts = simulated()
    counts[:], counts[:4] = 2, 1  # at turn 2, only the last twelve groups
    weights = np.ones((16, 2))
    weights[:8, 1] = nan
    found = diagnose_turns(rewards, weights, B, turns=counts)
    groups = [[reward.groups for reward in turn.diagnosis.rewards] for turn in found.turns]
    assert groups == [[16, 8], [12, 8]]
    assert [each.rollouts for each in found.sums.rewards.values()] == [96, 48]
    b = list(found.sums.rewards.values())[1]
    assert b.lowest == np.min(to_go_of(rewards, counts)[8:, :, 0, 1])


def test_float32_rewards_keep_their_rounding_error():
    """Sums of 0.1 in different orders differ by rounding, and do not count as varying."""
    values = np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]] * 2)
    rewards = np.tile(values, (4, 1, 1))[..., None].astype(np.float32)
    first, *_ = diagnose_turns(rewards, None, A, turns=np.full((4, 4), 3)).turns
    assert first.diagnosis.rewards[0].zero_variance_groups == 1


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float16])
def test_other_types_of_rewards_and_counts_give_the_same_numbers(dtype):
    rewards, counts = simulated()
    rewards = rewards > 0
    wanted = diagnose_turns(rewards.astype(float), None, B, turns=counts)
    found = diagnose_turns(rewards.astype(dtype), None, B, turns=counts.tolist())
    for one, other in zip(found.turns, wanted.turns, strict=True):
        for a, b in zip(one.diagnosis.rewards, other.diagnosis.rewards, strict=True):
            assert a.influence_share == pytest.approx(b.influence_share, abs=1e-5)
            assert a.zero_variance_groups == b.zero_variance_groups


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"turns": np.full((16, 6), 5)}, ConfigError, "from 0 to 4"),
        ({"turns": np.full((16, 6), 1.5)}, ConfigError, "integers from 0"),
        ({"turns": np.full((16, 5), 1).tolist()}, ConfigError, r"\(16, 5\)"),
        ({"turns": np.zeros((16, 6))}, DataError, "all 0"),
        ({"advantages": np.zeros((16, 6, 3))}, DataError, r"\(16, 6, 3\)"),
        ({"advantages": np.full((16, 6), nan)}, DataError, "finite"),
        ({"estimator": None}, ConfigError, "estimator="),
        ({"estimator": "turn_gpdo"}, ConfigError, "turn_gdpo"),
    ],
)
def test_mistakes_are_named(change, error, words):
    rewards, counts = simulated()
    counts[0, 0] = 4
    with pytest.raises(error, match=words):
        diagnose_turns(rewards, None, B, **{"turns": counts, **change})


def test_an_infinite_reward_and_wrong_shapes_are_named():
    rewards, counts = simulated()
    rewards[3, 2, 0, 1] = np.inf
    with pytest.raises(DataError, match="'b' is inf at prompt 3, sample 2, turn 0"):
        diagnose_turns(rewards, None, B, turns=counts)
    with pytest.raises(DataError, match=r"\(16, 6, 0, 2\).*turn, reward"):
        diagnose_turns(rewards[:, :, :0], None, B, turns=counts)
    with pytest.raises(ConfigError, match="2 rewards"):
        diagnose_turns(rewards, None, A, turns=counts)


def varying_later(groups, varying):
    """Two turns; the first reward varies at turn 1, and at turn 2 in so many groups."""
    rewards = np.zeros((groups, 4, 2, 1))
    rewards[:, :2, 0, 0] = 1.0
    rewards[:varying, 0, 1, 0] = 1.0
    return rewards, np.full((groups, 4), 2)


@pytest.mark.parametrize(
    ("groups", "varying", "reported"),
    [(39, 0, False), (40, 0, True), (59, 1, False), (60, 1, True), (80, 2, True), (80, 3, False)],
)
def test_a_share_that_two_more_groups_would_change_is_not_reported(groups, varying, reported):
    found = kinds(*varying_later(groups, varying), A)
    assert (Kind.CONSTANT_TURNS in found) == reported


def test_later_turns_of_few_groups_do_not_hide_that_earlier_ones_are_constant():
    """60 groups at turn 2 and 1 at turn 3, in which the reward varies."""
    rewards, counts = varying_later(60, 0)
    rewards = np.concatenate([rewards, np.zeros((60, 4, 1, 1))], axis=2)
    counts[0] = 3
    rewards[0, 0, 2] = 1.0
    assert the(Kind.CONSTANT_TURNS, rewards, counts, A).evidence["turn"] == 1


def test_if_no_reward_varies_at_any_turn_the_turns_are_not_to_blame():
    rewards, counts = simulated(prompts=64)
    assert kinds(np.ones_like(rewards), np.full_like(counts, 4), B) == set()


def test_a_reward_that_is_paid_on_few_turns_is_not_paid_per_turn():
    counts, rewards = per_turn(np.random.default_rng(0), 64, pays=2.0, rate=0.9)
    assert kinds(rewards, counts) == {Kind.TURN_COUNT}
    rewards[..., 0][rewards[..., 0] == 0] = -0.1  # taken away is not paid
    assert kinds(rewards, counts) == {Kind.TURN_COUNT}


def test_a_reward_without_influence_is_not_blamed():
    counts, rewards = per_turn(np.random.default_rng(0), 600, pays=0.03, rate=0.9)
    assert kinds(rewards, counts, estimator="grpo") == set()
    assert kinds(rewards, counts, estimator="gdpo") == {Kind.TURN_COUNT}
    any_share = Thresholds(turn_count_influence=0.0)
    found = kinds(rewards, counts, estimator="grpo", thresholds=any_share)
    assert found == {Kind.TURN_COUNT}


def test_a_reward_that_is_outweighed_by_a_cost_of_turns_does_not_make_more_turns_better():
    random = np.random.default_rng(0)
    counts, rewards = per_turn(random, 64, pays=1.0, rate=0.5)
    rewards[..., 1] = -0.8
    first = diagnose_turns(rewards, None, NAMES, turns=counts, estimator="grpo").turns[0]
    assert first.diagnosis.rewards[0].influence_share > 0.1
    finding = the(Kind.TURN_COUNT, rewards, counts, estimator="grpo")
    assert finding.rewards == ("correct",)


@pytest.mark.parametrize(
    ("groups", "longer_earns", "longer_is_better", "reported"),
    [
        (16, 16, 16, True),
        (15, 15, 15, False),  # too few groups
        (16, 14, 16, True),
        (16, 12, 16, False),  # a correlation of 0.5, which is 2.2 standard errors
        (16, 16, 12, False),  # the same of the advantages
    ],
)
def test_a_correlation_that_few_groups_do_not_show_clearly_is_not_reported(
    groups, longer_earns, longer_is_better, reported
):
    """Groups of a rollout of one turn and one of two, in which one earns 1."""
    rewards, advantages = np.zeros((groups, 2, 2, 1)), np.tile([1.0, -1.0], (groups, 1))
    rewards[:longer_earns, 1, 0] = rewards[longer_earns:, 0, 0] = 1.0
    advantages[:longer_is_better] *= -1
    counts = np.tile([1, 2], (groups, 1))
    found = kinds(rewards, counts, A, advantages=advantages)
    assert (Kind.TURN_COUNT in found) == reported


def test_the_correlation_with_the_number_of_turns_is_that_within_groups():
    """Against loops, with a reward that is missing from some rollouts and constant in a group."""
    rewards, counts = simulated(seed=3, prompts=12, rewards=1)
    rewards[2, 1, 0] = nan
    counts[5] = 2
    rewards[6] = 0.0
    products, degrees = [], []
    for group, turns in zip(rewards[..., 0], counts, strict=True):
        totals = np.array([r[:n].sum() for r, n in zip(group, turns, strict=True)])
        known = ~np.isnan(totals)
        x, y = totals[known], turns[known].astype(float)
        if np.ptp(x) > 0 and np.ptp(y) > 0:
            z, v = ((each - each.mean()) / each.std(ddof=1) for each in (x, y))
            products.append(np.sum(z * v))
            degrees.append(len(x) - 1)
    p, d = np.array(products), np.array(degrees)
    rho = p.sum() / d.sum()
    error = np.sqrt(len(p) / (len(p) - 1) * np.sum((p - rho * d) ** 2)) / d.sum()
    pairs = diagnose_turns(rewards, None, A, turns=counts).sums.rewards["a"].with_turns
    assert pairs.groups == len(p) == 10
    assert pairs.correlation == pytest.approx(rho)
    assert pairs.error == pytest.approx(error)


@pytest.mark.slow
def test_the_interval_of_the_correlation_covers_it():
    """The true correlation is that of very many groups; 1.96 standard errors cover 95 %."""

    def pairs(seed, groups):
        counts, rewards = per_turn(np.random.default_rng(seed), groups, pays=1.0, rate=0.6)
        found = diagnose_turns(rewards, None, NAMES, turns=counts, estimator="gdpo")
        return found.sums.rewards["format"].with_turns

    truth = pairs(10**6, 5000).correlation
    runs = [pairs(seed, 32) for seed in range(60)]
    covered = sum(abs(run.correlation - truth) <= run.margin for run in runs)
    assert 52 <= covered <= 60


def test_sums_of_parts_are_the_sums_of_the_whole():
    rewards, counts = simulated(prompts=24)
    counts[:12] = np.minimum(counts[:12], 2)
    a = np.random.default_rng(1).standard_normal(rewards.shape[:3])

    def sums(part):
        found = diagnose_turns(rewards[part], [1, 2], B, turns=counts[part], advantages=a[part])
        return found.sums

    whole = sums(slice(None))
    parts = pooled_turns([sums(slice(0, 12)), sums(slice(12, None))])
    assert (parts.groups, parts.rollouts) == (whole.groups, whole.rollouts) == (24, 144)
    assert parts.alive.tolist() == whole.alive.tolist()
    assert parts.advantages == pytest.approx(whole.advantages)
    for name, one in parts.rewards.items():
        (*sums_of_one, pairs), (*sums_of_whole, of_whole) = one, whole.rewards[name]
        assert sums_of_one == pytest.approx(sums_of_whole)
        assert pairs == pytest.approx(of_whole)
    for one, other in zip(parts.influences, whole.influences, strict=True):
        assert one.shares == pytest.approx(other.shares)


def test_steps_with_other_rewards_and_more_turns_are_pooled():
    rewards, counts = simulated(longest=2)
    one = diagnose_turns(rewards, None, B, turns=counts).sums
    more, longer = simulated(seed=1, longest=5)
    other = diagnose_turns(more, None, ["b", "c"], turns=longer).sums
    both = pooled_turns([one, other])
    assert len(both.alive) == len(both.influences) == 5
    pairs, of_one, of_other = (
        {name: each.with_turns for name, each in sums.rewards.items()}
        for sums in (both, one, other)
    )
    assert (pairs["a"], pairs["c"]) == (of_one["a"], of_other["c"])
    assert pairs["b"].groups == of_one["b"].groups + 16
    rollouts = {name: each.rollouts for name, each in both.rewards.items()}
    assert rollouts == {"a": 96, "b": 192, "c": 96}
    assert both.rewards["a"].lowest == one.rewards["a"].lowest
