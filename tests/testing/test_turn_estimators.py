"""check_turn_estimator agrees with closed forms, and names the mistake of each estimator."""

from itertools import product

import numpy as np
import pytest
import torch
from benchmarks.credit._agents import (
    TurnTask,
    exact_gradient,
    example_policy,
    example_tasks,
    list_groups,
    list_rollouts,
)
from benchmarks.credit._check import (
    check_turn_estimator,
    gradient_of_earning,
    mean_gradient,
    no_signal,
    with_options,
)
from benchmarks.credit._measure import rows_of
from benchmarks.credit._subjects import SUBJECTS, as_estimator

from gdpo.advantages import turn_broadcast, turn_gdpo
from gdpo.errors import ConfigError

ROLLOUTS = list_rollouts(example_policy())
SMALL = list_rollouts(example_policy(turns=3))
SIZES = pytest.mark.parametrize("size", [2, 3])
TASKS = pytest.mark.parametrize("task", example_tasks(ROLLOUTS), ids=lambda task: task.name)


def subject(letter):
    """One of the estimators of `benchmarks.credit`."""
    (name,) = (name for name in SUBJECTS if name.startswith(f"{letter}:"))
    return as_estimator(SUBJECTS[name])


def masked(rewards, weights, turns):
    """The weighted rewards, 0 beyond the last turn, and the mask."""
    there = np.arange(rewards.shape[2]) < np.asarray(turns)[:, :, None]
    return np.where(there, np.where(there[..., None], rewards, 0) @ np.asarray(weights), 0), there


def with_itself(rewards, weights, *, turns):
    earned, there = masked(rewards, weights, turns)
    total = earned.sum(axis=2, keepdims=True)
    return there * (total - total.mean(axis=1, keepdims=True))


def fixed(estimator):
    """With divisors of 1, and without the option `scales`."""
    return lambda r, w, *, turns: estimator(r, w, turns=turns, scales=[1.0] * r.shape[3])


# The lists


def test_the_example_has_31_rollouts_and_5456_groups_of_three():
    assert len(ROLLOUTS.probability) == 31
    impossible = np.array([[[0.5, 0.5]], [[1.0, 0.0]]])
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
    def expected(change):
        moved = np.log(example_policy())
        moved[place] += change
        found = list_rollouts(np.exp(moved) / np.exp(moved).sum(axis=2, keepdims=True))
        tasks = example_tasks(found)
        return [found.probability @ each.rewards.sum(axis=1) @ each.weights for each in tasks]

    slopes = (np.array(expected(1e-5)) - expected(-1e-5)) / 2e-5
    for slope, task in zip(slopes, example_tasks(ROLLOUTS), strict=True):
        assert abs(exact_gradient(ROLLOUTS, task)[place] - slope) < 1e-9, task.name


def test_the_mean_and_the_variance_are_those_of_loops_over_ordered_groups():
    task = example_tasks(SMALL)[-1]

    def loops(estimator):
        gradients, chances = [], []
        for i, j in product(range(len(SMALL.probability)), repeat=2):
            rewards, turns = task.rewards[[i, j]][None], SMALL.turns[[i, j]][None]
            a = estimator(rewards, np.array(task.weights), turns=turns)[0]
            gradients.append((a[:, :, None, None] * SMALL.score[[i, j]]).sum(axis=0) / 2)
            chances.append(SMALL.probability[i] * SMALL.probability[j])
        mean = np.tensordot(chances, gradients, 1)
        return mean, np.dot(chances, [np.sum((each - mean) ** 2) for each in gradients])

    got = mean_gradient(with_itself, SMALL, task, *list_groups(SMALL, 2))
    np.testing.assert_allclose(got, loops(with_itself)[0], atol=1e-12)
    (row,) = rows_of(fixed(turn_gdpo), SMALL, size=2, tasks=lambda _: [task])
    wanted = loops(fixed(turn_gdpo))[1] / loops(fixed(turn_broadcast))[1]
    assert row.variance == pytest.approx(wanted, rel=1e-9)


# Closed forms


def mean_of(estimator, task, size):
    return mean_gradient(with_options(estimator), ROLLOUTS, task, *list_groups(ROLLOUTS, size))


