"""Tests the adapter for rLLM against recorded interfaces of rLLM."""

import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tests.conformance.others.adapters import adapter

from gdpo import ConfigError, gdpo
from gdpo.advantages import RunningScale

NAMES = ["correct", "format"]
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
    module = ModuleType("rllm.trainer.algorithms.advantage")
    module.register_rllm_adv_estimator = lambda name: lambda f: found.setdefault(name, f)
    for name in ("rllm", "rllm.trainer", "rllm.trainer.algorithms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.fixture
def register(registry):
    return adapter("rllm").register


def scored():
    return np.random.default_rng(0).random((sum(SIZES), 2))


def groups_of(rewards):
    step = SimpleNamespace(response_ids=[1, 2])
    made = [
        Trajectory(dict(zip(NAMES, row.tolist(), strict=True)), [step, step]) for row in rewards
    ]
    parts = np.split(np.arange(len(made)), np.cumsum(SIZES)[:-1])
    return [SimpleNamespace(trajectories=[made[i] for i in part]) for part in parts]


def by_formula(rewards):
    grid = np.full((len(SIZES), max(SIZES), 2), np.nan)
    ends = np.cumsum([0, *SIZES])
    for prompt, size in enumerate(SIZES):
        grid[prompt, :size] = rewards[ends[prompt] : ends[prompt + 1]]
    return [a[:size] for a, size in zip(gdpo(grid, [1.0, 0.5]), SIZES, strict=True)]


def called(estimator, groups):
    totals = [np.zeros(len(group.trajectories)) for group in groups]
    return estimator(rewards=totals, algorithm_config=SimpleNamespace(), traj_groups=groups)


def test_groups_get_the_advantages_of_the_formula_in_their_own_shapes(registry, register):
    register(reward_keys=NAMES, reward_weights=[1.0, 0.5])
    advantages, returns = called(registry["gdpo"], groups_of(scored()))
    assert returns is advantages
    for got, wanted in zip(advantages, by_formula(scored()), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)


def test_a_key_that_no_trajectory_has_names_the_nearest(registry, register):
    register("other", reward_keys=["corect"])
    with pytest.raises(ConfigError, match=r"did you mean 'correct'.*Signal"):
        called(registry["other"], groups_of(scored()))


def test_wrong_settings_are_refused_when_they_are_made(registry, register):
    with pytest.raises(ConfigError, match="did you mean 'mo_grpo'"):
        register(reward_keys=NAMES, estimator="mogrpo")
    with pytest.raises(ConfigError, match=r"reward_weights=.*3 entries for 2"):
        register(reward_keys=NAMES, reward_weights=[1, 2, 3])
    assert not registry


def test_batches_of_one_group_give_one_warning(registry, register, caplog):
    register(reward_keys=NAMES)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            called(registry["gdpo"], groups_of(scored())[:1])
    assert caplog.text.count("scale_half_life") == 1


def test_tasks_that_come_one_by_one_share_a_running_scale(registry, register, caplog):
    rule = register(reward_keys=NAMES, options={"scale_half_life": 128})
    scale, groups, ends = RunningScale(), groups_of(scored()), np.cumsum([0, *SIZES])
    with caplog.at_level(logging.WARNING):
        for i, group in enumerate(groups):
            rewards = scored()[None, ends[i] : ends[i + 1]]
            scale.update(rewards, [1.0, 1.0])
            (advantages,), _ = called(registry["gdpo"], [group])
            wanted = gdpo(rewards, [1.0, 1.0], scale=scale.value)[0]
            np.testing.assert_allclose(advantages, wanted, rtol=0, atol=1e-12)
    assert rule.state() == scale.state()
    assert "async_training" not in caplog.text
