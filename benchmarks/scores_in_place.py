"""Whether each score is its own row's, whatever rewards do: fork, raise, exit, cancel, stop, hang.

    python -m benchmarks.scores_in_place [--calls 10000] [--seed 0] [--workers 2]

Three rewards do what each row says, drawn at random: one runs in worker processes, one in this
process, one is a coroutine function. Half of the rows do no harm. Each row has a value of its own
and is scored once, so a score that is another row's is seen. Prints a Markdown table: of each
reward how many scores are the row's own, how many are missing, how many are misplaced (another
value) or unexplained (missing without a failure, or with one of a kind that the row did not cause);
then what is missing, by kind. Exits with 1 if any is misplaced or unexplained.
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
    """No exception that `except Exception` catches."""


def raises(error):
    raise error


def fork(*, then=lambda: None, by=os.fork):
    """The child does something and then goes on as if it were the reward."""
    child = by()
    if child == 0:
        return then()
    _children.append(child)
    _children[:] = [pid for pid in _children if not _ended(pid)]
    return None


def _ended(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # of the process that sent this function to a worker
        return True


def scribble():
    """Answers in place of the worker, on whatever socket is open."""
    answer = b"[-1, 0.5]"
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  the folder's own is closed by then
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
"""By name: what is done, and the kind of failure that it is; None: none."""

NOT_IN_A_LOOP = ANYWHERE | {
    "fork in C": (lambda: fork(by=ctypes.PyDLL(None).fork), None),
}

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
    "hang": 0.02,  # lasts as long as the deadline
    "hang though cancelled": 0.02,
    "end the process": 0.2,  # another one has to start
    "be killed": 0.2,
    "answer in its place": 0.2,
}
"""How often a deed is drawn, beside 1 for the others; as often as all of them: nothing."""


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
    """References: a value of its own, and what each reward does."""
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
    """Of each reward, how often it came to what: in place, misplaced, unexplained, or a kind."""
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
    # A busy machine may be late with anything.
    return kind if kind is not None and kind in (wanted, "timed out") else "unexplained"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="of each reward")
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