@SIZES
@TASKS
def test_biased_estimators_have_the_means_of_their_closed_forms(task, size):
    wanted, q = exact_gradient(ROLLOUTS, task), ROLLOUTS.reached
    itself = 1 - (1 - (1 - q) ** size) / (size * q)
    others = 1 - (1 - q) ** (size - 1)
    earning = gradient_of_earning(ROLLOUTS, task)
    for estimator, closed in (
        (subject("d0"), itself[:, None, None] * wanted),
        (subject("d1"), others[:, None, None] * wanted),
        (with_itself, (1 - 1 / size) * wanted),
        (subject("b1"), np.einsum("s,stxa->txa", itself, earning)),
    ):
        np.testing.assert_allclose(mean_of(estimator, task, size), closed, atol=1e-12)


@SIZES
@TASKS
def test_unbiased_estimators_have_the_true_gradient(task, size):
    for estimator in (turn_gdpo, turn_broadcast, subject("e"), subject("f")):
        got = mean_of(estimator, task, size)
        np.testing.assert_allclose(got, exact_gradient(ROLLOUTS, task), atol=1e-12)


@SIZES
def test_the_smallest_case_of_the_lost_gradient(size):
    """Continuing has probability 1/2, and the second turn pays 1/2 (verl, pull request 7244)."""
    rollouts = list_rollouts(np.array([[[0.5, 0.5]], [[1.0, 0.0]]]))
    second = np.where(np.arange(2) == 1, 0.5, 0.0) * (rollouts.actions >= 0)
    task, groups = TurnTask("second", second[..., None]), list_groups(rollouts, size)
    for estimator, wanted in ((turn_gdpo, 0.125), (subject("b1"), 0.0)):
        mean = mean_gradient(with_options(estimator), rollouts, task, *groups)
        assert abs(mean[0, 0, 1] - wanted) < 1e-12


# The rows of benchmarks.credit


def test_rows_have_the_bias_of_each_turn_and_no_variance_if_there_is_a_bias():
    rows = rows_of(subject("b1"), ROLLOUTS, size=3)
    assert [row.reward for row in rows] == [task.name for task in example_tasks(ROLLOUTS)]
    for row, task in zip(rows, example_tasks(ROLLOUTS), strict=True):
        wanted, got = exact_gradient(ROLLOUTS, task), mean_of(subject("b1"), task, 3)
        length = np.linalg.norm(wanted)
        assert row.bias == pytest.approx(np.linalg.norm(got - wanted) / length)
        np.testing.assert_allclose(
            row.turn_bias, np.linalg.norm(got - wanted, axis=(1, 2)) / length
        )
        cosine = np.sum(got * wanted) / (np.linalg.norm(got) or np.nan) / length
        np.testing.assert_allclose(np.cos(np.radians(row.degrees)), cosine, atol=1e-12)
        assert np.isnan(row.variance)
    assert {round(row.variance, 9) for row in rows_of(subject("a"), ROLLOUTS, size=3)} == {1.0}


@pytest.mark.slow
def test_the_measured_angle_of_drawn_batches_is_the_true_one():
    """Without statistics of the batch, the exact angle is known, and 0 if there is no bias."""
    exact = {row.reward: row for row in rows_of(subject("d0"), ROLLOUTS, size=3)}
    drawn = rows_of(subject("d0"), ROLLOUTS, size=3, batch=8)
    assert len(drawn) == 7  # one reward at a time
    for row in drawn:
        assert abs(row.degrees - exact[row.reward].degrees) < 2 * row.noise
    for batch in (8, 64):
        for row in rows_of(subject("f"), ROLLOUTS, size=3, batch=batch):
            assert 0 < row.degrees < row.noise
    # The noise of turn_broadcast is known, and removed from that of other estimators.
    assert max(row.noise for row in rows_of(subject("a"), ROLLOUTS, size=3, batch=4)) < 1e-6


# The check


@pytest.mark.parametrize("estimator", [turn_gdpo, turn_broadcast, subject("d3")])
def test_the_check_passes_unbiased_estimators(estimator):
    check_turn_estimator(estimator)


