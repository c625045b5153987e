"""Tests environments with rewards per turn (`get_turn_rewards`) and rewards of turns with tools."""

import functools

import numpy as np
import pytest
from tests.integrations import test_trl_two_turns as two_turns
from tests.integrations.test_trl_environments import SAMPLES, Counting, digits, ours, rows
from tests.integrations.test_trl_turns import turn_of_record
from tests.integrations.test_trl_two_turns import Box
from tests.integrations.test_trl_two_turns import tokenizer as tokenizer
from tests.integrations.test_trl_two_turns import warm_start as warm_start
from tests.integrations.variants import rollouts_of
from tests.refusals import reward_error

from gdpo.rewards import Reward


class Paying(Counting):
    """Pays each call, and nothing for a turn without a call."""

    get_reward = None

    def get_turn_rewards(self):
        return [*self.earned, 0.0]


class Reading(Paying):
    """Reads the messages, so that it knows the number of turns."""

    def get_turn_rewards(self, messages):
        assert [m["role"] for m in messages] == ["assistant", "tool", "assistant"][: len(messages)]
        return [float(len(m.get("tool_calls") or ())) for m in messages if m["role"] == "assistant"]


class Later(Paying):
    """Has async rewards of turns."""

    async def get_turn_rewards(self):
        return [*self.earned, 0.0]


class Listed(Counting):
    """Returns the rewards of its turns from TRL's own method."""

    def get_reward(self):
        return [float(self.total), 0.0] if self.total else [0.0]


class Both(Paying):
    """Has the total as TRL's reward."""

    def get_reward(self):
        return float(self.total)


class Whole(Paying):
    """Returns one number for the whole rollout, which is also TRL's reward."""

    def get_turn_rewards(self):
        return float(self.total)

    def get_reward(self):
        return float(self.total)


class Slotted:
    """Cannot have other attributes."""

    __slots__ = ("earned",)

    def reset(self, **kwargs):
        self.earned = []

    increment = Counting.increment

    def get_turn_rewards(self):
        return [0.0]


def trainer_of(policy, folder, *, reward_funcs=None, **how):
    record = str(folder / "rollouts")
    return ours(
        policy,
        folder,
        reward_funcs=reward_funcs,
        how=how,
        advantage="turn_gdpo",
        rollouts_dir=record,
        max_steps=1,
    )


def trained(policy, folder, *, reward_funcs=digits, **how):
    trainer = trainer_of(policy, folder, reward_funcs=reward_funcs, **how)
    trainer.train()
    return trainer, rollouts_of(folder)


@pytest.mark.parametrize("environment", [Later, Both, Listed, functools.partial(Paying)])
def test_an_environment_rewards_each_turn(environment, place):
    trainer, rollouts = trained(*place, environment_factory=environment)
    name = getattr(environment, "__name__", "Paying")
    assert trainer.reward_func_names == ["digits", name]
    assert [tool.__name__ for tool in trainer.tools] == ["increment"]
    found = [[turn.rewards[name] for turn in rollout.turns] for rollout in rollouts]
    assert found == [[1.0, 0.0], [3.0, 0.0], [0.0]] * 2
    assert [rollout.rewards[name] for rollout in rollouts] == [1.0, 3.0, 0.0] * 2
    assert all(isinstance(each, Counting) for each in trainer.environments)


@pytest.mark.parametrize(
    ("environment", "totals"), [(Reading, [1.0, 1.0, 0.0]), (Whole, [1.0, 3.0, 0.0])]
)
def test_the_method_may_want_the_messages_or_return_one_number_for_the_rollout(
    environment, totals, place
):
    _, rollouts = trained(*place, environment_factory=environment)
    name = environment.__name__
    assert [rollout.rewards[name] for rollout in rollouts] == totals * 2
    turns = [[turn.rewards[name] for turn in rollout.turns] for rollout in rollouts]
    at = 0 if environment is Reading else -1  # where the number is
    assert [each[at] for each in turns] == totals * 2


@pytest.mark.parametrize(
    ("methods", "named"),
    [
        ({"get_reward": lambda self: self.total + 1.0}, "completion 0.*get_reward returned 2.0"),
        ({"get_reward": lambda self: "three"}, "completion 0.*'three'"),
        ({"get_turn_rewards": lambda self: self.earned}, "has 1 numbers.*completion 0.* 2 turns"),
    ],
    ids=["another total", "no number", "too few turns"],
)
def test_a_wrong_reward_names_the_environment(methods, named, place):
    environment = type("Wrong", (Paying,), methods)
    with reward_error(f"'Wrong'.*{named}"):
        trained(*place, environment_factory=environment)


def test_several_environments_and_names_share_a_class(place):
    factories = {"a": Paying, "b": functools.partial(Paying), "c": Counting}
    data = rows(environment=["a"] * SAMPLES + ["b"] * SAMPLES)
    trainer = trainer_of(*place, environment_factory=factories, train_dataset=data)
    assert trainer.reward_func_names == ["Paying", "Counting"]
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["rewards/Paying/mean"] == pytest.approx(4 / 3)
    assert logged["turns/max"] == 2


def test_objects_of_a_class_with_slots_are_environments_too(place):
    trainer = trainer_of(*place, environment_factory=lambda: Slotted())
    assert trainer.reward_func_names == ["Slotted"]


def calls(messages, reference):
    """Return 1 if the turn calls a tool. It cannot see whether the call worked."""
    return float("tool_calls" in messages[-1])


def test_a_reward_of_turns_gets_the_messages_of_tools(place):
    reward = Reward("calls", calls, low=0, high=1, of="turn")
    data = rows(reference=[{}] * 2 * SAMPLES)
    _, rollouts = trained(*place, reward_funcs=[reward], train_dataset=data)
    found = [[turn.rewards["calls"] for turn in rollout.turns] for rollout in rollouts]
    assert found == [[1.0, 0.0], [1.0, 0.0], [0.0]] * 2


class PayingBox(Box):
    """Pays a right guess in the turn that guesses, and an honest conclusion in its own turn."""

    reward_range = (0, 1.5)

    def get_turn_rewards(self, messages):
        right = "right" if self.guessed == self.hidden else "wrong"
        earned = []
        for message in messages:
            if message["role"] == "assistant":
                earned.append(0.5 * (bool(earned) and message.get("content") == right))
            elif message["content"] == "right":
                earned[-1] += 1.0
        return earned

    get_reward = None  # not the total


@pytest.mark.slow
def test_a_policy_learns_both_turns_of_a_tool_call(warm_start, tokenizer, tmp_path):
    trainer = two_turns.trained(
        *(warm_start, tokenizer, tmp_path),
        rewards=(),
        environment=PayingBox,
        reward_weights=None,
        advantage="turn_gdpo",
        rollouts_dir=str(tmp_path / "rollouts"),
    )
    means = [entry["rewards/PayingBox/mean"] for entry in trainer.state.log_history[:-1]]
    assert np.mean(means[:3]) < 0.7 < 1.0 < np.mean(means[-3:])
    rollouts = rollouts_of(tmp_path)
    counts = np.array([len(rollout.turns) for rollout in rollouts])
    assert (counts == 2).sum() > 16
    advantages = turn_of_record(rollouts, [1.0])
    for rollout, own in zip(rollouts, advantages, strict=True):
        shown = [turn.advantage for turn in rollout.turns]
        assert shown == pytest.approx(own[: len(shown)], abs=1e-5)
