"""Tests the slime and miles hook with recorded arguments and samples."""

from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.conformance.others.adapters import adapter
from tests.examples.adapters.stand_ins import NAMES, WEIGHTS, by_formula, grid, one_by_one, scored
from tests.refusals import config_error, data_error

SIZES = [3, 1, 4]
post_process = adapter("slime").post_process


@dataclass
class Sample:
    """Stands in for slime's sample, with the fields that are read."""

    group_index: int | None
    index: int
    reward: Any
    rollout_id: int | None = None
    response_length: int = 5
    loss_mask: list[int] | None = field(default=None)

    def get_reward_value(self, args):
        return self.reward if not args.reward_key else self.reward[args.reward_key]

    @property
    def effective_response_length(self):
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length


def arguments(**more):
    fields = {
        "normalize_advantages": False,
        "advantage_estimator": "grpo",
        "reward_key": "score",
        "gdpo_reward_keys": NAMES,
        "gdpo_reward_weights": WEIGHTS,
    }
    return Namespace(**(fields | more))


def samples(rewards):
    prompts = np.repeat(range(len(SIZES)), SIZES).tolist()[: len(rewards)]
    return [
        Sample(prompt, i, {"score": float(row.sum())} | dict(zip(NAMES, row.tolist(), strict=True)))
        for i, (prompt, row) in enumerate(zip(prompts, rewards, strict=True))
    ]


def test_a_rollout_batch_gets_the_advantages_of_the_formula_and_keeps_what_slime_logs():
    rewards = scored(8)
    raw, advantages = post_process(arguments(), samples(rewards))
    assert raw == rewards.sum(-1).tolist()
    assert_allclose(advantages, by_formula(rewards, SIZES), rtol=0, atol=1e-12)


def test_a_reward_that_a_sample_lacks_or_has_as_none_is_left_out():
    rewards, given = scored(8), samples(scored(8))
    rewards[4, 1] = rewards[5, 0] = np.nan
    del given[4].reward["format"]
    given[5].reward["correct"] = None
    _, advantages = post_process(arguments(), given)
    assert_allclose(advantages, by_formula(rewards, SIZES), rtol=0, atol=1e-12)


def test_samples_of_one_rollout_count_once_and_share_its_advantage():
    given = samples(scored(8))
    for sample in given:
        sample.rollout_id = sample.index
    _, advantages = post_process(arguments(), [*given, given[0], given[4]])
    wanted = by_formula(scored(8), SIZES)
    assert_allclose(advantages, [*wanted, wanted[0], wanted[4]], rtol=0, atol=1e-12)


def test_samples_of_one_rollout_with_unequal_rewards_are_refused():
    given = samples(scored(8))
    given[0].rollout_id = given[1].rollout_id = 7
    with data_error("rollout_id"):
        post_process(arguments(), given)


def test_the_batch_step_counts_the_tokens_that_are_trained_where_asked_to():
    given = samples(scored(8))
    counts = np.arange(1, len(given) + 1)
    for sample, count in zip(given, counts, strict=True):
        sample.response_length, sample.loss_mask = 100, [1] * int(count) + [0] * 3
    _, advantages = post_process(arguments(gdpo_options={"token_counts": True}), given)
    wanted = by_formula(scored(8), SIZES, token_counts=grid(counts, SIZES, fill=0.0))
    assert_allclose(advantages, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"normalize_advantages": True}, "--normalize-advantages"),
        ({"advantage_estimator": "ppo"}, "--advantage-estimator ppo .*grpo or gspo or cispo"),
        ({"reward_key": None}, "--reward-key None"),
        ({"gdpo_reward_keys": None}, r"^gdpo_reward_keys=None"),
        ({"gdpo_reward_key": ["a"]}, r"gdpo_reward_key\b.*gdpo_reward_keys"),
        ({"gdpo_reward_keys": ["corect"], "gdpo_reward_weights": None}, "did you mean 'correct'"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong, named):
    with config_error(named):
        post_process(arguments(**wrong), samples(scored(8)))


@pytest.mark.parametrize(("field", "value"), [("reward", 1.0), ("group_index", None)])
def test_a_sample_without_components_or_group_is_refused(field, value):
    given = samples(scored(8))
    setattr(given[2], field, value)
    with data_error("sample 2 has group_index"):
        post_process(arguments(), given)


def test_another_estimator_goes_by_its_name():
    settings = {"gdpo_estimator": "rloo", "gdpo_reward_weights": {"correct": 1.0, "format": 2.0}}
    _, advantages = post_process(arguments(**settings), samples(scored(8)))
    totals = scored(8) @ [1.0, 2.0]
    first = totals[:3]
    assert_allclose(advantages[:3], (first - first.mean()) * 1.5, atol=1e-12)


def test_the_batches_of_a_run_share_the_state_of_the_estimator():
    settings = {"gdpo_reward_weights": None, "gdpo_options": {"scale_half_life": 128}}
    for group, wanted, _ in one_by_one(scored(3, 3), [1.0, 1.0]):
        _, advantages = post_process(arguments(**settings), samples(group))
        assert_allclose(advantages, wanted, rtol=0, atol=1e-12)
