"""Computes the number of prompts, groups, rollouts and steps of a run."""

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdpo._text import counted
from gdpo.errors import ConfigError
from gdpo.lab.recipes.recipe import Recipe

if TYPE_CHECKING:
    from gdpo.integrations.trl import GDPOConfig

_MOST_PROCESSES = 64
"""Largest number of processes that messages suggest."""


@dataclass(frozen=True, slots=True)
class Split:
    """Stores how a process splits its share of a generation into equal forward passes."""

    micro_batch: int
    """Number of rollouts per forward pass."""
    per_step: int
    """Number of forward passes per optimizer step (gradient accumulation)."""
    per_generation: int
    """Number of forward passes per generation."""


def split_batch(recipe: Recipe, processes: int) -> Split:
    """Split the batch of a recipe over processes, with the largest allowed forward pass.

    Raises:
        ConfigError: If the processes cannot share the batch equally.
    """
    found, whole, batch = _split(recipe, processes), _split(recipe, 1), recipe.batch
    if found is not None:
        return found
    assert whole is not None, "a single process shares with nobody"
    what = f"the {batch.per_step:,} rollouts of an optimizer step"
    if filters_groups(recipe):
        what += f", and the {batch.prompts:,} prompts of a generation (trainer.filter_groups),"
    if recipe.trainer.get("loss_type") == "bnpo":
        what += f" in forward passes of {whole.micro_batch} (trainer.loss_type bnpo)"
    raise ConfigError(
        f"{recipe.place('batch')}: {processes} processes cannot share {what} equally. Possible "
        f"numbers of processes: {', '.join(map(str, sharing(recipe)))}. Use one of these "
        "numbers, or change the batch, which changes the experiment: "
        "--set batch.rollouts_per_step=…"
    )


def sharing(recipe: Recipe) -> list[int]:
    """Return the numbers of processes, up to 64, that can share the batch of a recipe."""
    return [n for n in range(1, _MOST_PROCESSES + 1) if _split(recipe, n)]


def _split(recipe: Recipe, processes: int) -> Split | None:
    batch, share = recipe.batch, recipe.batch.per_step // processes
    if batch.per_step % processes or (filters_groups(recipe) and batch.prompts % processes):
        return None
    micro = max(n for n in range(1, min(batch.micro_batch, share) + 1) if share % n == 0)
    # The bnpo loss is a mean over the tokens of a forward pass, so its size must not change.
    if recipe.trainer.get("loss_type") == "bnpo" and processes > 1:
        whole = _split(recipe, 1)
        if whole is None or whole.micro_batch != micro:
            return None
    return Split(micro, share // micro, batch.rollouts // processes // micro)


def filters_groups(recipe: Recipe) -> bool:
    """Return whether groups without signal are replaced, so that processes need whole groups."""
    return recipe.trainer.get("filter_groups", "off") != "off"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Stores the counts of a generation, an optimizer step and the run, over all processes."""

    rows: int
    """Number of rows in the training data."""
    processes: int
    samples: int
    """Number of rollouts per prompt, which is the group size."""
    groups: int
    """Number of groups per generation, one per prompt."""
    rollouts: int
    """Number of rollouts that are generated, scored and normalized together."""
    rollouts_per_step: int
    """Number of rollouts per optimizer step."""
    micro_batch: int
    """Number of rollouts in a forward pass on one device."""
    steps_per_epoch: int
    total_steps: int
    save_steps: int
    """Default number of steps between checkpoints: a tenth of the run, at most 100."""
    steps_per_round: int
    """Number of optimizer steps until a generation and a step start together again."""

    @property
    def per_step(self) -> str:
        """Return the numbers of rollouts per step and of processes in words."""
        on = f"{self.processes:,} process{'es' * (self.processes != 1)}"
        return f"{self.rollouts_per_step:,} rollouts per step on {on}"

    def lines(self) -> list[str]:
        """Return the counts as sentences, one per line."""
        step = "step" if self.steps_per_round == 1 else f"{self.steps_per_round} steps"
        return [
            f"{counted(self.groups, 'prompt')} × {self.samples} samples = {self.rollouts:,} "
            f"rollouts per generation, one generation per {step}",
            f"{self.per_step}, in micro-batches of {self.micro_batch}",
            f"{counted(self.rows, 'row')} give {counted(self.steps_per_epoch, 'step')} per epoch; "
            f"this run has {counted(self.total_steps, 'step')} with "
            f"{self.total_steps * self.rollouts_per_step:,} rollouts in total",
        ]


def plan_batches(config: "GDPOConfig", rows: int) -> BatchPlan:
    """Compute the same batches as TRL's sampler and `Trainer`, from a configuration of TRL."""
    accumulation, iterations = config.gradient_accumulation_steps, config.num_iterations
    rollouts, samples = config.generation_batch_size, config.num_generations
    steps_per_generation = config.steps_per_generation
    assert rollouts is not None, "GRPOConfig fills in the generation batch"
    assert samples is not None, "GRPOConfig has a number of generations"
    assert steps_per_generation is not None, "GRPOConfig fills in the steps per generation"
    groups = rollouts // samples
    if rows < groups:
        raise ConfigError(
            f"the data has {rows} rows, but a generation needs {groups} prompts ({rollouts} "
            f"rollouts, {samples} per prompt). Use more rows, or lower batch.prompts"
        )
    micro_batches = steps_per_generation * iterations
    steps_per_epoch = math.ceil((rows // groups) * micro_batches / accumulation)
    by_epochs = math.ceil(config.num_train_epochs * steps_per_epoch)
    total_steps = config.max_steps if config.max_steps > 0 else by_epochs
    return BatchPlan(
        rows=rows,
        processes=config.world_size,
        samples=samples,
        groups=groups,
        rollouts=rollouts,
        rollouts_per_step=config.per_device_train_batch_size * config.world_size * accumulation,
        micro_batch=config.per_device_train_batch_size,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        save_steps=min(100, math.ceil(total_steps / 10)),
        steps_per_round=math.lcm(micro_batches, accumulation) // accumulation,
    )


def processes() -> int:
    """Return the number of training processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))
