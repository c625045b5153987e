"""Compares GDPOTrainer with TRL's trainer on the same work: time and peak memory.

    python -m benchmarks.against_trl [training generation step overhead] [--rounds 5] [--only TEXT]
        [--every-variant] [--first-step]
    python -m benchmarks.against_trl plan

In each round, the variants do the same work one after the other, in one process and with the same
seed. The result is the ratio of TRL's CPU seconds to the variant's within a round, which other load
on the machine does not affect. The 95 % interval is a bootstrap over rounds. Peak memory is the
growth of the resident set during the work, in a separate process per variant (Linux only). Prints
Markdown tables.

- training: 64 completions in 8 micro-batches and groups of 4, with lengths at the quantiles of a
  log-normal distribution (mean 126, maximum 513) and prompts of 5 to 20 tokens; 4 layers of 256.
  "tool calling 600/100/4" has prompts of 600 tokens, completions of 100 and groups of 4. The limit
  is the bare model, forward and backward, on exactly the tokens that are needed. The second step is
  timed. With --first-step it is the first one, with the trials of the speed-ups.
- generation: 8 prompts of 47 tokens. A logits processor enforces the lengths.
- step: SmolLM2-135M-Instruct (the extra `smollm2`), generation included.
- overhead: our trainer with every switch off, and with rollout records.

`plan` calculates the tokens and TFLOP of a step on a GPU, and measures nothing.
"""

import argparse
import json
import platform
from dataclasses import replace

import torch
import transformers
import trl
from benchmarks.against_trl._generation import GENERATION
from benchmarks.against_trl._measure import LIMIT, ON_GPU, THEIRS, compare, once, peak, quiet
from benchmarks.against_trl._plan import show
from benchmarks.against_trl._training import TRAINING
from benchmarks.against_trl._whole_step import OVERHEAD, STEP

from gdpo.errors import MissingExtraError

PARTS = {part.title: part for part in (TRAINING, GENERATION, STEP, OVERHEAD)}


def table(part, names, variants, rounds):
    first, *_ = part.settings
    if part not in (STEP, TRAINING) and not ON_GPU:  # there, the first step is not timed
        for variant in variants:  # a warm-up, so that loading at first use is not timed
            once(part, variant, first)
    print(
        f"\n{part.title}: {'wall-clock' if ON_GPU else 'CPU'} seconds of {part.unit}\n", flush=True
    )
    header = None
    for name in names:
        try:
            for row in compare(part, name, variants, rounds):
                if header is None:
                    header = list(row)
                    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
                print(f"| {' | '.join(row.values())} |", flush=True)
        except MissingExtraError as error:
            print(f"{name}: skipped, {error}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"parts to run: {', '.join(PARTS)}. Default: all")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds. Default: 5")
    parser.add_argument("--only", default="", help="run only settings whose name contains this")
    parser.add_argument(
        "--every-variant", action="store_true", help="also measure each switch separately"
    )
    parser.add_argument(
        "--first-step", action="store_true", help="time the first optimizer step, not the second"
    )
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parts == ["plan"]:
        show()
        return
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part: {', '.join(unknown)}. Allowed: {', '.join(PARTS)}")
    quiet()
    if options.peak_of:
        print(json.dumps(peak(PARTS[options.parts[0]], options.peak_of, options.only)))
        return
    print(
        f"torch {torch.__version__}, TRL {trl.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}, "
        f"{torch.cuda.get_device_name() if ON_GPU else 'one thread, float32'}; "
        f"{options.rounds} rounds"
    )
    for title in options.parts or PARTS:
        part = PARTS[title]
        if part is TRAINING and options.first_step:
            first = {name: replace(each, steps=1) for name, each in part.settings.items()}
            part = replace(part, settings=first)
        if names := [name for name in part.settings if options.only in name]:
            variants = (
                part.variants
                if options.every_variant
                else [v for v in part.variants if v in (THEIRS, LIMIT, part.variants[-1])]
            )
            table(part, names, variants, options.rounds)


if __name__ == "__main__":
    main()
