"""The mean gradients of benchmarks.credit agree with loops and with closed forms."""

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
from benchmarks.credit._check import mean_gradient, no_signal, with_options
from benchmarks.credit._measure import rows_of
from benchmarks.credit._subjects import SUBJECTS, as_estimator
from numpy.testing import assert_allclose
from tests.refusals import config_error

from gdpo.advantages import turn_broadcast, turn_gdpo

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
    assert_allclose(got, loops(with_itself)[0], atol=1e-12)
    (row,) = rows_of(fixed(turn_gdpo), SMALL, size=2, tasks=lambda _: [task])
    wanted = loops(fixed(turn_gdpo))[1] / loops(fixed(turn_broadcast))[1]
    assert row.variance == pytest.approx(wanted, rel=1e-9)


# Closed forms


def mean_of(estimator, task, size):
    return mean_gradient(with_options(estimator), ROLLOUTS, task, *list_groups(ROLLOUTS, size))


def gradient_of_earning(rollouts, task):
    """Return the gradient through what turns pay if reached, `[paid turn, turn, state, action]`."""
    p, there, q = rollouts.probability, 1.0 * (rollouts.actions >= 0), rollouts.reached
    earned = there * (task.rewards @ np.asarray(task.weights))
    mean = p @ earned / np.where(q > 0, q, 1.0)
    return np.einsum("n,ns,ntxa->stxa", p, earned - there * mean, rollouts.score)


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
        assert_allclose(mean_of(estimator, task, size), closed, atol=1e-12)


@SIZES
@TASKS
def test_unbiased_estimators_have_the_true_gradient(task, size):
    for estimator in (turn_gdpo, turn_broadcast, subject("e"), subject("f")):
        got = mean_of(estimator, task, size)
        assert_allclose(got, exact_gradient(ROLLOUTS, task), atol=1e-12)


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
        assert_allclose(row.turn_bias, np.linalg.norm(got - wanted, axis=(1, 2)) / length)
        cosine = np.sum(got * wanted) / (np.linalg.norm(got) or np.nan) / length
        assert_allclose(np.cos(np.radians(row.degrees)), cosine, atol=1e-12)
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


# What is measured, and what is refused


def test_groups_without_signal_are_measured():
    wanted = {"D": (0, 0), "e": (3, 0), "d6": (2, 0), "c1": (1.5, 0), "f": (0, 1)}
    assert {each: no_signal(subject(each), 4, 3) for each in wanted} == wanted


def measured(estimator):
    return mean_of(estimator, example_tasks(ROLLOUTS)[0], 2)


@pytest.mark.parametrize("argument", ["rewards", "weights", "turns"])
def test_an_estimator_that_changes_an_argument_is_refused(argument):
    def in_place(rewards, weights, *, turns):
        a = subject("e")(rewards, weights, turns=turns)
        {"rewards": rewards, "weights": weights, "turns": turns}[argument][...] = 7
        return a

    with config_error(f"'{argument}'.* copy"):
        measured(in_place)


def fails():
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("returns", "named"),
    [
        (dict, "dict"),
        (lambda: "text", "text"),
        (lambda: [[1.0], [2.0, 3.0]], "inhomogeneous"),
        (lambda: torch.ones(2, requires_grad=True), "requires grad"),
        (lambda: np.ones((3, 4)), r"\(3, 4\)"),
        (fails, "SystemExit"),
    ],
)
def test_a_result_that_is_no_array_of_numbers_is_an_error(returns, named):
    with config_error(named):
        measured(lambda rewards, weights, *, turns: returns())


@pytest.mark.parametrize("changing", ["other groups", "calls"])
def test_advantages_that_depend_on_other_groups_or_calls_are_refused(changing):
    called = []

    def estimator(rewards, weights, *, turns):
        called.append(len(rewards))
        factor = len(rewards) if changing == "other groups" else len(called)
        return factor * subject("e")(rewards, weights, turns=turns)

    with config_error("depend on other groups"):
        measured(estimator)
