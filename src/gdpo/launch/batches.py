"""The batches of a recipe in verl's units.

TRL counts rollouts, and optimizer steps; verl counts prompts, and generations.
"""

import math
from dataclasses import dataclass

from gdpo.errors import ConfigError
from gdpo.launch._trl_defaults import field
from gdpo.recipes.batches import split_batch
from gdpo.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes of a cluster, each with as many GPUs."""

    nodes: int
    gpus: int
    """Of each node."""

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.nodes), ("--gpus", self.gpus)):
            if count < 1:
                raise ConfigError(f"{option} must be 1 or more, got {count}")

    @property
    def processes(self) -> int:
        """One for each GPU."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Batches:
    """Of one generation, over all GPUs."""

    prompts: int
    samples: int
    """Rollouts of each prompt."""
    prompts_per_update: int
    """What one optimizer step learns from."""
    micro_batch: int
    """Rollouts in one forward pass on one GPU, where none is longer than another."""
    iterations: int
    """How often the optimizer goes through a generation."""

    @property
    def updates(self) -> int:
        """Optimizer steps per generation."""
        return self.prompts // self.prompts_per_update * self.iterations

    def generations(self, optimizer_steps: float) -> int:
        """As many optimizer steps in generations, rounded up."""
        return math.ceil(optimizer_steps / self.updates)

    def lines(self) -> list[str]:
        """The arithmetic in words."""
        rollouts = self.prompts * self.samples
        per_update = self.prompts_per_update * self.samples
        return [
            f"{self.prompts:,} prompts × {self.samples} samples = {rollouts:,} rollouts per "
            "generation, which is a step of verl",
            f"optimizer steps on each: {self.updates:,}, of {per_update:,} rollouts",
        ]


def plan(recipe: Recipe, machines: Machines) -> Batches:
    """The batches of a recipe, the same on any machines that can share them.

    Raises:
        ConfigError: These machines cannot, or an optimizer step would learn from parts of groups.
    """
    batch = recipe.batch
    if batch.per_step % batch.samples:
        raise ConfigError(
            f"{recipe.place('batch', 'rollouts_per_step')}: verl trains on whole groups, and "
            f"{batch.per_step} rollouts per step are no multiple of batch.samples: set a multiple "
            f"of {batch.samples}"
        )
    return Batches(
        prompts=batch.prompts,
        samples=batch.samples,
        prompts_per_update=batch.per_step // batch.samples,
        micro_batch=split_batch(recipe, machines.processes).micro_batch,
        iterations=field(recipe, "num_iterations"),
    )
