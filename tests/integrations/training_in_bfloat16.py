"""Trains one step in bfloat16 on a CPU, and prints as JSON how much memory it uses afterwards.

    python -m tests.integrations.training_in_bfloat16 POLICY FOLDER

`test_memory.py` runs it as a process, because the libraries read their cache sizes only once.
"""

import json
import sys

import torch
from benchmarks.memory_bf16 import memory
from datasets import Dataset
from tests.integrations.variants import PROMPTS, settings

from gdpo.integrations.trl import GDPOConfig, GDPOTrainer

SHAPES, BLOCKS, BLOCK_KB = 200, 2000, 100
kept = []


def wasteful(completions, **columns):
    """Free 200 MB in blocks from glibc's heap, below a block that stays allocated."""
    blocks = [torch.ones(BLOCK_KB * 256) for _ in range(BLOCKS)]
    kept.append(blocks[-1])
    return [float(len(text)) for text in completions]


def main(policy, folder):
    config = GDPOConfig(**settings(folder, bf16=True, max_steps=1, reward_weights=None))
    trainer = GDPOTrainer(
        policy, [wasteful], config, train_dataset=Dataset.from_dict({"prompt": PROMPTS})
    )
    before = memory()
    trainer.train()
    after_step = memory()
    weight = torch.ones(384, 128, dtype=torch.bfloat16)
    for i in range(SHAPES):
        torch.nn.functional.linear(torch.ones(300 + i, 128, dtype=torch.bfloat16), weight)
    resident, in_use = after_step[0] - before[0], memory()[1] - after_step[1]
    grown = {"resident_after_a_step": resident, "in_use_by_shapes": in_use}
    sys.stdout.write(json.dumps(grown) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
