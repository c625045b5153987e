"""Train a small model on worked GSM8K solutions, so that it sometimes writes the format.

    python examples/warm_start.py --model smollm2-135m --data train.jsonl --output smollm2-warm
    gdpo train recipes/gsm8k --set model=smollm2-warm --set data.source=train.jsonl

A model that never writes the format gets 0 from every reward in every group, so no estimator can
learn from it. A short supervised phase on solutions with `<think>…</think>` and
`<answer>…</answer>` changes that.
"""

import argparse
import re

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from gdpo.lab.recipes.models import SMOLLM2, convert_smollm2
from gdpo.lab.tasks import TASKS, load_rows


def worked(row):
    """Return the solution of a row in the task's format, without GSM8K's calculator marks."""
    solution, _, answer = re.sub(r"<<.*?>>", "", row["answer"]).partition("####")
    return f"<think>{solution.strip()}</think>\n<answer>{answer.strip()}</answer>"


def examples(rows, tokenizer, longest, count):
    """Return prompt and completion of the first `count` rows with a short enough solution."""
    task = TASKS["gsm8k"]
    kept = [row for row in rows if len(tokenizer(worked(row))["input_ids"]) < longest][:count]
    return Dataset.from_list(
        [
            {
                "prompt": task.read_row(row).prompt,
                "completion": [{"role": "assistant", "content": worked(row)}],
            }
            for row in kept
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", required=True, help="Hub name, local folder, or smollm2-135m (extra smollm2)"
    )
    parser.add_argument("--data", required=True, help="GSM8K rows, as for data.source of a recipe")
    parser.add_argument("--output", required=True, help="folder for the trained model")
    parser.add_argument("--rows", type=int, default=192, help="rows to train on. Default: 192")
    parser.add_argument(
        "--longest", type=int, default=96, help="longest solution in tokens. Default: 96"
    )
    parser.add_argument("--learning-rate", type=float, default=4e-5, help="Default: 4e-5")
    options = parser.parse_args()
    source = convert_smollm2() if options.model == SMOLLM2 else options.model
    tokenizer = AutoTokenizer.from_pretrained(source)
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32),
        SFTConfig(
            output_dir=options.output,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            learning_rate=options.learning_rate,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=0,
            use_cpu=not torch.cuda.is_available(),
        ),
        # Rows from the end of the file, because RL starts at its beginning.
        train_dataset=examples(
            load_rows(options.data)[::-1], tokenizer, options.longest, options.rows
        ),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
