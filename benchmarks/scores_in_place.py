"""Checks that each score belongs to its own row, even if rewards fork, raise, exit, cancel or hang.

    python -m benchmarks.scores_in_place [--calls 10000] [--seed 0] [--workers 2]

Three rewards carry out an action that is drawn at random for each row: one runs in worker
processes, one in this process, and one is a coroutine function. Half of the rows do no harm. Each
row has a unique value and is scored once, so a score of another row is detected. Prints a Markdown
table with the number of scores per reward that are in place, missing, misplaced (another value) or
unexplained (missing without a failure, or with a failure of the wrong kind), and a table of the
missing scores by kind. Exits with 1 if a score is misplaced or unexplained.
"""

import argparse
import asyncio
import ctypes
import logging
import os
import random
import signal
import stat
import struct
import sys
import time
from collections import Counter
from contextlib import suppress

import numpy as np

from gdpo.rewards import Reward, Scorer

DEADLINE_S = 5.0
BATCH = 50

_children = []


class OfItsOwn(BaseException):
    """An exception that `except Exception` does not catch."""


def raises(error):
    raise error


def fork(*, then=lambda: None, by=os.fork):
    """Fork. The child calls `then`, and continues as if it were the reward."""
    child = by()
    if child == 0:
        return then()
    _children.append(child)
    _children[:] = [pid for pid in _children if not _ended(pid)]
    return None


def _ended(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # a child of the process that sent this function to the worker
        return True


def scribble():
    """Write a forged answer to every open socket."""
    answer = b"[-1, 0.5]"
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  its own descriptor is closed again
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), struct.pack("!i", len(answer)) + answer)
        except OSError:
            continue


ANYWHERE = {
    "nothing": (lambda: None, None),
    "fork": (fork, None),
    "fork, the child fails": (lambda: fork(then=lambda: raises(OSError())), None),
    "fork, the child is late": (lambda: fork(then=lambda: time.sleep(0.02)), None),
    "raise": (lambda: raises(ValueError()), "raised ValueError"),
    "raise one of its own": (lambda: raises(OfItsOwn()), "raised OfItsOwn"),
    "raise GeneratorExit": (lambda: raises(GeneratorExit()), "raised GeneratorExit"),
    "exit": (lambda: sys.exit(3), "raised SystemExit"),
}
"""Actions by name, with the kind of failure that they cause. None: no failure."""

NOT_IN_A_LOOP = ANYWHERE | {"fork in C": (lambda: fork(by=ctypes.PyDLL(None).fork), None)}

IN_A_WORKER = NOT_IN_A_LOOP | {
    "end the process": (lambda: os._exit(0), "worker died"),
    "be killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "worker died"),
    "answer in its place": (scribble, "worker died"),
    "hang": (lambda: time.sleep(60), "timed out"),
}


async def hang():
    await asyncio.sleep(60)


async def hang_on():
    for _ in range(60):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


async def cancel_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


IN_A_LOOP = ANYWHERE | {
    "raise CancelledError": (lambda: raises(asyncio.CancelledError()), "raised CancelledError"),
    "cancel itself": (cancel_itself, "raised CancelledError"),
    "cancel itself at the end": (lambda: asyncio.current_task().cancel(), "raised CancelledError"),
    "stop the loop": (lambda: asyncio.get_running_loop().stop(), None),
    "hang": (hang, "timed out"),
    "hang though cancelled": (hang_on, "timed out"),
}

DEEDS = {"in a worker": IN_A_WORKER, "here": NOT_IN_A_LOOP, "in the loop": IN_A_LOOP}

CHANCES = {
    "hang": 0.02,  # takes as long as the deadline
    "hang though cancelled": 0.02,
    "end the process": 0.2,  # a new process must start
    "be killed": 0.2,
    "answer in its place": 0.2,
}
"""Weight of an action. Default: 1. "nothing" has the weight of all others together."""


def in_a_worker(_completion, reference):
    IN_A_WORKER[reference["in a worker"]][0]()
    return reference["value"]


def here(_completion, reference):
    NOT_IN_A_LOOP[reference["here"]][0]()
    return reference["value"]


async def in_the_loop(_completion, reference):
    await asyncio.sleep(reference["pause"])
    waits = IN_A_LOOP[reference["in the loop"]][0]()
    if asyncio.iscoroutine(waits):
        await waits
    return reference["value"]


REWARDS = (
    Reward("in a worker", in_a_worker, 0, 1, deadline=DEADLINE_S),
    Reward("here", here, 0, 1),
    Reward("in the loop", in_the_loop, 0, 1, deadline=DEADLINE_S),
)


def rows(count, seed, *, hanging=True):
    """Return references with a unique value and the action of each reward."""
    rng = random.Random(seed)
    drawn = {
        name: rng.choices(list(deeds), _chances(deeds, hanging), k=count)
        for name, deeds in DEEDS.items()
    }
    return [
        {"value": (i + 1) / 2**20, "pause": rng.choice((0, 0.001, 0.002))}
        | {name: drawn[name][i] for name in DEEDS}
        for i in range(count)
    ]


def _chances(deeds, hanging):
    chances = {deed: CHANCES.get(deed, 1.0) for deed in deeds}
    if not hanging:
        chances |= {deed: 0.0 for deed in deeds if deed.startswith("hang")}
    return list((chances | {"nothing": sum(chances.values())}).values())


def fates(references, *, workers):
    """Count, for each reward, the scores in place, misplaced, unexplained, or failed by kind."""
    counts = {name: Counter() for name in DEEDS}
    with Scorer(REWARDS, workers=workers, retries=0, progress=lambda *_: None) as scorer:
        for first in range(0, len(references), BATCH):
            batch = references[first : first + BATCH]
            scores = scorer.score([f"row {first + i}" for i in range(len(batch))], batch)
            kinds = {(failure.reward, failure.index): failure.kind for failure in scores.failures}
            for column, name in enumerate(DEEDS):
                for i, reference in enumerate(batch):
                    fate = _fate(
                        scores.values[i, column],
                        reference["value"],
                        kinds.get((name, i)),
                        DEEDS[name][reference[name]][1],
                    )
                    counts[name][fate] += 1
    return counts


def _fate(score, own, kind, wanted):
    if not np.isnan(score):
        return "in place" if score == own and kind is None and wanted is None else "misplaced"
    # On a busy machine any call may time out.
    return kind if kind is not None and kind in (wanted, "timed out") else "unexplained"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="Number of calls of each reward.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    counts = fates(rows(options.calls, options.seed), workers=options.workers)
    print("| reward | calls | in place | missing | misplaced | unexplained |")
    print("|---|---|---|---|---|---|")
    wrong = 0
    for name, of in counts.items():
        own, *bad = (of.pop(fate, 0) for fate in ("in place", "misplaced", "unexplained"))
        print(f"| {name} | {options.calls} | {own} | {of.total()} | {bad[0]} | {bad[1]} |")
        wrong += sum(bad)
    print("\n| reward | kind | missing |\n|---|---|---|")
    for name, of in counts.items():
        for kind, count in sorted(of.items()):
            print(f"| {name} | {kind} | {count} |")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
