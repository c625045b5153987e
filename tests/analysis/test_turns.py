"""The analysis of recorded turns, against `diagnose_turns`, and what the summary says of it."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from tests.analysis.printed import lines_of
from tests.analysis.turn_rollouts import NAMES, arrays, recorded

from gdpo.advantages import gdpo
from gdpo.analysis import analyze, analyze_steps
from gdpo.diagnostics import diagnose_turns
from gdpo.diagnostics.turns import pooled_turns
from gdpo.rollouts.readers import read_rollout_files


def without_advantages(rollout):
    return replace(rollout, turns=tuple(replace(turn, advantage=nan) for turn in rollout.turns))


def without_any_advantage(rollout):
    return without_advantages(replace(rollout, advantage=nan))


def without_turns(rollout):
    return replace(rollout, turns=None)


def steps_of(folder, **options):
    return list(analyze_steps(read_rollout_files(folder), **options))


def printed(folder, *on):
    return lines_of(analyze(read_rollout_files(folder)), *on)


def test_a_step_has_the_diagnosis_of_its_turns(tmp_path):
    (step,) = steps_of(recorded(tmp_path, steps=1))
    counts, rewards, advantages = arrays(1)
    wanted = diagnose_turns(
        rewards, None, NAMES, turns=counts, advantages=advantages, estimator=None
    )
    assert step.turns.as_dict() == wanted.as_dict()


def test_without_advantages_of_turns_that_of_the_rollout_counts(tmp_path):
    (step,) = steps_of(recorded(tmp_path, steps=1, change=without_advantages))
    counts, rewards, advantages = arrays(1)
    taken = np.arange(rewards.shape[2]) < counts[..., None]
    means = np.sum(np.where(taken, advantages, 0.0), axis=2) / counts
    wanted = diagnose_turns(rewards, None, NAMES, turns=counts, advantages=means, estimator=None)
    for one, other in zip(step.turns.turns, wanted.turns, strict=True):
        for a, b in zip(one.rewards, other.rewards, strict=True):
            assert a.influence_share == pytest.approx(b.influence_share)


def test_without_any_advantages_the_estimator_computes_those_of_the_rollouts(tmp_path):
    (step,) = steps_of(recorded(tmp_path, steps=1, change=without_any_advantage), estimator="gdpo")
    counts, rewards, _ = arrays(1)
    taken = np.arange(rewards.shape[2]) < counts[..., None]
    a = gdpo(np.sum(np.where(taken[..., None], rewards, 0.0), axis=2), [1.0, 1.0])
    wanted = diagnose_turns(rewards, None, NAMES, turns=counts, advantages=a, estimator="gdpo")
    assert step.turns.as_dict() == wanted.as_dict()
    low, high = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 3.0)
    (ranged,) = steps_of(tmp_path, estimator="sa_mrpo", low=low, high=high)
    assert ranged.turns.as_dict() != wanted.as_dict()


def test_weights_that_are_given_count_for_the_turns(tmp_path):
    recorded(tmp_path, steps=1, change=without_any_advantage)
    (step,) = steps_of(tmp_path, weights={"format": 3.0})
    assert step.turns.influences[0].weight_shares.tolist() == [0.75, 0.25]


def test_a_run_adds_up_its_turns(tmp_path):
    (run,) = analyze(read_rollout_files(recorded(tmp_path))).runs
    steps = []
    for step in range(1, 7):
        counts, rewards, a = arrays(step)
        steps.append(diagnose_turns(rewards, None, NAMES, turns=counts, advantages=a))
    assert repr(run.turns) == repr(pooled_turns(steps).turns)
    assert [turn.turn for turn in run.turns] == [1, 2, 3, 4, 5, 6]


def test_turns_that_are_unknown_are_left_out_and_a_run_without_turns_has_none(tmp_path):
    """In one sample of each group, the number of turns is unknown."""
    few = recorded(
        tmp_path / "few",
        steps=1,
        change=lambda each: without_turns(each) if each.sample_id == 0 else each,
    )
    (step,) = steps_of(few)
    assert step.turns.rollouts[0] == 16 * 7
    (run,) = analyze(read_rollout_files(recorded(tmp_path / "no", change=without_turns))).runs
    assert run.turns == ()


def test_the_summary_has_a_table_of_the_turns_only_if_there_are_turns(tmp_path):
    with_turns = printed(recorded(tmp_path / "a" / "run"))
    without = printed(recorded(tmp_path / "b" / "run", change=without_turns))
    start = next(i for i, line in enumerate(with_turns) if line.startswith("turns: "))
    assert with_turns[start + 1].split() == ["turn", "alive", "format", "correct"]
    assert [line.split()[0] for line in with_turns[start + 2 : start + 8]] == list("123456")
    assert not any(line.startswith("turn") for line in without)
    assert with_turns[:start] == without[:start]


def test_a_record_of_single_turns_has_no_table(tmp_path):
    def single(random, groups):
        return np.ones((groups, 4), int), random.random((groups, 4, 1, 2))

    folder = recorded(tmp_path / "run", scenario=single)
    (run,) = analyze(read_rollout_files(folder)).runs
    assert len(run.turns) == 1
    assert not any(line.startswith("turn") for line in printed(folder))


def test_many_turns_rewards_and_runs_are_counted_and_fit_into_the_width(tmp_path):
    names = [f"a_reward_with_a_long_name_{k}" for k in range(6)]

    def many(random, groups):
        counts = random.integers(1, 12, (groups, 4))
        return counts, random.random((groups, 4, 11, 6))

    for run in ("one", "two"):
        recorded(tmp_path / run, steps=1, names=names, scenario=many, groups=4)
    lines = printed(tmp_path, 80)
    start = next(i for i, line in enumerate(lines) if line.startswith("turns of one: "))
    assert all(len(line) <= 80 for line in lines[start : start + 9])
    table = slice(start + 1, start + 8)
    assert lines[table] == printed(tmp_path, max(map(len, lines[table])))[table]
    assert (
        lines[start + 8]
        == "and 5 more turns, 4 more rewards, 1 more run (--output json prints all)"
    )
