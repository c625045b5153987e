"""The diagnosis of each turn: by hand, against `diagnose`, and what must not change it."""

from math import nan

import numpy as np
import pytest

from gdpo.advantages import TURN_ESTIMATORS, gdpo
from gdpo.diagnostics import diagnose, diagnose_turns
from gdpo.diagnostics.turns import pooled_turns
from gdpo.errors import ConfigError, DataError

A, B = ["a"], ["a", "b"]


def simulated(prompts=16, samples=6):
    """Rewards that vary at every turn, and the number of turns of each rollout."""
    random = np.random.default_rng(0)
    counts = random.integers(1, 5, (prompts, samples))
    return random.standard_normal((prompts, samples, 4, 2)), counts


def diagnosed(rewards, counts, **options):
    return diagnose_turns(rewards, None, B, turns=counts, **options)


def assert_same(found, wanted):
    """Two diagnoses, or the numbers of a turn and the diagnosis of its batch, agree."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.groups == b.groups
        for number in ("zero_variance_groups", "influence_share", "influence_margin"):
            theirs = getattr(b, number)
            theirs = nan if theirs is None else theirs
            assert getattr(a, number) == pytest.approx(theirs, rel=1e-9, nan_ok=True)


# Two groups. In the first, two rollouts take a second turn; in the second, one does.
WORKED = np.array([[[1.0, 5.0], [0.0, 2.0], [4.0, nan]], [[1.0, 1.0], [3.0, nan], [2.0, nan]]])
COUNTS = np.array([[2, 2, 1], [2, 1, 1]])


def test_a_turn_is_diagnosed_with_the_returns_to_go_of_the_rollouts_that_took_it():
    a = np.array([[[1.0, 2.0], [0.5, -2.0], [-1.5, 9.0]], [[0.0, 7.0], [1.0, nan], [-1.0, nan]]])
    found = diagnose_turns(WORKED[..., None], None, A, turns=COUNTS, advantages=a, estimator=None)
    first, second = found.turns
    assert (first.turn, first.rollouts, first.alive, first.groups) == (1, 6, 1.0, 2)
    # Only the first group has two rollouts at turn 2; the third is not one of them.
    assert (second.turn, second.rollouts, second.alive, second.groups) == (2, 3, 0.5, 1)
    earned = np.array([[[6.0], [2.0], [4.0]], [[2.0], [3.0], [2.0]]])
    assert_same(first.rewards, diagnose(earned, None, A, advantages=a[:, :, 0]).rewards)
    later = np.array([[[5.0], [2.0], [nan]]])
    wanted = diagnose(later, None, A, advantages=np.array([[2.0, -2.0, 0.0]]))
    assert_same(second.rewards, wanted.rewards)


def test_a_turn_that_nobody_can_be_compared_at_has_no_numbers():
    rewards, counts = np.ones((2, 2, 3, 1)), [[3, 2], [3, 1]]
    turns = diagnose_turns(rewards, None, A, turns=counts).turns
    assert [(turn.groups, turn.alive) for turn in turns] == [(2, 1), (1, 0.75), (0, 0.5)]
    assert np.isnan(turns[2].rewards[0].zero_variance_groups)


def test_very_many_turns_are_not_diagnosed_one_by_one():
    rewards = np.zeros((2, 2, 20_000, 1))
    rewards[:, 0, -1] = 1.0
    found = diagnose_turns(rewards, None, A, turns=np.full((2, 2), 20_000))
    assert len(found.turns) == 100
    assert found.turns[0].rewards[0].zero_variance_groups == 0


@pytest.mark.parametrize("estimator", TURN_ESTIMATORS)
def test_an_estimator_for_turns_gives_the_advantages_of_each_turn(estimator):
    rewards, counts = simulated()
    a = TURN_ESTIMATORS[estimator](rewards, [1.0, 2.0], turns=counts)
    named = diagnose_turns(rewards, [1, 2], B, turns=counts, estimator=estimator)
    given = diagnose_turns(rewards, [1, 2], B, turns=counts, advantages=a)
    assert named.as_dict() == given.as_dict()


def test_the_advantage_of_a_rollout_counts_for_all_its_turns():
    rewards, counts = simulated()
    taken = np.arange(4) < counts[..., None]
    a = gdpo(np.sum(rewards * taken[..., None], axis=2), [1, 1])
    of_rollouts = diagnosed(rewards, counts, advantages=a)
    by_turn = np.repeat(a[..., None], 4, axis=2)
    of_turns = diagnosed(rewards, counts, advantages=by_turn)
    assert of_rollouts.as_dict() == of_turns.as_dict()
    named = diagnosed(rewards, counts, estimator="gdpo")
    for one, other in zip(named.turns, of_turns.turns, strict=True):
        assert_same(one.rewards, other.rewards)


def test_what_lies_beyond_the_last_turn_and_padding_do_not_matter():
    rewards, counts = simulated()
    wanted = diagnosed(rewards, counts)
    beyond = np.arange(4) >= counts[..., None]
    for value in (nan, np.inf, 1e9):
        other = np.where(beyond[..., None], value, rewards)
        assert diagnosed(other, counts).as_dict() == wanted.as_dict()
    padded = np.full((16, 8, 7, 2), 7.0)
    padded[:, :6, :4] = rewards
    found = diagnosed(padded, np.pad(counts, ((0, 0), (0, 2)))).turns
    for one, other in zip(found, wanted.turns, strict=True):
        assert (one.rollouts, one.alive) == (other.rollouts, other.alive)
        assert_same(one.rewards, other.rewards)


def test_a_reward_that_is_missing_at_a_turn_or_has_no_weight_there_is_left_out():
    rewards, counts = simulated(samples=2)
    counts[:], counts[:4] = 2, 1  # at turn 2, only the last twelve groups
    rewards[15, :, 1, 0] = nan
    weights = np.ones((16, 2))
    weights[:8, 1] = nan
    turns = diagnose_turns(rewards, weights, B, turns=counts).turns
    groups = [[reward.groups for reward in turn.rewards] for turn in turns]
    assert groups == [[15, 8], [11, 8]]


def test_float32_rewards_keep_their_rounding_error():
    """Sums of 0.1 in different orders differ by rounding, and do not count as varying."""
    values = np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]] * 2)
    rewards = np.tile(values, (4, 1, 1))[..., None].astype(np.float32)
    first, *_ = diagnose_turns(rewards, None, A, turns=np.full((4, 4), 3)).turns
    assert first.rewards[0].zero_variance_groups == 1


@pytest.mark.parametrize("dtype", [np.int64, np.float16])
def test_other_types_of_rewards_and_counts_give_the_same_numbers(dtype):
    rewards, counts = simulated()
    rewards = rewards > 0
    wanted = diagnosed(rewards.astype(float), counts)
    found = diagnosed(rewards.astype(dtype), counts.tolist())
    for one, other in zip(found.turns, wanted.turns, strict=True):
        for a, b in zip(one.rewards, other.rewards, strict=True):
            assert a.influence_share == pytest.approx(b.influence_share, abs=1e-5)
            assert a.zero_variance_groups == b.zero_variance_groups


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"turns": np.full((16, 6), 5)}, ConfigError, "from 0 to 4"),
        ({"turns": np.full((16, 5), 1).tolist()}, ConfigError, r"\(16, 5\)"),
        ({"turns": np.zeros((16, 6))}, DataError, "all 0"),
        ({"advantages": np.zeros((16, 6, 3))}, DataError, r"\(16, 6, 3\)"),
        ({"advantages": np.full((16, 6), nan)}, DataError, "finite"),
        ({"estimator": None}, ConfigError, "estimator="),
        ({"estimator": "turn_gpdo"}, ConfigError, "turn_gdpo"),
        ({"names": A}, ConfigError, "2 rewards"),
        ({"rewards": np.full((16, 6, 4, 2), np.inf)}, DataError, "'a' is inf at prompt 0"),
        ({"rewards": np.zeros((16, 6, 0, 2))}, DataError, r"\(16, 6, 0, 2\).*turn, reward"),
    ],
)
def test_mistakes_are_named(change, error, words):
    rewards, counts = simulated()
    counts[0, 0] = 4
    given = {"rewards": rewards, "weights": None, "names": B, "turns": counts, **change}
    with pytest.raises(error, match=words):
        diagnose_turns(**given)


def test_pooled_parts_are_the_whole_also_with_other_rewards_and_more_turns():
    rewards, counts = simulated(prompts=24)
    counts[:12] = np.minimum(counts[:12], 2)
    a = np.random.default_rng(1).standard_normal(rewards.shape[:3])

    def of(part, names=B):
        return diagnose_turns(rewards[part], [1, 2], names, turns=counts[part], advantages=a[part])

    one, other, whole = (of(p) for p in (slice(0, 12), slice(12, None), slice(None)))
    for found, wanted in zip(pooled_turns([one, other]).turns, whole.turns, strict=True):
        assert (found.rollouts, found.groups) == (wanted.rollouts, wanted.groups)
        assert_same(found.rewards, wanted.rewards)
    mixed = pooled_turns([one, of(slice(12, None), ["b", "c"])]).turns
    assert [reward.groups for reward in mixed[0].rewards] == [12, 24, 12]
    assert mixed[3].rewards[0].groups == 0


def test_the_table_and_the_dict_have_a_row_for_each_turn():
    rewards, counts = simulated(prompts=64)
    found = diagnosed(rewards, counts)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["turn", *"1234"]
    assert [turn["turn"] for turn in found.as_dict()["turns"]] == [1, 2, 3, 4]
    lonely = diagnose_turns(np.ones((2, 2, 2, 1)), None, A, turns=[[2, 1], [1, 1]])
    assert str(lonely).splitlines()[2].split() == ["2", "25", "%", "0", "–", "–"]
    assert lonely.as_dict()["turns"][1]["rewards"][0]["influence_share"] is None
