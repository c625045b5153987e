"""A TRL script with GDPO: the import differs from plain TRL, and the weights have names.

    python examples/trl_script.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl

The data is JSON lines with `question` and `answer` (the text after `####` is the number): GSM8K's
own form.
"""

import argparse

import torch
from datasets import load_dataset

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer


def correct(completions, solution, **_):
    """1 if the last line holds the number."""
    lines = [completion[0]["content"].strip().rsplit("\n", 1)[-1] for completion in completions]
    return [float(number in line) for line, number in zip(lines, solution, strict=True)]


def brief(completions, **_):
    """1 up to 300 characters, 0 from 900."""
    return [
        min(1.0, max(0.0, (900 - len(completion[0]["content"])) / 600))
        for completion in completions
    ]


def to_prompt(row):
    """A chat prompt and the number that a solution must end with."""
    request = f"{row['question']}\nEnd with the number on a line of its own."
    return {
        "prompt": [{"role": "user", "content": request}],
        "solution": row["answer"].split("####")[-1].strip(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--output", default="gdpo-out")
    options = parser.parse_args()
    rows = load_dataset("json", data_files=options.data, split="train")
    trainer = GDPOTrainer(
        options.model,
        [correct, brief],
        GDPOConfig(
            output_dir=options.output,
            advantage="gdpo",
            reward_weights={"correct": 1.0, "brief": 0.5},
            rollouts_dir=f"{options.output}/rollouts",
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=256,
            max_steps=options.steps,
            logging_steps=1,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=rows.map(to_prompt, remove_columns=rows.column_names),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
