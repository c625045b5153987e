"""Tests the adapter for prime-rl against recorded interfaces of prime-rl."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from tests.conformance.others.adapters import adapter
from tests.examples.adapters.stand_ins import NAMES, WEIGHTS, install, one_by_one
from tests.examples.adapters.stand_ins import scored as random_scores
from tests.refusals import config_error

from gdpo.advantages import mo_grpo


class Algorithm:
    """Stands in for prime-rl's base class."""

    def __init__(self, config, policy_pool):
        self.policy_pool = policy_pool


@pytest.fixture(autouse=True)
def prime_rl(monkeypatch):
    """Stand in for prime-rl's modules."""
    base = {
        "Algorithm": Algorithm,
        "iter_trainable_traces": lambda episodes: ((e, t) for e in episodes for t in e.traces),
    }
    routing = {"assign_advantages": lambda trace, value: trace.assigned.append(value)}
    algo = "prime_rl.orchestrator.algo"
    install(monkeypatch, **{f"{algo}.base": base, f"{algo}.routing": routing})


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
    algorithm = adapter("prime_rl").algorithm(**{"reward_keys": NAMES} | settings)
    return algorithm(config or SimpleNamespace(), None)


def groups():
    found = random_scores(5, 4)
    found[2, 1, 0] = np.nan
    return found


def test_groups_share_a_running_scale_and_weights_are_those_of_the_settings():
    ours = made(reward_weights=dict(zip(NAMES, WEIGHTS, strict=True)))
    for group, wanted, _ in one_by_one(groups()):
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
    wanted = mo_grpo(groups()[:1], [1.0, 1.0])[0]
    found = scored(made(estimator="mo_grpo"), groups()[0])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_a_reward_that_no_trace_of_a_group_has_names_the_nearest():
    with config_error(r"did you mean 'correct'.*environment"):
        scored(made(reward_keys=["corect"]), groups()[0])


def test_a_length_penalty_is_refused_because_it_changes_only_the_sum():
    with config_error("length_penalty"):
        made(SimpleNamespace(length_penalty=SimpleNamespace()))
    made(SimpleNamespace(length_penalty=None))
