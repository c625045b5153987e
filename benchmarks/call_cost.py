"""Measures what a call of a model costs besides its tokens: the constant of `share_prompts`.

    python -m benchmarks.call_cost [--rounds 5]

Times a forward and a backward pass of one row with 16 to 8,192 tokens, on a GPU for the shape of
Qwen2.5-1.5B in bfloat16, on a CPU for a model with 4 layers of 256. Prints the seconds, and how
many further tokens cost as much as a call of 16 tokens.
"""

import argparse

import numpy as np
import torch
from benchmarks.against_trl._measure import ON_GPU, now, quiet
from benchmarks.against_trl._policies import BYTES, qwen_1_5b, small_llama


def seconds(model, tokens):
    ids = torch.randint(1, BYTES, (1, tokens), device=model.device)
    start = now()
    with torch.autocast(model.device.type, torch.bfloat16, enabled=ON_GPU):
        logits = model(ids, logits_to_keep=min(tokens, 128), use_cache=False).logits
    logits.float().logsumexp(-1).sum().backward()
    return now() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    quiet()
    with torch.device("cuda" if ON_GPU else "cpu"):
        model = qwen_1_5b(151_936) if ON_GPU else small_llama(BYTES + 1)
    model.train()
    sizes = [2**i for i in range(4, 14 if ON_GPU else 10)]
    seconds(model, sizes[-1])
    found = np.median([[seconds(model, size) for size in sizes] for _ in range(rounds)], axis=0)
    print("| tokens | s |\n|---|---|")
    for size, took in zip(sizes, found, strict=True):
        print(f"| {size} | {took:.4f} |")
    slope = (found[-1] - found[-2]) / (sizes[-1] - sizes[-2])
    print(f"\nA call costs as much as {found[0] / slope - sizes[0]:.0f} tokens.")


if __name__ == "__main__":
    main()
