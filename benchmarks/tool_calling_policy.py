"""Prepares a small tool-calling experiment: SmolLM2-135M-Instruct after a short supervised start.

    python -m benchmarks.tool_calling_policy ROWS FOLDER [--seed 0]

ROWS is rlla_sft.json.gz, ToolRL's 400 supervised rows. Half of them warm the policy up, with the
thoughts cut to a sentence, and a part of them without tags. FOLDER gets the policy, and train.jsonl
with the other half, for `gdpo train recipes/tool_calling --set data.source=FOLDER/train.jsonl`.
Needs the extra `smollm2`.
"""

import argparse
import gzip
import json
import re
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from gdpo.lab.recipes.models import convert_smollm2

THOUGHT = "<think> I call the tools that answer the request. </think>"

UNTAGGED = 0.5
"""Share of the texts of the warm start that lack the tags."""


def prompt(row):
    return [
        {"role": "system", "content": row["instruction"]},
        {"role": "user", "content": row["input"]},
    ]


def worked(rows, rng):
    """Return each prompt with its short answer."""
    for row in rows:
        text = re.sub(r"<think>.*?</think>", THOUGHT, row["output"], flags=re.DOTALL)
        if rng.random() < UNTAGGED:
            text = re.sub(r"</?\w+>", "", text)
        yield {"prompt": prompt(row), "completion": [{"role": "assistant", "content": text}]}


def warm_start(rows, folder, seed):
    model = convert_smollm2()
    on_gpu = torch.cuda.is_available()
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        SFTConfig(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            num_train_epochs=1,
            learning_rate=1e-4,
            max_length=2048,
            seed=seed,
            use_cpu=not on_gpu,
            bf16=on_gpu,
            save_strategy="no",
            logging_steps=10,
            report_to=[],
        ),
        train_dataset=Dataset.from_list(list(worked(rows, np.random.default_rng(seed)))),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    trainer.train()
    trainer.save_model()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="use only so many rows")
    options = parser.parse_args()
    with gzip.open(options.rows) as file:
        rows = json.load(file)[: options.limit]
    half = len(rows) // 2
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "train.jsonl").open("w") as out:
        for i, row in enumerate(rows[half:]):
            truth = {"ground_truth": row["output"], "style": "rule"}
            line = {"data_source": "rlla", "ability": "tool", "extra_info": {"index": i}}
            out.write(json.dumps({**line, "prompt": prompt(row), "reward_model": truth}) + "\n")
    warm_start(rows[:half], options.folder / "policy", options.seed)


if __name__ == "__main__":
    main()
