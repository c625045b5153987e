"""Tests the adapter for rLLM against recorded interfaces of rLLM."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from tests.conformance.others.adapters import adapter
from tests.examples.adapters.stand_ins import (
    NAMES,
    WEIGHTS,
    by_formula,
    install,
    one_by_one,
    registering,
    scored,
)
from tests.refusals import config_error

SIZES = [3, 2, 4]


@dataclass
class Trajectory:
    """Stands in for rLLM's trajectory, with the fields that are read."""

    signals: dict
    steps: list = field(default_factory=list)


@pytest.fixture
def registry(monkeypatch):
    """Stand in for rLLM's registry, which maps names to functions."""
    found = {}
    contents = {"register_rllm_adv_estimator": registering(found)}
    install(monkeypatch, **{"rllm.trainer.algorithms.advantage": contents})
    return found


@pytest.fixture
def register(registry):
    return adapter("rllm").register


def groups_of(rewards):
    step = SimpleNamespace(response_ids=[1, 2])
    made = [
        Trajectory(dict(zip(NAMES, row.tolist(), strict=True)), [step, step]) for row in rewards
    ]
    parts = np.split(np.arange(len(made)), np.cumsum(SIZES)[:-1])
    return [SimpleNamespace(trajectories=[made[i] for i in part]) for part in parts]


def called(estimator, groups):
    totals = [np.zeros(len(group.trajectories)) for group in groups]
    return estimator(rewards=totals, algorithm_config=SimpleNamespace(), traj_groups=groups)


def test_groups_get_the_advantages_of_the_formula_in_their_own_shapes(registry, register):
    register(reward_keys=NAMES, reward_weights=WEIGHTS)
    advantages, returns = called(registry["gdpo"], groups_of(scored(9)))
    assert returns is advantages
    assert list(map(len, advantages)) == SIZES
    wanted = by_formula(scored(9), SIZES)
    np.testing.assert_allclose(np.concatenate(advantages), wanted, rtol=0, atol=1e-12)


def test_a_key_that_no_trajectory_has_names_the_nearest(registry, register):
    register("other", reward_keys=["corect"])
    with config_error(r"did you mean 'correct'.*Signal"):
        called(registry["other"], groups_of(scored(9)))


def test_batches_of_one_group_give_one_warning(registry, register, caplog):
    register(reward_keys=NAMES)
    for _ in range(2):
        called(registry["gdpo"], groups_of(scored(9))[:1])
    assert caplog.text.count("scale_half_life") == 1


def test_tasks_that_come_one_by_one_share_a_running_scale(registry, register, caplog):
    rule = register(reward_keys=NAMES, reward_weights=WEIGHTS, options={"scale_half_life": 128})
    rewards = np.split(scored(9), np.cumsum(SIZES)[:-1])
    for group, (_, wanted, state) in zip(groups_of(scored(9)), one_by_one(rewards), strict=True):
        (advantages,), _ = called(registry["gdpo"], [group])
        np.testing.assert_allclose(advantages, wanted, rtol=0, atol=1e-12)
        assert rule.state() == state
    assert "async_training" not in caplog.text
