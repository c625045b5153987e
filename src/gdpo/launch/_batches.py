"""The batches of a recipe, as TRL would make them on as many GPUs, in verl's units.

TRL counts rollouts, and optimizer steps; verl counts prompts, and generations.
"""

import math
from dataclasses import dataclass

from gdpo.errors import ConfigError
from gdpo.launch._machines import Machines
from gdpo.launch._trl_defaults import field
from gdpo.training import Recipe


@dataclass(frozen=True, slots=True)
class Batches:
    """Of one generation, over all GPUs."""

    prompts: int
    samples: int
    """Rollouts of each prompt."""
    prompts_per_update: int
    """What one optimizer step learns from."""
    micro_batch: int
    """Rollouts in one forward pass on one GPU."""
    iterations: int
    """How often the optimizer goes through a generation."""
    product: str
    """How the rollouts of an update come about, in words."""

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
            f"optimizer steps on each: {self.updates:,}, of {per_update:,} rollouts "
            f"({self.product}), in micro-batches of {self.micro_batch}",
        ]


def plan(recipe: Recipe, machines: Machines) -> Batches:
    """The batches of a recipe on these machines.

    Raises:
        ConfigError: They do not divide as verl needs it.
    """
    samples = field(recipe, "num_generations")
    micro, accumulation = (
        field(recipe, name)
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    per_update = micro * accumulation * machines.processes
    rollouts = field(recipe, "generation_batch_size") or micro * machines.processes * (
        field(recipe, "steps_per_generation") or accumulation
    )
    _check_divides(recipe, machines, (rollouts, per_update, samples))
    return Batches(
        prompts=rollouts // samples,
        samples=samples,
        prompts_per_update=per_update // samples,
        micro_batch=micro,
        iterations=field(recipe, "num_iterations"),
        product=f"{micro} per GPU × {accumulation} accumulated × {machines.processes} GPUs",
    )


def _check_divides(recipe: Recipe, machines: Machines, counts: tuple[int, int, int]) -> None:
    rollouts, per_update, samples = counts
    product = "per_device_train_batch_size × gradient_accumulation_steps × GPUs"
    on = f"{recipe.place('trainer')}, on {machines.processes} GPUs"
    if rollouts % samples or per_update % samples:
        raise ConfigError(
            f"{on}: {rollouts} rollouts per generation and {per_update} per optimizer step "
            f"({product}) must both be multiples of num_generations = {samples}: verl deals in "
            "whole groups"
        )
    if rollouts % per_update:
        fits = _accumulation_that_fits(recipe, machines, rollouts, samples)
        raise ConfigError(
            f"{on}: {rollouts} rollouts per generation are no multiple of the {per_update} that an "
            f"optimizer step learns from ({product}): change --gpus, "
            f"trainer.gradient_accumulation_steps{fits} or trainer.generation_batch_size"
        )


def _accumulation_that_fits(recipe: Recipe, machines: Machines, rollouts: int, samples: int) -> str:
    """The largest that is smaller than the recipe's, in parentheses; empty if none is."""
    each = field(recipe, "per_device_train_batch_size") * machines.processes
    for steps in range(field(recipe, "gradient_accumulation_steps") - 1, 0, -1):
        if rollouts % (each * steps) == 0 and (each * steps) % samples == 0:
            return f" ({steps} would do)"
    return ""
