"""Measures the effect of each reward at a checkpoint of a run."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gdpo._text import command
from gdpo.errors import ConfigError
from gdpo.lab.recipes.read import read_recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.checkpoints import Checkpoint, checkpoints, damage
from gdpo.lab.runs.directory import RunDirectory, create_run
from gdpo.lab.training._interrupt import StopRequest
from gdpo.lab.training._loop import Loop, make_trainer
from gdpo.lab.training._progress import RunView
from gdpo.lab.training.preflight import prepare, quiet
from gdpo.policy.effect import Batch, MeasuredEffect, Policy, Progress
from gdpo.policy.steps import OptimizerStep

_ROWS = 4
"""Rows on which the rewards are checked before the model is loaded."""

_DRAW_ONLY = (
    "save_minutes=1000000",
    "trainer.max_steps=1000000000",
    "trainer.save_strategy=no",
    "trainer.eval_strategy=no",
    "trainer.eval_on_start=false",
    "trainer.load_best_model_at_end=false",
    "trainer.report_to=none",
    "trainer.push_to_hub=false",
    "trainer.effect_every=null",
)
"""Changes of a recipe, so that its trainer draws batches, but saves and sends nothing."""


def measure_run(path: Path, progress: Progress, step: int | None, groups: int) -> MeasuredEffect:
    """Return the effect of each reward at a checkpoint. The run is not changed.

    The trainer of the run resumes from the checkpoint as with `gdpo train --resume`: with the same
    order of prompts, rewards, gates and weights, and the state of the optimizer. It generates
    batches, but takes no step.

    Args:
        path: A run directory.
        progress: Called when a batch has been generated, and again when it has been measured.
        step: Step of the checkpoint. None: the newest.
        groups: Number of groups, rounded up to whole batches, of which there are at least three.

    Raises:
        ConfigError: If the path is not a run, or the run has no such checkpoint, or has weights per
            prompt, an estimator for turns, or `token_counts`.
        DataError: If the data of the run can no longer be read.
    """
    run = RunDirectory(path)
    if not run.environment.is_file():
        why = f"has no {run.environment.name}" if path.exists() else "does not exist"
        raise ConfigError(
            f"{path} {why}, so it is not a run of gdpo. Pass a run directory, or a model with its "
            "rollout files: gdpo effect MODEL ROLLOUTS"
        )
    start = _checkpoint(run, step)
    with TemporaryDirectory() as folder, quiet():
        resolved = resolve(read_recipe(run.recipe, (*_DRAW_ONLY, f"runs_dir={folder}")))
        recipe, rule = resolved.recipe, resolved.rule
        if recipe.data.weights_column or rule.wants_turns or rule.wants_token_counts:
            raise ConfigError(
                f"{run.recipe}: the effect cannot be measured with weights per prompt, an "
                "estimator for turns, or token_counts. Choose a run without them"
            )
        job = prepare(resolved, rows=_ROWS)
        loop = Loop(job, create_run(recipe, {}), RunView(recipe.name, [], 1), StopRequest())
        trainer: Any = make_trainer(loop, start)
        batches = _drawn(trainer, start, max(-(-groups // job.batches.groups), 3), progress)
    model, optimizer = trainer.accelerator.unwrap_model(trainer.model), trainer.optimizer
    notes = [
        f"checkpoint of step {start.step:,}",
        "the whole step also has the momentum of earlier steps",
    ]
    if (trainer.loss_type, trainer.beta) != ("dapo", 0):
        notes.append("the gradient is that of loss dapo without KL, although the run has another")
    if not optimizer.param_groups[0]["lr"]:
        notes.append("the learning rate has decayed to 0, so the step has the initial one")
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] or group["initial_lr"]
    return Policy(
        model,
        trainer.reward_func_names,
        np.array(trainer._weights()),
        trainer._objective.rule,
        notes,
        OptimizerStep.live(optimizer, model.named_parameters()),
        trainer.args.max_grad_norm or np.inf,
        job.batches.micro_batch,
        trainer.temperature,
    ).measured(batches, lambda done, of: progress(of + done, 2 * of))


def _checkpoint(run: RunDirectory, step: int | None) -> Checkpoint:
    """Return the checkpoint of a step, or the newest one."""
    found = checkpoints(run.checkpoints)
    start = next((each for each in found if step in (None, each.step)), None)
    wrong = damage(start) if start else "it does not exist"
    if start and not wrong:
        return start
    if not found:
        files = run.path / "model", run.path / "rollouts"
        raise ConfigError(
            f"{run.path} has no checkpoint. Train with trainer.save_steps, or use its final model "
            f"without the optimizer: {command('effect', files, {})}"
        )
    steps = ", ".join(str(each.step) for each in found)
    raise ConfigError(
        f"{run.checkpoints}: the checkpoint cannot be used: {wrong}. Choose one with --step: "
        f"{steps}"
    )


def _drawn(trainer: Any, start: Checkpoint, count: int, progress: Progress) -> list[Batch]:
    """Resume from a checkpoint without taking a step, and return the generated batches."""
    import torch

    drawn, rounds = list[Batch](), trainer.args.steps_per_generation * trainer.num_iterations

    def draw(model: Any, inputs: Any, *_: Any) -> torch.Tensor:
        model.train()
        trainer.lr_scheduler.step = lambda *_: None
        # The trainer passes the inputs of a generation once for each of its micro-batches.
        if trainer._step % rounds == 0:
            found = trainer._filter.trained(trainer._filter.generated(inputs))
            drawn.append(Batch.of_trl(found.output, found.rewards))
            progress(len(drawn), 2 * count)
        trainer._step += 1
        trainer.control.should_training_stop = len(drawn) >= count
        return torch.zeros((), device=trainer.args.device)

    trainer.training_step = draw
    with trainer.scorer:
        trainer.train(resume_from_checkpoint=str(start.path))
    return drawn
