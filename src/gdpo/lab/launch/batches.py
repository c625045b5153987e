"""Converts a recipe's batch sizes to verl's units.

TRL counts rollouts and optimizer steps. verl counts prompts and generations.
"""

import math
from dataclasses import dataclass

from gdpo.errors import ConfigError
from gdpo.lab.launch._trl_defaults import field
from gdpo.lab.recipes.batches import split_batch
from gdpo.lab.recipes.recipe import Recipe


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
        """Number of processes, which equals the total number of GPUs."""
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
    """Return the batch sizes of a recipe. Only `micro_batch` depends on the number of machines.

    Raises:
        ConfigError: If the batch does not divide evenly over the machines' GPUs, or if an optimizer
            step would use only part of a group.
    """
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