def failure(estimator, **options):
    with pytest.raises(AssertionError) as found:
        check_turn_estimator(estimator, **options)
    return str(found.value)


def with_a_later_reward(rewards, weights, *, turns):
    """Half of what the rollout itself earns at turn 3 is in its baseline of the first turns."""
    a = fixed(turn_broadcast)(rewards, weights, turns=turns)
    earned, there = masked(rewards, weights, turns)
    a[:, :, :3] -= there[:, :, :3] * 0.5 * earned[:, :, 2:3]
    return a


def halved(rewards, weights, *, turns):
    """Half of the rewards of later turns are missing."""
    values, _ = masked(rewards, weights, turns)
    later = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1] - values
    return values + later / 2


@pytest.mark.parametrize(
    ("estimator", "named"),
    [
        (subject("b1"), ["outcome + 1", "turn 1", "reaching turn 2 is missing"]),
        (subject("c1"), ["rare", "turn 3", "0.35", "one more turn without a reward"]),
        (subject("d0"), ["rare", "turn 4 by 0.20", "turn 1 by 0.67", "other rollouts"]),
        (subject("d1"), ["rare", "only rollout that takes a turn", "0.38"]),
        (with_itself, ["0.33", "0.667", "n / (n - 1)"]),
        (subject("D'"), ["discounted by 0.9"]),
        (with_a_later_reward, ["0.5 instead of 1"]),
        (halved, ["0.5 instead of 1"]),
        (lambda *a, **k: 3 * subject("b1")(*a, **k), ["reaching turn 2 is missing"]),
        (lambda *a, **k: 3 * subject("d0")(*a, **k), ["turn 4 by 0.20", "other rollouts"]),
    ],
)
def test_the_check_names_the_reward_the_turn_and_the_reason(estimator, named):
    message = failure(estimator, sizes=(3,))
    assert "biased" in message
    for part in named:
        assert part in message, message


def own(values, there):
    return values


def own_minus_others(values, there):
    return values - (values.sum(axis=1, keepdims=True) - values) / (values.shape[1] - 1)


def own_minus_group(values, there):
    return values - values.sum(axis=(1, 2), keepdims=True) / there.sum(axis=(1, 2), keepdims=True)


def own_over_size(values, there):
    size = np.abs(values).sum(axis=(1, 2), keepdims=True)
    return values / np.where(size > 0, size, 1.0)


def own_and_next(values, there):
    return values + np.pad(values[:, :, 1:], ((0, 0), (0, 0), (0, 1)))


def last_only(values, there):
    """The reward of the last turn of a full rollout, at every turn."""
    return np.broadcast_to(values[:, :, 3:4], values.shape)


@pytest.mark.parametrize("any_factor", [False, True])
@pytest.mark.parametrize(
    "of_values", [own, own_minus_others, own_minus_group, own_over_size, own_and_next, last_only]
)
def test_an_estimator_without_a_return_to_go_is_named_whatever_it_subtracts(of_values, any_factor):
    def estimator(rewards, weights, *, turns):
        values, there = masked(rewards, weights, turns)
        padded = np.pad(values, ((0, 0), (0, 0), (0, max(0, 4 - values.shape[2]))))
        return there * of_values(padded, there)[:, :, : values.shape[2]]

    assert "return-to-go" in failure(estimator, sizes=(3,), any_factor=any_factor)


def test_a_mistake_that_explains_only_one_reward_is_not_named():
    """The mean gradient of the cost is 0, as with a mean subtracted by turn index."""

    def without_cost(rewards, weights, *, turns):
        _, there = masked(rewards, weights, turns)
        all_costs = np.all(rewards[..., 0] <= 0) and len(weights) == 1 and weights[0] > 0
        return 0.0 * there if all_costs else fixed(turn_gdpo)(rewards, weights, turns=turns)

    message = failure(without_cost, sizes=(3,))
    assert "1 of 9 rewards, most for 'cost'" in message
    assert "reason" not in message


def test_two_mistakes_of_one_direction_are_told_apart():
    assert "only rollout" in failure(subject("d1"), sizes=(2,))
    assert "other rollouts" in failure(subject("d0"), sizes=(2,))


