"""Stores TRL's defaults for `trainer:` fields that are not set in a recipe."""

from collections.abc import Mapping
from typing import Any

from gdpo.lab.recipes.recipe import Recipe

DEFAULTS: Mapping[str, Any] = {
    "num_iterations": 1,
    "max_completion_length": 512,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "max_grad_norm": 1.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "entropy_coef": 0.0,
    "loss_type": "dapo",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "seed": 42,
    "gradient_checkpointing": True,
    "vllm_tensor_parallel_size": 1,
}


def field(recipe: Recipe, name: str) -> Any:
    """Return a `trainer:` field of the recipe, or TRL's default if the recipe does not set it."""
    return recipe.trainer.get(name, DEFAULTS[name])
