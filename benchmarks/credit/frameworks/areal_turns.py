"""Runs AReaL's code from rewards of turns to advantages, for agents of its OpenAI client.

`apply_reward_discount` replaces the reward of each turn by the return-to-go. Each turn is then one
row, whose reward `PPOActor` normalizes. The rows of one prompt are given to AReaL alone, and
`group_size` is the number of these rows.
"""

import logging
import os
from importlib.metadata import version

import numpy as np
import torch
from bias import Subject, print_lines
from layout import scalars, taken

os.environ.setdefault("AREAL_LOG_LEVEL", "ERROR")

from areal.api.cli_args import NormConfig, PPOActorConfig
from areal.experimental.openai.cache import InteractionCache
from areal.experimental.openai.types import InteractionWithTokenLogpReward
from areal.trainer.ppo.actor import PPOActor
from areal.utils.data import Normalization

logging.disable(logging.CRITICAL)


def returns_of(paid, discount):
    """Return the rewards of a rollout's turns after AReaL has propagated them backwards."""
    cache = InteractionCache()
    for turn, reward in enumerate(paid):
        said = [{"role": "user", "content": str(each)} for each in range(turn + 1)]
        cache[str(turn)] = InteractionWithTokenLogpReward(messages=said, reward=float(reward))
    cache.apply_reward_discount(turn_discount=discount)
    return [interaction.reward for interaction in cache.values()]


def batch_of(returns):
    """Return one row per turn: a token of the prompt and a token of the response."""
    shape = len(returns), 2
    return {
        "input_ids": torch.ones(shape, dtype=torch.long),
        "loss_mask": torch.tensor([[0, 1]]).expand(shape).clone(),
        "attention_mask": torch.ones(shape, dtype=torch.bool),
        "logprobs": torch.zeros(shape),
        "rewards": torch.tensor(returns, dtype=torch.float32),
    }


def wrapped(*, discount=1.0, group_size=None, **norm):
    config = PPOActorConfig(
        experiment_name="e",
        trial_name="t",
        reward_bias=0.0,
        reward_scaling=1.0,
        reward_clip=1e6,
        kl_ctl=0.0,
        discount=1.0,
        gae_lambda=1.0,
        adv_norm=None,
        use_decoupled_loss=True,
    )
    actor = PPOActor(config, None)

    def advantages_of(paid, mask):
        pairs = zip(paid, mask, strict=True)
        returns = [each for row, there in pairs for each in returns_of(row[there], discount)]
        size = group_size or len(returns)
        actor.reward_norm = Normalization(NormConfig(mean_level="group", group_size=size, **norm))
        # The token of the response is predicted at the token of the prompt.
        return actor._compute_advantages(batch_of(returns))["advantages"][:, 0].numpy()

    def estimator(rewards, weights, *, turns):
        r = scalars(rewards, weights)
        result = np.zeros(r.shape)
        for prompt, (paid, mask) in enumerate(zip(r, taken(turns, r.shape[2]), strict=True)):
            result[prompt][mask] = advantages_of(paid, mask)
        return result

    return estimator


if __name__ == "__main__":
    subjects = [
        Subject("turn_discount 1, group mean", wrapped(std_level=None)),
        Subject("turn_discount 1, leave one out", wrapped(std_level=None, mean_leave1out=True)),
        Subject("turn_discount 0.9, group mean", wrapped(std_level=None, discount=0.9)),
        Subject("turn_discount 1, group mean and std", wrapped(std_level="group"), scaled=True),
    ]
    print_lines("AReaL", version("areal"), subjects)
