"""What estimators would have made of recorded rewards, against numbers worked out by hand."""

import numpy as np
import pytest
from tests.refusals import config_error
from tests.rollouts.readers import written

from gdpo.advantages import ESTIMATORS, gdpo, grpo
from gdpo.analysis import analyze
from gdpo.analysis.replay import RECORDED, changes
from gdpo.rollouts.readers import read_rollout_files


def dump(folder, groups, *, step=1, advantages=None):
    """One step: groups of samples, each a list of rewards; `advantages` likewise."""
    records = [
        {
            "step": step,
            "prompt": f"{step} {p}",
            **{f"r{k}": float(value) for k, value in enumerate(sample)},
            **({} if advantages is None else {"advantage": float(advantages[p][s])}),
        }
        for p, group in enumerate(groups)
        for s, sample in enumerate(group)
    ]
    written.lines(folder / f"step_{step}.jsonl", records)
    return folder


def replay(folder, names, *, rewards=2, **options):
    read = read_rollout_files(folder, rewards=[f"r{k}" for k in range(rewards)], columns={})
    done = analyze(read, replayed=names, **options)
    return {each.estimator: each for each in done.replayed}


WIDE = [[(0, 1), (10, 0), (4, 0)], [(1, 1), (2, 0), (9, 1)]]


def test_correlation_sign_and_size_are_those_of_the_advantages_side_by_side(tmp_path):
    rng = np.random.default_rng(0)
    steps = [rng.integers(0, 4, (3, 4, 2)) * [5, 1] for _ in range(3)]
    for number, rewards in enumerate(steps, 1):
        dump(tmp_path, rewards, step=number)
    found = replay(tmp_path, ["grpo", "gdpo"])["gdpo"]
    a, b = (
        np.concatenate([f(r.astype(float), np.ones(2)).ravel() for r in steps])
        for f in (grpo, gdpo)
    )
    assert found.correlation == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert found.sign_flips == np.mean(a * b < 0) > 0
    assert found.zero == np.mean(b == 0)
    assert (found.baseline, found.steps, found.groups, found.changed) == ("grpo", 3, 9, 3)
    assert not found.same


def test_a_single_reward_makes_grpo_and_gdpo_the_same(tmp_path):
    dump(tmp_path, [[(0,), (1,), (5,)], [(2,), (2,), (2,)], [(0,), (9,), (1,)]])
    found = replay(tmp_path, ["grpo", "gdpo", "grpo_no_std"], rewards=1)
    assert found["gdpo"].same
    assert (found["gdpo"].changed, found["gdpo"].signal_lost, found["gdpo"].signal_gained) == (
        0,
        0,
        0,
    )
    assert not found["grpo_no_std"].same  # it weighs the groups otherwise


def test_the_scale_is_the_factor_and_may_differ_from_step_to_step(tmp_path):
    for step, size in ((1, 1.0), (2, 3.0), (3, 7.0)):
        group = [(0,), (size,)]
        dump(tmp_path, [group, group], step=step)
    found = replay(tmp_path, ["grpo_no_std", "grpo"], rewards=1)["grpo"]
    # One half of the reward's size against 1/√2: 1.41 over the size.
    assert found.scale == pytest.approx(np.sqrt(2) / 3)
    assert found.same


def test_groups_that_die_and_revive_are_counted(tmp_path):
    opposed = [(0, 1), (2, 0)]  # GRPO: 1 against 2; z-scores cancel
    cancelled = [(0, 1), (1, 0)]  # dead under both
    alive = [(0, 0), (1, 1)]
    dump(tmp_path, [opposed, cancelled, alive])
    found = replay(tmp_path, ["grpo", "gdpo"])
    assert (found["gdpo"].signal_lost, found["gdpo"].signal_gained) == (1, 0)
    found = replay(tmp_path, ["gdpo", "grpo"])
    assert (found["grpo"].signal_lost, found["grpo"].signal_gained) == (0, 1)


def test_recorded_advantages_are_compared_up_to_what_frameworks_add(tmp_path):
    rewards = np.array(WIDE, float)
    total = rewards.sum(axis=-1).astype(np.float32)
    centred = total - total.mean(axis=1, keepdims=True)
    framework = centred / (total.std(axis=1, keepdims=True, ddof=1) + np.float32(1e-4))
    dump(tmp_path, WIDE, advantages=framework)
    found = replay(tmp_path, [])
    assert list(found) == [RECORDED, *ESTIMATORS]
    assert found["grpo"].same
    assert 0 < found["grpo"].departure < 1e-3
    assert not found["gdpo"].same
    assert found["grpo"].scale == pytest.approx(1, abs=1e-3)


def test_without_recorded_advantages_all_are_beside_grpo(tmp_path):
    dump(tmp_path, WIDE)
    found = replay(tmp_path, [])
    assert list(found) == list(ESTIMATORS)
    assert {each.baseline for each in found.values()} == {"grpo"}


def test_an_estimator_that_cannot_be_called_says_why_and_the_others_are_replayed(tmp_path):
    dump(tmp_path, WIDE)
    found = replay(tmp_path, ["grpo", "saw", "gdpo"])
    assert "needs 'low'" in found["saw"].problem
    assert found["saw"].steps == 0
    assert found["gdpo"].steps == 1
    declared = replay(tmp_path, ["grpo", "saw"], low={"r0": 0, "r1": 0}, high={"r0": 10, "r1": 1})
    assert declared["saw"].problem == ""
    assert declared["saw"].steps == 1


def test_weights_count(tmp_path):
    dump(tmp_path, WIDE)
    assert not replay(tmp_path, ["grpo", "gdpo"])["gdpo"].same
    assert replay(tmp_path, ["grpo", "gdpo"], weights={"r0": 0.0})["gdpo"].same


def test_unknown_estimators_are_refused_before_anything_is_read(tmp_path):
    dump(tmp_path, WIDE)
    with config_error("did you mean 'gdpo'"):
        replay(tmp_path, ["gpdo"])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, -1], [3, -3], (0, 3)),
        ([1, -1], [-1, 1], (1, None)),
        ([0, 0], [0, 0], (0, None)),
        ([0, 0], [1, -1], (1, None)),
        ([1, -1], [0, 0], (1, None)),
        ([1, 0, -1], [1, 0.5, -1.5], (1 / 3, 1.25)),
    ],
)
def test_how_far_advantages_are_from_a_multiple_of_others(a, b, expected):
    departure, factor = changes(np.array(a, float), np.array(b, float))
    assert departure == pytest.approx(expected[0])
    assert (factor == pytest.approx(expected[1])) if expected[1] else np.isnan(factor)
