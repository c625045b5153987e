"""Tests the adapter for prime-rl against recorded interfaces of prime-rl."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tests.conformance.others.adapters import adapter

from gdpo import ConfigError, gdpo
from gdpo.advantages import RunningScale, mo_grpo

NAMES = ["correct", "format"]


class Algorithm:
    """Stands in for prime-rl's base class."""

    def __init__(self, config, policy_pool):
        self.policy_pool = policy_pool


@pytest.fixture(autouse=True)
def prime_rl(monkeypatch):
    """Stand in for prime-rl's modules."""
    base = ModuleType("prime_rl.orchestrator.algo.base")
    base.Algorithm = Algorithm
    base.iter_trainable_traces = lambda episodes: ((e, t) for e in episodes for t in e.traces)
    routing = ModuleType("prime_rl.orchestrator.algo.routing")
    routing.assign_advantages = lambda trace, value: trace.assigned.append(value)
    for name in ("prime_rl", "prime_rl.orchestrator", "prime_rl.orchestrator.algo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (base, routing):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def trace(scores):
    rewards = {
        name: None if np.isnan(score) else SimpleNamespace(score=score, weight=9.0)
        for name, score in zip(NAMES, scores, strict=True)
    }
    node = SimpleNamespace(mask=[False, True, True])
    return SimpleNamespace(rewards=rewards, nodes=[node], assigned=[])


def scored(made, rewards):
    """Return the advantages of one group, each trace in an episode of its own."""
    traces = [trace(row) for row in rewards.tolist()]
    asyncio.run(made.score_group([SimpleNamespace(traces=[each]) for each in traces]))
    return np.array([each.assigned for each in traces])[:, 0]


def made(config=None, **settings):
    return adapter("prime_rl").algorithm(**{"reward_keys": NAMES} | settings)(
        config or SimpleNamespace(), None
    )


def groups():
    found = np.random.default_rng(0).random((5, 4, 2))
    found[2, 1, 0] = np.nan
    return found


def test_groups_share_a_running_scale_and_weights_are_those_of_the_settings():
    ours, scale = made(reward_weights={"correct": 1.0, "format": 0.5}), RunningScale(128)
    for group in groups():
        scale.update(group[None], [1.0, 0.5])
        wanted = gdpo(group[None], [1.0, 0.5], scale=scale.value)[0]
        np.testing.assert_allclose(scored(ours, group), wanted, rtol=0, atol=1e-12)


def test_environments_have_scales_of_their_own():
    kind = adapter("prime_rl").algorithm(reward_keys=NAMES)
    first, second = (kind(SimpleNamespace(), None) for _ in range(2))
    scored(first, groups()[0])
    assert first.settings.rule.state()["rollouts"] == 4
    assert second.settings.rule.state()["rollouts"] == 0


def test_another_half_life_or_estimator_can_be_chosen():
    assert made(options={"scale_half_life": 3}).settings.rule.scale.half_life == 3
    assert made(options={"max_advantage": 5}).settings.rule.scale.half_life == 128
    other = made(estimator="mo_grpo")
    wanted = mo_grpo(groups()[:1], [1.0, 1.0])[0]
    np.testing.assert_allclose(scored(other, groups()[0]), wanted, rtol=0, atol=1e-12)


def test_wrong_settings_are_refused_before_prime_rl_creates_anything():
    with pytest.raises(ConfigError, match="did you mean 'scale_half_life'"):
        made(reward_keys=NAMES, options={"half_life": 3})


def test_a_reward_that_no_trace_of_a_group_has_names_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'correct'.*environment"):
        scored(made(reward_keys=["corect"]), groups()[0])


def test_a_length_penalty_is_refused_because_it_changes_only_the_sum():
    with pytest.raises(ConfigError, match="length_penalty"):
        made(SimpleNamespace(length_penalty=SimpleNamespace()))
    made(SimpleNamespace(length_penalty=None))
