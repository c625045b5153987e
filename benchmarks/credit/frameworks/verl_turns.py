"""Runs verl's own estimators on rewards per turn, placed on the last token of each turn.

    python verl_turns.py [beginning of a name ...]

verl's rollouts collect `turn_scores` and `tool_rewards`, but no estimator reads them. The wrappers
show what its estimators would do with rewards on tokens.
"""

import sys
from functools import partial
from importlib.metadata import version

import torch
from bias import Subject, print_lines
from layout import of_turns, on_tokens, prompt_of_rows, scalars, taken
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos


def equal_weights(shape):
    """Return the statistics of tokens that give every token the weight 1."""
    return {"old_log_probs": torch.full(shape, -torch.inf), "sum_pi_squared": torch.zeros(shape)}


def wrapped(name, **options):
    """Return one of verl's registered estimators, as an estimator for turns."""
    function = core_algos.get_adv_estimator_fn(name)

    def estimator(rewards, weights, *, turns):
        r = scalars(rewards, weights)
        values, mask = on_tokens(r, taken(turns, r.shape[2]))
        given = {"token_level_rewards": torch.tensor(values), "response_mask": torch.tensor(mask)}
        if name == "gae":
            given |= {"values": torch.zeros(mask.shape), "gamma": 1.0, "lam": 1.0}
        elif name.endswith("optimal_token_baseline"):
            given |= {"index": prompt_of_rows(r.shape), **equal_weights(mask.shape)}
        else:
            given |= {"index": prompt_of_rows(r.shape), "config": OmegaConf.create({"gamma": 1.0})}
        advantages, _ = function(**given, **options)
        return of_turns(advantages, r.shape)

    return estimator


if __name__ == "__main__":
    grpo = partial(wrapped, "grpo")
    subjects = [
        Subject("grpo, norm_adv_by_std_in_grpo=False", grpo(norm_adv_by_std_in_grpo=False)),
        Subject("grpo", grpo(), scaled=True),
        Subject("rloo", wrapped("rloo")),
        Subject("reinforce_plus_plus, gamma 1", wrapped("reinforce_plus_plus"), batch=True),
        Subject("gae, values 0, lam 1", wrapped("gae"), batch=True),
        Subject("optimal_token_baseline, equal weights", wrapped("optimal_token_baseline")),
        Subject("tir_optimal_token_baseline, equal weights", wrapped("tir_optimal_token_baseline")),
    ]
    asked = tuple(sys.argv[1:]) or ("",)
    chosen = [subject for subject in subjects if subject.name.startswith(asked)]
    print_lines("verl", version("verl"), chosen)
