"""Converts a recipe's batch sizes to verl's units, with TRL's defaults for fields left out.

TRL counts rollouts and optimizer steps. verl counts prompts and generations.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gdpo.errors import ConfigError
from gdpo.lab.recipes.batches import split_batch
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


@dataclass(frozen=True, slots=True)
class Machines:
    """Describes a cluster in which every node has the same number of GPUs."""

    nodes: int
    gpus: int
    """Number of GPUs per node."""

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.nodes), ("--gpus", self.gpus)):
            if count < 1:
                raise ConfigError(f"{option}={count}: must be 1 or more")

    @property
    def processes(self) -> int:
        """Total number of GPUs, each of which has a process."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Batches:
    """Stores the batch sizes of one generation, summed over all GPUs."""

    prompts: int
    """Number of prompts per generation."""
    samples: int
    """Number of rollouts per prompt."""
    prompts_per_update: int
    """Number of prompts per optimizer step."""
    micro_batch: int
    """Number of rollouts of maximum length in a forward pass on one GPU."""
    iterations: int
    """Number of passes over each generation (TRL's `num_iterations`)."""

    @property
    def updates(self) -> int:
        """Number of optimizer steps per generation."""
        return self.prompts // self.prompts_per_update * self.iterations

    def generations(self, optimizer_steps: float) -> int:
        """Return the number of generations for this number of optimizer steps, rounded up."""
        return math.ceil(optimizer_steps / self.updates)

    def lines(self) -> list[str]:
        """Return lines of text that explain the batch sizes to the user."""
        rollouts = self.prompts * self.samples
        per_update = self.prompts_per_update * self.samples
        return [
            f"{self.prompts:,} prompts × {self.samples} samples = {rollouts:,} rollouts per "
            "generation (one step of verl)",
            f"optimizer steps per generation: {self.updates:,}, each on {per_update:,} rollouts",
        ]


def plan(recipe: Recipe, machines: Machines) -> Batches:
    """Return the batch sizes of a recipe. Only `micro_batch` depends on the number of machines."""
    batch = recipe.batch
    if batch.per_step % batch.samples:
        raise ConfigError(
            f"{recipe.place('batch', 'rollouts_per_step')}: verl trains on whole groups, but "
            f"{batch.per_step} rollouts per step is not a multiple of batch.samples: use a "
            f"multiple of {batch.samples}"
        )
    return Batches(
        prompts=batch.prompts,
        samples=batch.samples,
        prompts_per_update=batch.per_step // batch.samples,
        micro_batch=split_batch(recipe, machines.processes).micro_batch,
        iterations=field(recipe, "num_iterations"),
    )
