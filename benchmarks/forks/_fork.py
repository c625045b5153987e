"""Trains a run that can be forked, and forks it: the same state and data, one thing changed."""

import gc
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdpo.lab.recipes.batches import plan_batches
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.recipes.trainer_fields import build_config
from gdpo.lab.runs.checkpoints import Checkpoint
from gdpo.lab.runs.directory import create_run
from gdpo.lab.training._interrupt import StopRequest
from gdpo.lab.training._loop import Loop, make_trainer
from gdpo.lab.training._progress import RunView
from gdpo.lab.training.preflight import CheckedRun, prepare, quiet

POINTS = (10, 40, 80)
"""Steps after which a run is forked: early, in the middle, late."""

HORIZONS = (1, 5, 10, 20)
"""Further steps after which the effects are measured."""

STEPS = POINTS[-1] + HORIZONS[-1]

NO_CLIPPING = 1e9

Weights = Mapping[str, Any]

Callback = Callable[[Any], Any]
"""Makes a callback for a trainer, which then sees its steps."""


@dataclass(slots=True)
class Trained:
    """Stores the models of a run or of a fork after some of its steps, and how to use them."""

    job: CheckedRun
    trainer: Any
    checkpoints: Path
    models: dict[int, Weights] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    """CPU seconds since the start, after each step."""


def base_run(
    recipe: Recipe,
    kept: Callback | None = None,
    points: Sequence[int] | None = None,
    horizons: Sequence[int] | None = None,
) -> Trained:
    """Train with a checkpoint at every point, and keep the models to compare.

    Args:
        recipe: The recipe of the run.
        kept: Makes a further callback.
        points: Steps to fork at, multiples of the first one. None: `POINTS`.
        horizons: Further steps after which models are kept. None: `HORIZONS`.
    """
    points, horizons = points or POINTS, horizons or HORIZONS
    trainer = {**recipe.trainer, "save_steps": points[0], "save_total_limit": STEPS}
    recipe = recipe.model_copy(update={"trainer": trainer})
    steps = {point + further for point in points for further in (0, *horizons)}
    with quiet():
        run = trained(prepare(resolve(recipe), rows=4), None, steps, kept=kept)
    gc.freeze()  # accelerate collects garbage at the end of every fork: 0.3 s with these objects
    return run


def fork(
    recipe: Recipe, run: Trained, point: int, further: int, *, fresh_optimizer: bool = False
) -> Trained:
    """Go on from a run's checkpoint with this recipe, for some further steps.

    Args:
        recipe: The recipe of the fork: the run's recipe with one change, and another name.
        run: The run that is forked.
        point: The step to fork at.
        further: Number of further steps.
        fresh_optimizer: Whether the optimizer forgets its moments.
    """
    trainer = {**recipe.trainer, "max_steps": point + further, "save_strategy": "no"}
    resolved = resolve(recipe.model_copy(update={"trainer": trainer}))
    start = Checkpoint(run.checkpoints / f"checkpoint-{point}", point)
    steps = {point + h for h in HORIZONS if h <= further}
    with quiet():
        config = build_config(resolved)
        batches = plan_batches(config, len(run.job.problems))
        job = replace(run.job, resolved=resolved, config=config, batches=batches)
        forked = trained(job, start, steps, fresh_optimizer=fresh_optimizer)
    shutil.rmtree(forked.checkpoints.parent)
    return forked


def trained(
    job: CheckedRun,
    start: Checkpoint | None,
    keep: set[int],
    *,
    fresh_optimizer: bool = False,
    kept: Callback | None = None,
) -> Trained:
    """Train in a new run directory, from a checkpoint or from the start."""
    run = create_run(job.recipe, {})
    entries = zip(job.resolved.rewards, job.recipe.rewards, strict=True)
    shown = [(reward.name, entry.factor) for reward, entry in entries]
    view = RunView(job.recipe.name, shown, job.batches.total_steps)
    trainer = make_trainer(Loop(job, run, view, StopRequest()), start)
    result = Trained(job, trainer, run.checkpoints)
    trainer.add_callback(_keeping(result, keep, fresh_optimizer=fresh_optimizer))
    if kept is not None:
        trainer.add_callback(kept(trainer))
    with trainer.scorer:
        trainer.train(resume_from_checkpoint=str(start.path) if start else None)
    return result


def clips(run: Trained, point: int, further: int) -> bool:
    """Return whether the run's gradients are clipped in these steps."""
    logs = run.trainer.state.log_history
    steps = [row for row in logs if point < row["step"] <= point + further]
    return max(row.get("grad_norm", 0.0) for row in steps) > run.trainer.args.max_grad_norm


def _keeping(result: Trained, steps: set[int], *, fresh_optimizer: bool) -> Any:
    from transformers import TrainerCallback

    class Keeping(TrainerCallback):
        def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
            self.begun = time.process_time()
            if fresh_optimizer:
                kwargs["optimizer"].state.clear()

        def on_step_end(self, _: Any, state: Any, *__: Any, **kwargs: Any) -> None:
            if state.global_step in steps:
                weights = kwargs["model"].state_dict()
                result.models[state.global_step] = {k: v.clone() for k, v in weights.items()}
                result.seconds[state.global_step] = time.process_time() - self.begun

    return Keeping()


def without(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe with weight 0 for one reward. Its scores are still recorded."""
    return weighted(recipe, {name: 0.0})


def weighted(recipe: Recipe, factors: Mapping[str, float], *, advantage: str = "") -> Recipe:
    """Return the recipe with the weights of some rewards multiplied, and another estimator."""
    resolved = resolve(recipe)
    rewards = tuple(
        entry.model_copy(update={"weight": factors.get(reward.name, 1.0) * entry.weight})
        for reward, entry in zip(resolved.rewards, resolved.recipe.rewards, strict=True)
    )
    return recipe.model_copy(
        update={"rewards": rewards, "advantage": advantage or recipe.advantage}
    )


def named(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe under another name, which is the name of its run directory."""
    return recipe.model_copy(update={"name": name})


def unclipped(recipe: Recipe) -> Recipe:
    """Return the recipe without gradient clipping."""
    trainer = {**recipe.trainer, "max_grad_norm": NO_CLIPPING}
    return recipe.model_copy(update={"trainer": trainer})
