"""Prints how far verl's own GDPO is from the formula, as a Markdown table of cases.

    python tests/conformance/verl/table.py

Both run on verl's legacy path: 12 prompts, 3 rewards, seed 0, from `paths.py`.
"""

import sys

import torch
from paths import LONGEST, Batch, legacy

LONG = (LONGEST, LONGEST)
CASES = {
    "groups of 4, completions of one length": {"sizes": (4, 4), "lengths": LONG},
    "groups of 4, completions of 1 to 9 tokens": {"sizes": (4, 4)},
    "groups of 1 to 5, completions of one length": {"lengths": LONG},
    "one reward missing": {"sizes": (4, 4), "lengths": LONG, "missing": True},
    "groups of 6, every reward constant in each": {
        "sizes": (6, 6),
        "lengths": LONG,
        "silent": True,
    },
}


def advantages(batch, estimator, **more):
    return legacy(batch, adv_estimator=estimator, **more)[0]


def largest(values):
    return "NaN" if torch.isnan(values).any() else f"{float(values.abs().max()):.2g}"


def main():
    ours, theirs = "gdpo/gdpo", "gdpo"
    by_tokens = {"gdpo_options": {"token_counts": True}}
    write = sys.stdout.write
    write("| batch | largest advantage: gdpo | verl | largest difference | by tokens, too |\n")
    write("|---|---|---|---|---|\n")
    for name, case in CASES.items():
        batch = Batch(3, **case)
        a, b = advantages(batch, ours), advantages(batch, theirs)
        tokens = advantages(batch, ours, **by_tokens)
        cells = [largest(x) for x in (a, b, a - b, tokens - b)]
        write(f"| {name} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
