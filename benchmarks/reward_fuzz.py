"""Runs every built-in reward on many odd texts.

    python benchmarks/reward_fuzz.py [--texts 100000] [--only NAME ...] [--workers 2]

The texts are random, recombined pieces of examples, deeply nested, megabytes long, or contain
control characters and lone surrogates. Rewards for the number of tokens get numbers instead. Scores
are computed as in a scorer: rewards with a deadline run in worker processes, and code rewards in a
sandbox inside them. Prints a Markdown table with failures and with the median, the 99.9th
percentile and the maximum time of a score. Exits with 1 if a reward failed. A full run takes long.
"""

import argparse
import pickle
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import cloudpickle
import numpy as np

from gdpo.lab.rewards.code import no_bug, pass_all, pass_rate
from gdpo.lab.tasks import TASKS
from gdpo.rewards._pool import RewardWorker
from gdpo.rewards.calls import RewardCall, RewardFailure
from gdpo.rewards.length import soft_overlong, token_limit, token_range
from gdpo.rewards.maths import maths_answer
from gdpo.testing import hostile_texts

EVERY = 1000
"""Every N-th text repeats one piece up to 100,000 or 1,000,000 characters."""

HUGE = ("x", "[", '{"a":', "\\boxed{", "<think>", "(", "9", "\\frac{1}{", "\ud800", "\n", "def f(")


def rewards():
    yield from ((f"{task}: {r.name}", r) for task in TASKS for r in TASKS[task].rewards)
    for reward in (token_limit(1000), soft_overlong(1000, 200), token_range(100, 500, width=50)):
        yield reward.function.func.__name__.strip("_"), reward
    for extract in ("boxed", "answer_tag", "last_number"):
        yield f"maths_answer: {extract}", maths_answer(extract)
    yield from ((r.name, r) for r in (pass_rate, pass_all, no_bug))


def random_text(rng):
    highest = rng.choice((0x7F, 0x2FFF, 0x10FFFF))
    return "".join(chr(rng.randrange(highest)) for _ in range(rng.randrange(200)))


def completions(reward, count, seed):
    rng = random.Random(seed)
    if reward.of == "tokens":
        return [rng.randrange(10 ** rng.randrange(1, 12)) for _ in range(count)]
    edited = hostile_texts(reward, count, seed)
    texts = [random_text(rng) if i % 5 == 0 else text for i, text in enumerate(edited)]
    for i in range(0, count, EVERY):
        texts[i] = (rng.choice(HUGE) * 1_000_000)[: rng.choice((100_000, 1_000_000))]
    return list(islice(texts, count))


def timed(reward, count, seed, workers):
    """Return the result and the seconds of each score, in any order."""
    rng = random.Random(seed)
    references = [example.reference for example in reward.examples]
    calls = [
        RewardCall(0, reward, text, pickle.dumps(rng.choice(references)))
        for text in completions(reward, count, seed)
    ]
    if reward.deadline is None:
        return [timed_call(call, RewardCall.run) for call in calls]
    shares = [calls[first::workers] for first in range(workers)]
    with ThreadPoolExecutor(workers) as threads:
        return list(chain.from_iterable(threads.map(in_a_worker, shares)))


def in_a_worker(calls):
    """Time each call, including communication with the process but not its start."""
    worker = RewardWorker(cloudpickle.dumps([calls[0].reward]), memory=8)
    worker.run(calls[0])
    measured = [timed_call(call, worker.run) for call in calls]
    worker.stop()
    return measured


def timed_call(call, run):
    start = time.perf_counter()
    result = run(call)
    return result, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=[], help="Names of rewards. Default: all.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| reward | scores | failed | median | 99.9 % | largest |")
    print("|---|---|---|---|---|---|")
    broken = 0
    for name, reward in rewards():
        if options.only and not any(part in name for part in options.only):
            continue
        measured = timed(reward, options.texts, options.seed, options.workers)
        failures = [result for result, _ in measured if isinstance(result, RewardFailure)]
        seconds = np.array([taken for _, taken in measured]) * 1e3
        middle, high, largest = (*np.quantile(seconds, (0.5, 0.999)), seconds.max())
        kinds = ", ".join(sorted({failure.kind for failure in failures}))
        failed = f"{len(failures)} ({kinds})" if failures else "0"
        print(
            f"| {name} | {len(measured):,} | {failed} | {middle:.3g} ms | {high:.3g} ms | "
            f"{largest:.3g} ms |",
            flush=True,
        )
        broken += len(failures)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
