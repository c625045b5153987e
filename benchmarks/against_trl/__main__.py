"""GDPOTrainer against TRL's own, on the same work: training, generation, whole steps, memory.

    python -m benchmarks.against_trl [training generation step overhead] [--rounds 5] [--only TEXT]
        [--every-variant]

In each round the variants do the work in turn, in one process and from the same seed. The figure is the
ratio of TRL's CPU seconds to an variant's within a round: other load on the machine does not touch it.
The interval is a bootstrap over rounds. Peak memory is the growth of the resident set while the
work is done, in a process of its own for every variant (Linux only). Prints Markdown tables.

- training: 64 completions in 8 micro-batches and groups of 4, lengths at the quantiles of a
  log-normal distribution (mean 126, longest 513), prompts of 5 to 20 tokens; 4 layers of 256.
- generation: 8 prompts of 47 tokens; lengths are given, whatever the weights say.
- step: SmolLM2-135M-Instruct (the extra `smollm2`), generation included.
- overhead: what our trainer costs with every switch off, and with rollout records.
"""

import argparse
import json
import platform

import torch
import transformers
import trl
from benchmarks.against_trl._generation import GENERATION
from benchmarks.against_trl._measure import compare, once, peak, quiet
from benchmarks.against_trl._training import TRAINING
from benchmarks.against_trl._whole_step import OVERHEAD, STEP

from gdpo.errors import MissingExtraError

PARTS = {part.title: part for part in (TRAINING, GENERATION, STEP, OVERHEAD)}


def table(part, names, variants, rounds):
    first, *_ = part.settings
    if part is not STEP:
        for variant in variants:  # what is loaded and set up at first use is not timed
            once(part, variant, first)
    print(f"\n{part.title}: CPU seconds of {part.unit}\n", flush=True)
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
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="settings whose name holds this")
    parser.add_argument("--every-variant", action="store_true", help="each switch by itself, too")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    quiet()
    if options.peak_of:
        print(json.dumps(peak(PARTS[options.parts[0]], options.peak_of, options.only)))
        return
    print(
        f"torch {torch.__version__}, TRL {trl.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}, one thread, float32; "
        f"{options.rounds} rounds"
    )
    for title in options.parts or PARTS:
        part = PARTS[title]
        if names := [name for name in part.settings if options.only in name]:
            variants = (
                part.variants if options.every_variant else (part.variants[0], part.variants[-1])
            )
            table(part, names, variants, options.rounds)


if __name__ == "__main__":
    main()
