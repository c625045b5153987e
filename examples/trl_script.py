"""Trains with TRL and GDPO. Only the import differs from plain TRL, and weights have names.

    python examples/trl_script.py --model Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl

The data is JSON lines with `question` and `answer`, where the number follows `####`, as in GSM8K.
"""

import argparse

import torch
from datasets import load_dataset

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer


def correct(completions, solution, **_):
    """Return 1 if the last line contains the number."""
    lines = [completion[0]["content"].strip().rsplit("\n", 1)[-1] for completion in completions]
    return [float(number in line) for line, number in zip(lines, solution, strict=True)]


def brief(completions, **_):
    """Return 1 up to 300 characters, falling to 0 at 900."""
    return [
        min(1.0, max(0.0, (900 - len(completion[0]["content"])) / 600))
        for completion in completions
    ]


def to_prompt(row):
    """Return a chat prompt and the number that the response must end with."""
    request = f"{row['question']}\nEnd with the number on a line of its own."
    return {
        "prompt": [{"role": "user", "content": request}],
        "solution": row["answer"].split("####")[-1].strip(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="name or folder of the model")
    parser.add_argument("--data", required=True, help="JSON Lines file with question and answer")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps. Default: 100")
    parser.add_argument("--output", default="gdpo-out", help="folder. Default: gdpo-out")
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
