"""Keeps what an effect and an account need from a run: weights, moments and batches."""

from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.forks._fork import POINTS
from transformers import TrainerCallback

NEAR = 2
"""Batches before and after a step whose gradients the account without the source uses."""

LENGTH = 20
"""Steps of the longest window."""

STEPS = POINTS[-1] + LENGTH + NEAR

SLOPE = 10
"""Training batches before a point over which a slope is visible."""

Flat = torch.Tensor
"""All parameters in one row, in the order of `named_parameters`."""


@dataclass(slots=True)
class Batch:
    """Stores the rollouts of one training batch."""

    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: Any
    """`[prompt, sample, reward]`."""
    advantages: Any
    """`[rollout]`, as the run used them."""


@dataclass(slots=True)
class Kept:
    """Stores a run around its points. A key is the number of finished steps."""

    weights: dict[int, Flat] = field(default_factory=dict)
    first: dict[int, Flat] = field(default_factory=dict)
    """First moment of AdamW: its decayed mean of the loss gradients, at the points."""
    second: dict[int, Flat] = field(default_factory=dict)
    """Second moment of AdamW."""
    batches: dict[int, Batch] = field(default_factory=dict)
    means: dict[int, Any] = field(default_factory=dict)
    """Mean of each reward in every training batch, `[reward]`."""
    group: dict[str, Any] = field(default_factory=dict)
    """Settings of the optimizer."""


def keeping(kept: Kept, trainer: Any) -> TrainerCallback:
    """Return the callback of a trainer that fills `kept`, after it sees each batch."""
    original = trainer._replace_advantages

    def seen(batch: Any) -> Any:
        advantages = original(batch)
        step, rewards = trainer.state.global_step, batch.rewards.double().numpy().copy()
        kept.means[step] = rewards.mean((0, 1))  # the trial batch at step 0 is replaced
        if _wanted(step):
            prompts, completions = (
                [row[mask.bool()].tolist() for row, mask in zip(*both, strict=True)]
                for both in (
                    (batch.output["prompt_ids"], batch.output["prompt_mask"]),
                    (batch.output["completion_ids"], batch.output["completion_mask"]),
                )
            )
            used = advantages.double().numpy().reshape(-1)
            kept.batches[step] = Batch(prompts, completions, rewards, used)
        return advantages

    trainer._replace_advantages = seen

    class Keeping(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **kwargs: Any) -> None:
            step, model = state.global_step, kwargs["model"]
            if not _wanted(step):
                return
            optimizer = kwargs["optimizer"]
            optimizer = getattr(optimizer, "optimizer", optimizer)
            parameters = [each for _, each in model.named_parameters()]
            moments = [optimizer.state[each] for each in parameters]
            kept.weights[step] = flat(parameters)
            kept.second[step] = flat([each["exp_avg_sq"] for each in moments])
            if step in POINTS:
                kept.first[step] = flat([each["exp_avg"] for each in moments])
            kept.group |= {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}

    return Keeping()


def _wanted(step: int) -> bool:
    return any(point - NEAR <= step <= point + LENGTH + NEAR for point in POINTS)


def flat(tensors: Any) -> Flat:
    """Return a copy of the tensors in one row."""
    return torch.cat([each.detach().reshape(-1) for each in tensors])


def loaded(model: Any, weights: Flat) -> Any:
    """Return the model with these weights."""
    parameters = [each for _, each in model.named_parameters()]
    parts = weights.split([each.numel() for each in parameters])
    with torch.no_grad():
        for each, part in zip(parameters, parts, strict=True):
            each.copy_(part.view_as(each))
    return model
