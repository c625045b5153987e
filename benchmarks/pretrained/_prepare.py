"""Prepares SmolLM2: problems, a policy after a short supervised start, and a recipe."""

import json

import numpy as np
import torch
from benchmarks.pretrained.arithmetic import draw, prompt
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from gdpo.lab.recipes.models import convert_smollm2
from gdpo.lab.recipes.recipe import DataConfig, Recipe

HELD_OUT, OTHERS, WORKED, DRAWN = 160, 128, 960, 2112
"""Numbers of problems: held out, of other kinds and held out, of the warm start, drawn at first."""

POOL = 640
"""Number of candidates for training."""

TAGGED = 0.25
"""Share of the worked problems that have the tags."""

PHRASES = (
    "The answer is {result}.",
    "{problem} = {result}",
    "{problem} = {result}. So the final answer is {result}.",
    "Let us calculate {problem}. The result of {problem} is {result}, so the answer is {result}.",
)


def problems(start=0):
    """Return the problems: the pool for training, held out, of other kinds, and the worked ones.

    Each number of a warm start draws other problems.

    The pool has sums of two numbers and products, of which the policy solves about half after the
    warm start. The other kinds are differences and sums of three numbers, of which it solves a
    tenth.
    """
    drawn = draw(DRAWN, seed=2 * start)
    order = np.random.default_rng(start).permutation(DRAWN)
    apart, worked_out = ([drawn[i] for i in part] for part in np.split(order, [DRAWN - WORKED]))
    known = {row["problem"] for row in drawn}
    more = [row for row in draw(2 * DRAWN, seed=2 * start + 1) if row["problem"] not in known]
    ours = [row for row in apart + more if has_two_terms(row)]
    return {
        "held_out": ours[:HELD_OUT],
        "pool": ours[HELD_OUT : HELD_OUT + POOL],
        "other_kinds": [row for row in apart if not has_two_terms(row)][:OTHERS],
        "worked": worked_out,
    }


def has_two_terms(row):
    """Return whether a problem is a sum of two numbers or a product."""
    _, sign, *more = row["problem"].split()
    return sign != "-" and len(more) == 1


def worked(rows, start=0):
    """Return each problem with a response in a random phrase."""
    rng = np.random.default_rng(start)
    for row in rows:
        phrase = PHRASES[rng.integers(len(PHRASES))]
        if rng.random() < TAGGED:
            phrase = "{problem} = {result}\n<answer>{result}</answer>"
        said = [{"role": "assistant", "content": phrase.format(**row)}]
        yield {"prompt": prompt(row["problem"]), "completion": said}


def warm_start(rows, folder, start):
    """Train SmolLM2 on the worked problems for one epoch, and save it."""
    model, partial = convert_smollm2(), folder.with_name("policy.partial")
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        SFTConfig(
            output_dir=str(partial),
            per_device_train_batch_size=16,
            num_train_epochs=1,
            learning_rate=1e-4,
            warmup_steps=10,
            seed=start,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            logging_steps=5,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=Dataset.from_list(list(worked(rows, start))),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.train()
    trainer.save_model()
    partial.rename(folder)


def recipe(folder, start=0, worked=WORKED):
    """Write a policy after a supervised start and its problems, and return the recipe.

    Args:
        folder: Where to write. A finished policy is kept.
        start: Number of the warm start: the seed of the problems, the phrases and the training.
        worked: Number of problems of the supervised start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = problems(start)
    if not (folder / "policy").exists():
        warm_start(parts["worked"][:worked], folder / "policy", start)
    rows = folder / "train.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in parts["pool"]))
    return Recipe(
        task="benchmarks.pretrained.arithmetic:ARITHMETIC",
        model=str(folder / "policy"),
        data=DataConfig(source=str(rows)),
        trainer={
            "max_completion_length": 40,
            "learning_rate": 5e-6,
            "lr_scheduler_type": "constant",
            "use_cpu": not torch.cuda.is_available(),
            "bf16": torch.cuda.is_available(),
            "gradient_checkpointing": False,
        },
        runs_dir=str(folder),
    )