def test_a_bias_can_be_accepted():
    check_turn_estimator(with_itself, any_factor=True)
    check_turn_estimator(with_itself, bias=0.51)
    assert "0.5 times" in failure(with_itself, bias=0.49)
    assert "no signal" in failure(subject("c1"), bias=0.6)
    assert "no signal" in failure(subject("e"))
    assert "equal outcomes" in failure(subject("f"))


def test_groups_without_signal_are_measured():
    wanted = {"D": (0, 0), "e": (3, 0), "d6": (2, 0), "c1": (1.5, 0), "f": (0, 1)}
    assert {each: no_signal(subject(each), 4, 3) for each in wanted} == wanted


def test_single_precision_is_named_as_the_reason():
    def single(rewards, weights, *, turns):
        return fixed(turn_gdpo)(rewards.astype(np.float32), weights, turns=turns) / 3 * 3

    message = failure(single)
    assert "accept bias 1e-05" in message
    assert "factor" not in message
    check_turn_estimator(single, bias=1e-5)


def clipped(rewards, weights, *, turns):
    return np.clip(subject("d3")(rewards, weights, turns=turns), -20, 20)


def without_signs(rewards, weights, *, turns):
    return subject("d3")(rewards, np.abs(weights), turns=turns)


@pytest.mark.parametrize("estimator", [clipped, without_signs])
def test_large_and_negative_rewards_show_what_small_ones_do_not(estimator):
    assert "1 of 9 rewards, most for 'large'" in failure(estimator)


# What the check refuses


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


def at_random(plain, r, turns):
    there = np.arange(r.shape[2]) < turns[:, :, None]
    return there * np.random.default_rng().normal(size=r.shape[:3])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (unmasked, "did not take"),
        (counts_padding, "rewards 1000000.0 beyond"),
        (spreads_nan, "rewards nan beyond"),
        (by_position, "another order"),
        (by_length, "padding"),
        (at_random, "second call"),
    ],
)
def test_a_broken_contract_is_named(change, named):
    def estimator(rewards, weights, *, turns):
        def plain(r, n):
            return turn_gdpo(r, weights, turns=n, scales=[1.0] * r.shape[3])

        return change(plain, rewards, np.asarray(turns))

    assert named in failure(estimator)


@pytest.mark.parametrize("argument", ["rewards", "weights", "turns"])
def test_an_estimator_that_changes_an_argument_is_refused(argument):
    def in_place(rewards, weights, *, turns):
        a = subject("e")(rewards, weights, turns=turns)
        {"rewards": rewards, "weights": weights, "turns": turns}[argument][...] = 1
        return a

    with pytest.raises(ConfigError, match=f"'{argument}'.* copy"):
        check_turn_estimator(in_place)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ({}, "dict"),
        ("text", "text"),
        ([[1.0], [2.0, 3.0]], "inhomogeneous"),
        (object(), "object"),
        (torch.ones(2, requires_grad=True), "requires grad"),
        (torch.ones(2, dtype=torch.bfloat16), "BFloat16"),
        (np.ones((3, 4)), r"\(3, 4\)"),
        (np.full((3, 4, 4), np.nan), "finite"),
    ],
)
def test_a_result_that_is_no_array_of_numbers_is_an_error(returned, named):
    with pytest.raises(ConfigError, match=rf"{named}.*"):
        check_turn_estimator(lambda rewards, weights, *, turns: returned)


def fails(rewards, weights, *, turns):
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("estimator", "options", "named"),
    [
        (fails, {}, "SystemExit"),
        (turn_gdpo, {"options": {}}, "other groups"),
        (turn_gdpo, {"options": lambda count: {"scales": [1.0] * (count + 1)}}, "scales"),
        (turn_gdpo, {"sizes": (1,)}, "sizes"),
        (turn_gdpo, {"sizes": (6,)}, "sizes"),
        (turn_gdpo, {"sizes": ()}, "sizes"),
        (turn_gdpo, {"bias": -1.0}, "bias"),
        (turn_gdpo, {"bias": np.inf}, "bias"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(estimator, options, named):
    with pytest.raises(ConfigError, match=named):
        check_turn_estimator(estimator, **options)
