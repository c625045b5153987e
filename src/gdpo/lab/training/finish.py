"""Writes the results of a finished run: the model and the README."""

import os
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from gdpo._files import write_json, write_whole
from gdpo._text import capitalized
from gdpo.diagnostics import Diagnosis, diagnose
from gdpo.diagnostics.diagnosis import Severity
from gdpo.lab.recipes.models import WEIGHTS
from gdpo.lab.recipes.recipe import Recipe
from gdpo.lab.recipes.resolve import Resolved
from gdpo.lab.runs.checkpoints import LIST, Checkpoint, best_checkpoint
from gdpo.lab.runs.directory import RunDirectory, RunFacts, now
from gdpo.lab.runs.summary import number, readme, reward_changes
from gdpo.lab.training.preflight import CheckedRun
from gdpo.rollouts import read_rollouts, reward_arrays, rollout_file

_NO_SIGNAL = (
    "nothing was learned: in every step, all samples of a group got the same rewards. Use a "
    "stronger or warm-started model, more samples per prompt, longer completions or easier rows"
)

_LAST = 10
"""Number of steps at the end of a run that are diagnosed together."""

_MODEL_ENDINGS = (*WEIGHTS, ".json", ".jinja", ".txt", ".model")
_NO_MODEL = (LIST, "trainer_state.json", "entropy_ctrl_state.json", "training_args.bin")
"""Checkpoint files that have the extension of a model file but do not belong to the model."""


def finish_run(job: CheckedRun, facts: RunFacts) -> tuple[str, ...]:
    """Write the model and the README of a run if its last step is finished. Return notes on it."""
    run, last = facts.run, facts.last
    if last is None or last.step < job.batches.total_steps:
        return ()
    run.tidy()
    notes: list[str] = []
    if not _publish_model(job, run, last):
        notes.append(
            f"{last.path} has no complete weights (they may be sharded), so {run.model} was "
            "not written"
        )
    constant = [number(row, "frac_reward_zero_std") for row in facts.rows]
    if constant and not any(share is not None and share < 1 for share in constant):
        notes.append(_NO_SIGNAL)
    diagnosis = _diagnose_the_end(job, run, last.step)
    if diagnosis is not None:
        warnings = (f for f in diagnosis.findings if f.severity is Severity.WARNING)
        notes += [f"warning: {f.message}. {capitalized(f.advice())}" for f in warnings]
    write_readme(job.resolved, facts, last.step, diagnosis)
    return tuple(notes)


def write_readme(
    resolved: Resolved, facts: RunFacts, steps: int, diagnosis: Diagnosis | None = None
) -> None:
    """Write the README of a run, and mark the run as finished."""
    environment = {**facts.environment, "finished": now(), "steps": steps}
    changes = reward_changes(facts.steps, resolved.rewards, resolved.weights)
    text = readme(resolved.recipe, environment, changes, steps=steps, diagnosis=diagnosis)
    write_whole(facts.run.readme, text)
    # last, because `finished` means that every file exists
    write_json(facts.run.environment, environment)


def _diagnose_the_end(job: CheckedRun, run: RunDirectory, last: int) -> Diagnosis | None:
    """Diagnose the last steps from their rollouts. None: no rollout was trained on."""
    files = [rollout_file(run.rollouts, step) for step in range(max(1, last - _LAST + 1), last + 1)]
    records = [rollout for file in files if file.exists() for rollout in read_rollouts(file)]
    rollouts = [rollout for rollout in records if rollout.trained]
    if not rollouts:
        return None
    arrays = reward_arrays(rollouts)
    low, high = job.resolved.ranges
    return diagnose(
        arrays.rewards,
        arrays.weights,
        arrays.names,
        estimator=job.recipe.advantage,
        advantages=arrays.advantages,
        low=low,
        high=high,
    )


def _publish_model(job: CheckedRun, run: RunDirectory, last: Checkpoint) -> bool:
    """Write `model/` from a checkpoint, and return whether the checkpoint has weights.

    The files are hard links if possible. A LoRA adapter is merged into its base model.
    """
    checkpoint = _best_or(last, job)
    files = [
        file
        for file in checkpoint.iterdir()
        if file.suffix in _MODEL_ENDINGS and file.name not in _NO_MODEL
    ]
    if not any(file.suffix in WEIGHTS for file in files):
        return False
    with model_being_made(run, [file for file in files if file.name not in ADAPTER]) as folder:
        if job.recipe.lora is not None:
            merge_adapter(job.recipe, job.model.source, checkpoint, folder)
    return True


@contextmanager
def model_being_made(run: RunDirectory, files: Iterable[Path]) -> Generator[Path]:
    """Yield a folder with these files, which becomes the run's `model/` after the block."""
    partial = Path(tempfile.mkdtemp(prefix=".model.", dir=run.path))
    try:
        for file in files:
            try:
                os.link(file, partial / file.name)
            except OSError:
                shutil.copy2(file, partial / file.name)
        yield partial
        partial.chmod(0o755)
        shutil.rmtree(run.model, ignore_errors=True)
        partial.rename(run.model)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _best_or(last: Checkpoint, job: CheckedRun) -> Path:
    """Return the best checkpoint if the recipe sets `load_best_model_at_end`, else the last."""
    if not job.config.load_best_model_at_end:
        return last.path
    best = last.path.parent / (best_checkpoint(last.path) or last.path.name)
    return best if best.is_dir() else last.path


ADAPTER = ("adapter_model.safetensors", "adapter_model.bin", "adapter_config.json")
"""Adapter files in a checkpoint."""


_OF_TRAINING = ("device_map", "quantization_config")
"""Options for loading a model that do not apply to a merge, which runs on the CPU."""


def merge_adapter(recipe: Recipe, base: str, adapter: Path, folder: Path) -> None:
    """Merge an adapter into its base model and save the result in the dtype used for training."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    given = recipe.trainer.get("model_init_kwargs") or {}
    options = {key: value for key, value in given.items() if key not in _OF_TRAINING}
    if recipe.trainer.get("trust_remote_code"):
        options["trust_remote_code"] = True
    # float32 is TRL's default.
    model = AutoModelForCausalLM.from_pretrained(base, **{"dtype": "float32", **options})
    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    merged.save_pretrained(folder)
