"""Does one training step on several rewards through the Tinker API: sample, score, update.

Copy this file as gdpo_tinker.py next to your script. examples/tinker_training.py is such a script.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tinker import types

from gdpo import DataError
from gdpo.advantages import AdvantageRule

Tokens = list[int]


class Step(NamedTuple):
    """Stores what was sampled and computed in one step."""

    completions: list[list[Tokens]]
    finish_reasons: list[list[str]]
    """`stop` or `length`, for each completion of each prompt."""
    rewards: np.ndarray
    advantages: np.ndarray
    logprob_difference: float
    """Mean difference of a token's log-probability between sampler and trainer, in nats. The
    difference stays small if the updated weights are transferred to the sampler."""


def train_step(
    client: Any,
    prompts: Sequence[Tokens],
    score: Callable[[list[list[Tokens]]], Any],
    rule: AdvantageRule,
    weights: Sequence[float],
    *,
    sampling: Any,
    learning_rate: float,
) -> Step:
    """Sample a group for each prompt, score it, compute the advantages and update the model.

    The loss is Tinker's `importance_sampling`, a sum over tokens.

    Args:
        client: Training client from the Tinker SDK.
        prompts: Prompts as tokens.
        score: Function that returns `rewards[prompt, sample, reward]`. NaN: does not apply.
        rule: Estimator with its options.
        weights: One weight per reward.
        sampling: Arguments of Tinker's `sample`: `num_samples` and `sampling_params`.
        learning_rate: Learning rate for Adam.
    """
    if not all(prompts):
        raise DataError("a prompt has no tokens. Pass at least one token per prompt")
    sampler = client.save_weights_and_get_sampling_client()
    futures = [sampler.sample(types.ModelInput.from_ints(each), **sampling) for each in prompts]
    groups = [future.result().sequences for future in futures]
    completions = [[list(each.tokens) for each in group] for group in groups]
    rewards = np.asarray(score(completions), dtype=float)
    rows = [(p, s) for p, group in enumerate(groups) for s in range(len(group))]
    if rewards.ndim != 3 or rewards.shape[0] * rewards.shape[1] != len(rows):
        raise DataError(
            f"score returned the shape {rewards.shape} for {len(prompts)} prompts with "
            f"{len(rows)} completions. Return rewards[prompt, sample, reward]"
        )
    advantages = np.asarray(rule(rewards, weights))
    rule.update(rewards, weights)
    data = [datum(prompts[p], groups[p][s], advantages[p, s]) for p, s in rows]
    loss = client.forward_backward(data, "importance_sampling")
    client.optim_step(types.AdamParams(learning_rate=learning_rate)).result()
    differences = [
        np.abs(np.array(output["logprobs"].data)[len(prompts[p]) - 1 :] - groups[p][s].logprobs)
        for (p, s), output in zip(rows, loss.result().loss_fn_outputs, strict=True)
    ]
    reasons = [[str(each.stop_reason) for each in group] for group in groups]
    return Step(completions, reasons, rewards, advantages, np.concatenate(differences).mean())


def datum(prompt: Tokens, sampled: Any, advantage: float) -> types.Datum:
    """Return a completion as Tinker's `Datum`. Position i predicts token i + 1."""
    tokens, before = [*prompt, *sampled.tokens], len(prompt) - 1
    advantages = [0.0] * before + [advantage] * len(sampled.tokens)
    per_token = {
        "target_tokens": np.array(tokens[1:], dtype=np.int64),
        "logprobs": np.array([0.0] * before + list(sampled.logprobs), dtype=np.float32),
        "advantages": np.array(advantages, dtype=np.float32),
    }
    inputs = {key: types.TensorData.from_numpy(value) for key, value in per_token.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
