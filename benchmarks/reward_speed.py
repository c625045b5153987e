"""Measures how many completions per second the tasks' rewards score on one core.

    GDPO_DATA=FOLDER python benchmarks/reward_speed.py

The completions are reference answers of real rows (`tools/rlla_sft.json.gz` and
`gsm8k/train.jsonl.gz` in that folder), each once unchanged and once without one word. Measures CPU
seconds of this process. Prints a Markdown table: the function alone, and through a scorer.
"""

import argparse
import os
import random
import time
from functools import partial
from pathlib import Path

from gdpo.lab.tasks import TASKS, load_problems
from gdpo.rewards import Scorer

ROWS = {"tool_calling": "tools/rlla_sft.json.gz", "gsm8k": "gsm8k/train.jsonl.gz"}


def damaged(text, rng):
    words = text.split(" ")
    words.pop(rng.randrange(len(words)))
    return " ".join(words)


def seconds(run, rounds):
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


def answers(task, rows):
    """Return correct and damaged answers, and their references."""
    samples, rng = load_problems(task, str(rows), limit=2000), random.Random(0)
    golds = [task.gold_completion(sample.reference) for sample in samples]
    texts = [*golds, *(damaged(gold, rng) for gold in golds)]
    return texts, [sample.reference for sample in samples] * 2


def call_each(function, texts, references):
    for text, reference in zip(texts, references, strict=True):
        function(text, reference)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = os.environ.get("GDPO_DATA")
    if not folder:
        raise SystemExit("set GDPO_DATA to the folder that holds tools/ and gsm8k/")
    print("| task | reward | completions | per second, function | per second, through a scorer |")
    print("|---|---|---|---|---|")
    for name, rows in ROWS.items():
        batch = answers(TASKS[name], Path(folder) / rows)
        count = len(batch[0])
        for reward in TASKS[name].rewards:
            alone = seconds(partial(call_each, reward.function, *batch), options.rounds)
            scored = seconds(partial(Scorer([reward]).score, *batch), options.rounds)
            print(
                f"| {name} | {reward.name} | {count:,} | {count / alone:,.0f} | "
                f"{count / scored:,.0f} |"
            )


if __name__ == "__main__":
    main()
