"""The oracle of bias per turn agrees with closed forms, and names the mistake of each estimator."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from gdpo.advantages import (
    turn_broadcast,
    turn_gdpo,
    turn_group_centred,
    turn_index_centred,
)
from gdpo.errors import ConfigError, DataError
from gdpo.testing import TurnAgent, check_turn_estimator, measure_credit
from gdpo.testing._agents import (
    TurnTask,
    exact_gradient,
    example_agent,
    example_tasks,
    list_groups,
    list_rollouts,
    reaching_and_rewards,
)
from gdpo.testing._credit import mean_gradient, with_options
from gdpo.testing._credit_reasons import itself_in_mean, lone_gets_zero, reason_by_probing

ROLLOUTS = list_rollouts(example_agent())
SMALL = list_rollouts(example_agent(turns=3))
SIZES = pytest.mark.parametrize("size", [2, 3])


def masked(rewards, weights, turns):
    """The weighted rewards, 0 beyond the last turn, and the mask."""
    there = np.arange(rewards.shape[2]) < np.asarray(turns)[:, :, None]
    return np.where(there, np.where(there[..., None], rewards, 0) @ np.asarray(weights), 0), there


def to_go(earned, discount=1.0):
    g = earned.copy()
    for turn in range(g.shape[2] - 2, -1, -1):
        g[:, :, turn] += discount * g[:, :, turn + 1]
    return g


def alive_mean(rewards, weights, *, turns):
    """d0: the mean of the rollouts that take the turn, the rollout itself included."""
    earned, there = masked(rewards, weights, turns)
    mean = to_go(earned).sum(axis=1, keepdims=True) / np.maximum(there.sum(axis=1)[:, None], 1)
    return there * (to_go(earned) - mean)


def others_alive(rewards, weights, *, turns):
    """d1: the others that take the turn; the only rollout gets 0."""
    _, there = masked(rewards, weights, turns)
    n = there.sum(axis=1)[:, None]
    return alive_mean(rewards, weights, turns=turns) * n / np.maximum(n - 1, 1)


def trajectory_baseline(rewards, weights, *, turns, discount=1.0):
    """e: the return-to-go minus the mean total of the others."""
    earned, there = masked(rewards, weights, turns)
    total = to_go(earned, discount)[:, :, :1]
    others = (total.sum(axis=1, keepdims=True) - total) / (total.shape[1] - 1)
    return there * (to_go(earned, discount) - others)


def zero_after_the_end(rewards, weights, *, turns):
    """f: the return-to-go minus that of the others, which is 0 after their last turn."""
    earned, there = masked(rewards, weights, turns)
    g = to_go(earned)
    return there * (g - (g.sum(axis=1, keepdims=True) - g) / (g.shape[1] - 1))


def lone_against_totals(rewards, weights, *, turns):
    """d6: as d1, but the only rollout is compared with the mean total of the others."""
    _, there = masked(rewards, weights, turns)
    lone = there.sum(axis=1, keepdims=True) == 1
    a = others_alive(rewards, weights, turns=turns)
    return np.where(lone, trajectory_baseline(rewards, weights, turns=turns), a)


def with_itself(rewards, weights, *, turns):
    earned, there = masked(rewards, weights, turns)
    total = earned.sum(axis=2, keepdims=True)
    return there * (total - total.mean(axis=1, keepdims=True))


def with_a_later_reward(rewards, weights, *, turns):
    """Half of what the rollout itself earns at turn 3 is in its baseline of the first turns."""
    a = turn_broadcast(rewards, weights, turns=turns, scales=[1.0] * rewards.shape[3])
    earned, there = masked(rewards, weights, turns)
    a[:, :, :3] -= there[:, :, :3] * 0.5 * earned[:, :, 2:3]
    return a


# The lists


def test_the_example_has_31_rollouts_and_5456_groups_of_three():
    assert len(ROLLOUTS.probability) == 31
    impossible = TurnAgent(np.array([[[0.5, 0.5]], [[1.0, 0.0]]]))
    assert len(list_rollouts(impossible).probability) == 2
    groups, weight = list_groups(ROLLOUTS, 3)
    assert groups.shape == (5456, 3)
    assert abs(weight.sum() - 1) < 1e-12
    assert np.all(ROLLOUTS.turns == (ROLLOUTS.actions >= 0).sum(axis=1))


@SIZES
def test_a_group_has_the_probability_of_all_its_orders(size):
    groups, weight = list_groups(SMALL, size)
    wanted = dict.fromkeys(map(tuple, groups.tolist()), 0.0)
    for each in product(range(len(SMALL.probability)), repeat=size):
        wanted[tuple(sorted(each))] += np.prod(SMALL.probability[list(each)])
    np.testing.assert_allclose(weight, list(wanted.values()), rtol=1e-12)


@pytest.mark.parametrize("place", [(0, 0, 1), (1, 1, 0), (2, 0, 2), (3, 1, 1)])
def test_the_gradient_is_the_slope_of_the_expected_return(place):
    logits = np.log(example_agent().policy)

    def expected(change):
        moved = logits.copy()
        moved[place] += change
        policy = np.exp(moved) / np.exp(moved).sum(axis=2, keepdims=True)
        found = list_rollouts(TurnAgent(policy))
        return [
            found.probability @ task.rewards.sum(axis=1) @ task.weights
            for task in example_tasks(found)
        ]

    slopes = (np.array(expected(1e-5)) - expected(-1e-5)) / 2e-5
    for slope, task in zip(slopes, example_tasks(ROLLOUTS), strict=True):
        assert abs(exact_gradient(ROLLOUTS, task)[place] - slope) < 1e-9, task.name


def test_the_mean_and_the_variance_are_those_of_loops_over_ordered_groups():
    task = example_tasks(SMALL)[-1]
    subject = with_options(turn_group_centred, None, None)
    found = mean_gradient(subject, SMALL, task, *list_groups(SMALL, 2))
    gradients, chances = [], []
    for i, j in product(range(len(SMALL.probability)), repeat=2):
        a = subject(task.rewards[[i, j]][None], task.weights, turns=SMALL.turns[[i, j]][None])[0]
        each = a[:, :, None, None] * SMALL.score[[i, j]]
        gradients.append(each.sum(axis=0) / 2)
        chances.append(SMALL.probability[i] * SMALL.probability[j])
    mean = np.tensordot(chances, gradients, 1)
    np.testing.assert_allclose(found.gradient, mean, atol=1e-12)
    squares = [np.sum((each - mean) ** 2) for each in gradients]
    assert abs(found.variance - np.dot(chances, squares)) < 1e-12


@pytest.mark.parametrize("task", example_tasks(ROLLOUTS), ids=lambda task: task.name)
def test_the_two_parts_of_the_gradient_add_up(task):
    parts = sum(part.sum(axis=0) for part in reaching_and_rewards(ROLLOUTS, task))
    np.testing.assert_allclose(parts, exact_gradient(ROLLOUTS, task), atol=1e-12)


# Closed forms


def mean_of(estimator, task, size):
    subject = with_options(estimator, None, None)
    return mean_gradient(subject, ROLLOUTS, task, *list_groups(ROLLOUTS, size)).gradient


@SIZES
@pytest.mark.parametrize("task", example_tasks(ROLLOUTS), ids=lambda task: task.name)
def test_biased_estimators_have_the_means_of_their_closed_forms(task, size):
    wanted, q = exact_gradient(ROLLOUTS, task), ROLLOUTS.reached
    itself = 1 - (1 - (1 - q) ** size) / (size * q)
    others = 1 - (1 - q) ** (size - 1)
    _, earning = reaching_and_rewards(ROLLOUTS, task)
    for estimator, closed in (
        (alive_mean, itself[:, None, None] * wanted),
        (others_alive, others[:, None, None] * wanted),
        (with_itself, (1 - 1 / size) * wanted),
        (turn_index_centred, np.einsum("s,stxa->txa", itself, earning)),
    ):
        np.testing.assert_allclose(mean_of(estimator, task, size), closed, atol=1e-12)
    np.testing.assert_allclose(itself_in_mean(q, size), itself, rtol=1e-12)
    np.testing.assert_allclose(lone_gets_zero(q, size), others, rtol=1e-12)


@SIZES
@pytest.mark.parametrize("task", example_tasks(ROLLOUTS), ids=lambda task: task.name)
def test_unbiased_estimators_have_the_true_gradient(task, size):
    for estimator in (turn_gdpo, turn_broadcast, trajectory_baseline, zero_after_the_end):
        got = mean_of(estimator, task, size)
        np.testing.assert_allclose(got, exact_gradient(ROLLOUTS, task), atol=1e-12)


@SIZES
def test_the_smallest_case_of_the_lost_gradient(size):
    """Continuing has probability 1/2, and the second turn pays 1/2 (verl, pull request 7244)."""
    rollouts = list_rollouts(TurnAgent(np.array([[[0.5, 0.5]], [[1.0, 0.0]]])))
    second = np.where(np.arange(2) == 1, 0.5, 0.0) * (rollouts.actions >= 0)
    task = TurnTask("second", second[..., None])
    groups = list_groups(rollouts, size)
    for estimator, wanted in ((turn_gdpo, 0.125), (turn_index_centred, 0.0)):
        subject = with_options(estimator, None, None)
        mean = mean_gradient(subject, rollouts, task, *groups).gradient
        assert abs(mean[0, 0, 1] - wanted) < 1e-12


# The table


def test_a_table_has_the_bias_of_each_turn_and_reward():
    credit = measure_credit(turn_index_centred)
    assert [row.reward for row in credit.rows] == [task.name for task in example_tasks(ROLLOUTS)]
    for row, task in zip(credit.rows, example_tasks(ROLLOUTS), strict=True):
        wanted, got = exact_gradient(ROLLOUTS, task), mean_of(turn_index_centred, task, 3)
        length = np.linalg.norm(wanted)
        assert abs(row.bias - np.linalg.norm(got - wanted) / length) < 1e-12
        apart = np.linalg.norm(got - wanted, axis=(1, 2)) / length
        np.testing.assert_allclose(row.turn_bias, apart, atol=1e-12)
        assert row.worst_turn == apart.argmax() + 1
        cosine = np.sum(got * wanted) / (np.linalg.norm(got) or np.nan) / length
        np.testing.assert_allclose(np.cos(np.radians(row.degrees)), cosine, atol=1e-12)
    np.testing.assert_allclose(credit.reached, ROLLOUTS.reached)
    assert credit.worst.reward == "outcome + 1"


def test_variances_are_relative_to_the_broadcast_total():
    assert {round(row.variance, 9) for row in measure_credit(turn_broadcast).rows} == {1.0}
    rows = {row.reward: row for row in measure_credit(turn_gdpo).rows}
    assert rows["dense"].variance < 0.95


def test_the_variance_of_a_biased_reward_is_left_out():
    """Smaller gradients have less variance, so that it would look like an advantage."""
    for estimator in (turn_gdpo, turn_index_centred):
        credit = measure_credit(estimator)
        biased = {row.reward for row in credit.biased}
        assert len(biased) == (0 if estimator is turn_gdpo else 9)
        assert {reward for reward, *_, variance in credit.cells() if not variance} == biased


def test_own_rewards_without_a_return_to_go_are_named_as_the_reason():
    """With and without a baseline. Half of the later rewards is another mistake."""

    def own(rewards, weights, *, turns):
        return np.asarray(rewards) @ np.asarray(weights)

    def centred(rewards, weights, *, turns):
        values = own(rewards, weights, turns=turns)
        others = (values.sum(axis=1, keepdims=True) - values) / (values.shape[1] - 1)
        return values - others

    def halved(rewards, weights, *, turns):
        values = own(rewards, weights, turns=turns)
        later = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1] - values
        return values + later / 2

    for estimator in (own, centred):
        assert "return-to-go" in measure_credit(estimator).reason
    assert "0.5 instead of 1" in measure_credit(halved).reason


def test_any_factor_compares_directions():
    assert measure_credit(with_itself).worst.bias == pytest.approx(1 / 3)
    assert measure_credit(with_itself, any_factor=True).unbiased
    credit = measure_credit(alive_mean, any_factor=True)
    for row in credit.rows:
        assert row.bias == pytest.approx(np.sin(np.radians(row.degrees)))


def test_an_agent_of_the_caller_is_used():
    agent = TurnAgent(np.array([[[0.2, 0.8]], [[0.5, 0.5]]]))
    credit = measure_credit(turn_gdpo, agent=agent, size=5)
    assert credit.unbiased
    np.testing.assert_allclose(credit.reached, [1, 0.8])
    assert "delayed" in [row.reward for row in credit.rows]
    always = TurnAgent(np.array([[[0.0, 1.0]], [[0.5, 0.5]]]))
    assert "cost" not in [row.reward for row in measure_credit(turn_gdpo, agent=always).rows]


def test_an_agent_with_one_turn_works():
    credit = measure_credit(alive_mean, agent=example_agent(turns=1))
    assert "0.667" in credit.reason
    assert measure_credit(turn_gdpo, agent=example_agent(turns=1)).unbiased

    def halved(rewards, weights, *, turns):
        return alive_mean(rewards, weights, turns=turns) * 1.5 - 0.5 * rewards[..., 0]

    assert "0.5 instead of 1" in reason_by_probing(halved, 1)


def test_an_agent_without_a_choice_is_an_error():
    with pytest.raises(ConfigError, match="agent"):
        measure_credit(turn_gdpo, agent=TurnAgent(np.array([[[1.0, 0.0]]])))


def test_single_precision_needs_a_small_accepted_bias():
    def single(rewards, weights, *, turns):
        return turn_gdpo(
            rewards.astype(np.float32), weights, turns=turns, scales=[1.0] * len(weights)
        )

    check_turn_estimator(single, bias=1e-5)
    assert measure_credit(single).worst.bias < 1e-6
    assert "single precision" in measure_credit(single).reason


def test_groups_without_signal_are_measured():
    assert measure_credit(turn_gdpo).no_signal == 0
    assert measure_credit(turn_gdpo).equal_outcome == 0
    assert measure_credit(trajectory_baseline).no_signal == 3
    assert measure_credit(lone_against_totals).no_signal == 2
    assert measure_credit(turn_group_centred).no_signal == 1.5
    assert measure_credit(turn_index_centred).no_signal == 0
    assert measure_credit(turn_index_centred).equal_outcome > 0.5


# Statistics of the batch


@pytest.mark.slow
def test_with_statistics_of_the_batch_directions_are_measured_on_drawn_batches():
    credit = measure_credit(turn_gdpo, batch=16, bias=0.05)
    assert credit.unbiased, credit.verdict
    assert len(credit.rows) == 7  # one reward at a time
    for row in credit.rows:
        assert row.variance is None
        assert 0 < row.degrees < 3
        assert 0 < row.noise < 3
        assert row.bias == pytest.approx(np.sin(np.radians(row.degrees)))
    with pytest.raises(AssertionError, match="turn 2 is missing"):
        check_turn_estimator(turn_index_centred, sizes=(3,), batch=16, bias=0.05)


@pytest.mark.slow
def test_the_measured_angle_of_a_batch_is_the_true_one():
    """Without statistics of the batch, the exact angle is known."""
    exact = {row.reward: row for row in measure_credit(alive_mean).rows}
    for row in measure_credit(alive_mean, batch=8).rows:
        assert abs(row.degrees - exact[row.reward].degrees) < 2 * row.noise


@pytest.mark.slow
def test_drawn_batches_of_an_unbiased_estimator_have_only_noise():
    credit = measure_credit(zero_after_the_end, batch=4)
    assert credit.unbiased, credit.verdict
    assert max(row.noise for row in credit.rows) > 0.1

    def fixed(rewards, weights, *, turns):
        return turn_broadcast(rewards, weights, turns=turns, scales=[1.0])

    # The noise of turn_broadcast is known, and removed from that of other estimators.
    assert max(row.noise for row in measure_credit(fixed, batch=4).rows) < 1e-6


@pytest.mark.slow
def test_the_worst_row_is_one_that_exceeds_its_noise():
    credit = measure_credit(alive_mean, batch=4)
    noisy, clear = credit.rows[:2]
    noisy = replace(noisy, bias=0.5, noise=40.0)
    clear = replace(clear, bias=0.4, noise=1.0)
    assert replace(credit, rows=(noisy, clear)).worst == clear


def totals_of(rewards, weights, turns):
    earned, there = masked(rewards, weights, turns)
    return to_go(earned), there


def against_the_next(rewards, weights, *, turns):
    g, there = totals_of(rewards, weights, turns)
    return there * (g - np.roll(g[:, :, :1], 1, axis=1))


def against_the_first(rewards, weights, *, turns):
    g, there = totals_of(rewards, weights, turns)
    return there * (g - g[:, :1, :1])


def test_the_order_of_the_samples_may_have_an_effect():
    """In groups listed in one order only, the first sample would always be the shortest."""
    assert measure_credit(against_the_next).unbiased
    assert measure_credit(against_the_next, size=2).unbiased
    assert measure_credit(against_the_first).worst.bias == pytest.approx(1 / 3)
    assert "0.667" in measure_credit(against_the_first).reason
    with pytest.raises(ConfigError, match="order of the samples"):
        measure_credit(against_the_next, size=4)


def clipped(rewards, weights, *, turns):
    return np.clip(trajectory_baseline(rewards, weights, turns=turns), -20, 20)


def without_signs(rewards, weights, *, turns):
    return trajectory_baseline(rewards, np.abs(weights), turns=turns)


@pytest.mark.parametrize("estimator", [clipped, without_signs])
def test_large_and_negative_rewards_show_what_small_ones_do_not(estimator):
    assert [row.reward for row in measure_credit(estimator).biased] == ["large"]


@pytest.mark.parametrize("argument", ["rewards", "weights", "turns"])
def test_an_estimator_that_changes_an_argument_is_refused(argument):
    def in_place(rewards, weights, *, turns):
        a = trajectory_baseline(rewards, weights, turns=turns)
        {"rewards": rewards, "weights": weights, "turns": turns}[argument][...] = 1
        return a

    for check in (measure_credit, check_turn_estimator):
        with pytest.raises(ConfigError, match=f"'{argument}'.* copy"):
            check(in_place)


def earlier_groups(rewards, weights, *, turns):
    g, there = totals_of(rewards, weights, turns)
    seen = np.cumsum(g[:, :, 0].mean(axis=1))
    return there * (g - np.concatenate([[0.0], seen[:-1]])[:, None, None])


class Remembers:
    def __init__(self):
        self.mean = 0.0

    def __call__(self, rewards, weights, *, turns):
        g, there = totals_of(rewards, weights, turns)
        before, self.mean = self.mean, float(g.mean())
        return there * (g - before)


def at_random(rewards, weights, *, turns):
    return np.random.default_rng().normal(size=rewards.shape[:3])


@pytest.mark.parametrize(
    ("estimator", "named"),
    [(earlier_groups, "other groups"), (Remembers(), "between calls"), (at_random, "random")],
)
def test_advantages_that_depend_on_more_than_the_group_are_an_error(estimator, named):
    with pytest.raises(ConfigError, match=named):
        measure_credit(estimator)


@pytest.mark.slow
def test_drawn_batches_that_are_too_noisy_to_tell_are_not_called_unbiased():
    flips = np.random.default_rng(0)

    def flipped(rewards, weights, *, turns):
        signs = flips.choice([-1.0, 1.0], size=(len(rewards), 1, 1))
        return signs * trajectory_baseline(rewards, weights, turns=turns)

    credit = measure_credit(flipped, batch=4, bias=1.0)
    assert not credit.unbiased
    assert not credit.biased
    assert "cannot tell" in credit.verdict


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [trajectory_baseline, with_itself, against_the_next])
@pytest.mark.parametrize("batch", [8, 64])
def test_drawn_batches_do_not_call_the_right_direction_biased(estimator, batch):
    assert measure_credit(estimator, batch=batch).unbiased


@pytest.mark.slow
def test_large_groups_are_measured_on_drawn_batches():
    credit = measure_credit(trajectory_baseline, batch=1, size=16)
    assert credit.unbiased, credit.verdict
    assert credit.no_signal > 0


def test_statistics_of_the_batch_are_an_error_where_the_mean_should_be_exact():
    with pytest.raises(ConfigError, match="batch"):
        measure_credit(turn_gdpo, options={})


# The check


@pytest.mark.parametrize("estimator", [turn_gdpo, turn_broadcast])
def test_the_check_passes_unbiased_estimators(estimator):
    check_turn_estimator(estimator)


def failure(estimator, **options):
    with pytest.raises(AssertionError) as found:
        check_turn_estimator(estimator, **options)
    return str(found.value)


@pytest.mark.parametrize(
    ("estimator", "named"),
    [
        (turn_index_centred, ["outcome + 1", "turn 1", "reaching turn 2 is missing"]),
        (turn_group_centred, ["rare", "turn 3", "35 %", "one more turn, without a reward"]),
        (alive_mean, ["rare", "turn 4 by 0.20", "turn 1 by 0.67", "other rollouts"]),
        (others_alive, ["rare", "only rollout that takes a turn", "0.38"]),
        (with_itself, ["33 %", "0.667", "n / (n - 1)"]),
        (lambda *a, **k: trajectory_baseline(*a, **k, discount=0.9), ["discounted by 0.9"]),
        (with_a_later_reward, ["0.5 instead of 1"]),
    ],
)
def test_the_check_names_the_reward_the_turn_and_the_reason(estimator, named):
    message = failure(estimator, sizes=(3,))
    assert "biased" in message
    for part in named:
        assert part in message, message


def test_two_mistakes_of_one_direction_are_told_apart():
    assert "only rollout" in failure(others_alive, sizes=(2,))
    assert "other rollouts" in failure(alive_mean, sizes=(2,))


def test_a_bias_can_be_accepted():
    check_turn_estimator(with_itself, any_factor=True)
    check_turn_estimator(with_itself, bias=0.51)
    assert "50 %" in failure(with_itself, bias=0.49)
    assert "no signal" in failure(turn_group_centred, bias=0.6)
    assert "no signal" in failure(trajectory_baseline)


def test_equal_outcomes_must_get_zero():
    assert "equal outcomes" in failure(zero_after_the_end)


def broken(change):
    """turn_gdpo with something done to its arguments or its result."""

    def estimator(rewards, weights, *, turns):
        def plain(r, n):
            return turn_gdpo(r, weights, turns=n, scales=[1.0] * r.shape[3])

        return change(plain, rewards, np.asarray(turns))

    return estimator


def unmasked(plain, r, turns):
    return plain(r, turns) + 1.0


def counts_padding(plain, r, turns):
    return plain(r, turns) * (1 + np.nan_to_num(r[..., 0]).max())


def spreads_nan(plain, r, turns):
    return np.where(np.isnan(r).any(), 2.0, 1.0) * plain(r, turns)


def by_position(plain, r, turns):
    return plain(r, turns) * np.arange(1, r.shape[1] + 1)[:, None]


def by_length(plain, r, turns):
    return plain(r, turns) / r.shape[2]


def in_place(plain, r, turns):
    a = plain(r, turns)
    r[0, 0, 0] += 1
    return a


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ({}, "dict"),
        ("text", "str"),
        ([[1.0], [2.0, 3.0]], "list"),
        (object(), "object"),
        (torch.ones(2, requires_grad=True), "requires grad"),
        (torch.ones(2, dtype=torch.bfloat16), "BFloat16"),
    ],
)
def test_a_result_that_is_no_array_of_numbers_is_an_error(returned, named):
    with pytest.raises(DataError, match=rf"{named}.*prompt, sample, turn"):
        measure_credit(lambda rewards, weights, *, turns: returned)


def test_single_precision_is_named_as_the_reason():
    def single(rewards, weights, *, turns):
        return trajectory_baseline(rewards, weights, turns=turns).astype(np.float32) / 3 * 3

    credit = measure_credit(single)
    assert "bias 1e-05" in credit.verdict
    assert "(0°)" in credit.verdict
    assert "factor" not in credit.verdict
    assert max(len(cell) for row in credit.cells() for cell in row[1:]) <= 6
    assert measure_credit(single, bias=1e-5).unbiased
