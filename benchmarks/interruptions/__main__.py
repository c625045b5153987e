"""Interrupts train, compare and evaluate, resumes them, and compares with uninterrupted runs.

    python benchmarks/interruptions --seed 1
    python benchmarks/interruptions --counts train=20,slow=0 --folder /tmp/interruptions

`train` and `evaluate` run in forks of this process, `compare` and `torchrun` (two processes, gloo)
as on the command line. In `slow` a step takes 40 s when the signal comes. A trial is interrupted
one to three times: SIGKILL at a random file operation or moment, SIGINT, SIGTERM, or SIGINT twice.
Then the same command (a training with --resume) runs to the end. A trial fails if the result is not
that without an interruption, if steps are lost (SIGINT and SIGTERM: any; otherwise more than
since the last checkpoint), or if there is a traceback, a remaining file or process, or a call that
hangs. Prints a table, keeps the folders of failed trials, and exits with 1 if a trial fails.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from _equal import differing, differing_evaluations, left_over, steps
from _place import prepare, recipe
from _processes import Kill, alive, fork, spawn

COUNTS = {"train": 120, "evaluate": 40, "compare": 24, "torchrun": 8, "slow": 8}
"""Number of interruptions of each sort."""

HANGS_S = 300.0
AT_ONCE_S = 30.0
"""Seconds that a launcher waits before it kills a process."""

WAYS = {
    "SIGKILL at a file": (),
    "SIGKILL": (signal.SIGKILL,),
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}
GENTLE = ("SIGINT", "SIGTERM")
LABELS = ("grpo", "gdpo")


@dataclass
class Tally:
    """Stores the results of the trials of one sort."""

    trials: int = 0
    ways: Counter = field(default_factory=Counter)
    lost: Counter = field(default_factory=Counter)
    """Steps, by way."""
    faults: list = field(default_factory=list)
    slowest: float = 0.0
    """Seconds from a signal within a long step to the end."""

    def add(self, other):
        self.trials += other.trials
        self.ways += other.ways
        self.lost += other.lost
        self.faults += other.faults
        self.slowest = max(self.slowest, other.slowest)


@dataclass
class Trial:
    """Calls one command in a folder until it is done."""

    shared: Path
    path: Path
    sort: str
    save_steps: int = 1
    real: bool = False
    calls: list = field(default_factory=list)
    before: dict = field(default_factory=dict)
    """Steps of each run when the latest call started."""
    orphans: list = field(default_factory=list)
    """Processes of earlier calls that were still running when the latest call started."""
    tally: Tally = field(default_factory=lambda: Tally(trials=1))

    def __post_init__(self):
        self.path.mkdir(parents=True)
        self.recipe = recipe(self.shared, self.path, self.save_steps)
        self.out = self.path / "run"

    @property
    def runs(self):
        if self.sort == "compare":
            return [self.out / f"{label}-seed-1" for label in LABELS]
        return [] if self.sort == "evaluate" else [self.out]

    def arguments(self):
        """Return the command, for the first call or to resume."""
        if self.sort == "compare":
            chosen = ["--estimators", ",".join(LABELS), "--seeds", 1, "--jobs", 2, "--retry-failed"]
            return ["compare", self.recipe, *chosen, "--output", self.out]
        if self.sort == "evaluate":
            data = f"gsm8k={self.shared / 'rows.jsonl'}"
            chosen = ["--benchmarks", "gsm8k", "--data", data, "--samples", 2, "--temperature", 1]
            limit = ["--max-tokens", 24]
            return ["evaluate", self.shared / "policy", *chosen, *limit, "--output", self.out]
        begun = (self.out / "environment.json").is_file()
        resume = ["--resume", "--from-scratch"] if begun else []
        return ["train", self.recipe, "--no-report", *resume]

    def start(self, kill=None, count=None):
        """Call the command."""
        self.before = {run: steps(run) for run in self.runs}
        self.orphans = self.alive()
        code = self.shared / "code"
        name = f"call-{len(self.calls)}"
        if self.sort == "torchrun":  # ignore what the launcher itself prints
            ranks = ["--redirects", 3, "--log-dir", self.path / f"ranks-{len(self.calls)}"]
            launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", 2, *ranks]
            command = [*launch, "-m", "gdpo", *self.arguments()]
            process = spawn(command, code, self.path, self.path / f"{name}.txt", kill)
        elif self.sort == "compare" or self.real:
            command = ["gdpo", *self.arguments()]
            process = spawn(command, code, self.path, self.path / f"{name}.log", kill)
        else:
            log = self.path / f"{name}.log"
            process = fork(self.arguments(), code, self.path, log, kill, count)
        self.calls.append(process)
        return process

    def wrong(self, what):
        self.tally.faults.append(f"{self.path.name}: {what}")

    def alive(self):
        """Return the command lines of processes that still run although their calls have ended."""
        return alive(self.path, [call.pid for call in self.calls])

    def ended(self, process, way):
        """Wait for the end of an interrupted call, and count the steps that it lost."""
        if process.wait(HANGS_S) is None:
            self.wrong(f"hangs after {way}")
            process.send(signal.SIGKILL, group=True)
            process.wait(HANGS_S)
        if process.code == 0:
            return  # it was done before
        self.tally.ways[way] += 1
        if process.code == -signal.SIGKILL and self.sort in ("compare", "torchrun"):
            if self.sort == "torchrun":  # its ranks train on, and keep others out until they end
                self.without_launcher()
            return
        self.look_for_losses(way)

    def look_for_losses(self, way):
        left = self.alive()
        if way in GENTLE and left and not self.orphans:  # what an earlier call left may be unknown
            self.wrong(f"{len(left)} processes live after {way}: {left[0]}")
        for run in self.runs:
            logged, saved = steps(run)
            if (logged, saved) == self.before[run]:  # what lacks was lost by an earlier call
                continue
            self.tally.lost[way] += logged - saved
            if logged - saved > (0 if way in GENTLE else self.save_steps):
                self.wrong(f"{way}: logged {logged} steps, goes on from {saved}: {run.name}")

    def without_launcher(self):
        """Wait for ranks whose launcher was killed, because they continue to train."""
        end = time.monotonic() + HANGS_S
        while alive(self.path, []) and time.monotonic() < end:
            time.sleep(0.5)

    def finish(self, reference):
        """Call the command until it is done, and compare the result."""
        process = self.start()
        if process.wait(HANGS_S * 2) != 0:
            self.wrong(f"going on ended with {process.code}")
        if left := self.alive():
            self.wrong(f"{len(left)} processes live: {left[0]}")
        for log in self.path.rglob("*.log"):
            if "Traceback (most recent call last)" in log.read_text(errors="replace"):
                self.wrong(f"traceback in {log.relative_to(self.path)}")
        if left := left_over(self.path):
            self.wrong(f"left over: {', '.join(left)}")
        if process.code == 0 and reference is not None:
            self.compare(reference)
        if not self.tally.faults:
            shutil.rmtree(self.path)
        return self.tally

    def compare(self, reference):
        pairs = [(run, reference / run.relative_to(self.path)) for run in self.runs]
        found = [f"{run.name} {what}" for run, other in pairs for what in differing(run, other)]
        if self.sort == "evaluate":
            found = differing_evaluations(self.out, reference / "run")
        if found:
            self.wrong(f"not equal: {', '.join(found)}")


def interrupt(trial, draw, seconds, operations):
    """Interrupt one call at a random moment or file operation."""
    way = draw.choice(list(WAYS))
    if not WAYS[way]:
        claim = trial.path.parent / f"{trial.path.name}-{len(trial.calls)}.claim"
        reach = operations if trial.save_steps == 1 else operations // 2  # fewer checkpoints
        kill = Kill(draw.randint(1, reach), trial.path, claim)
        trial.ended(trial.start(kill), way)
        claim.unlink(missing_ok=True)
        return
    process = trial.start()
    process.wait(draw.uniform(0, seconds))
    for number in WAYS[way]:
        process.send(number, group=trial.sort == "torchrun" and number == signal.SIGINT)
        process.wait(draw.uniform(0.01, 2.0) if way == "SIGINT twice" else 0)
    trial.ended(process, way)


def interrupt_long_step(trial, way):
    """Interrupt a call within a step of 40 s."""
    process = trial.start()
    while process.poll() is None and any(steps(run)[0] < 2 for run in trial.runs):
        time.sleep(0.05)
    (trial.path / "switch").touch()
    process.wait(6)
    began = time.monotonic()
    process.send(WAYS[way][0], group=trial.sort == "torchrun" and way == "SIGINT")
    trial.ended(process, way)
    trial.tally.slowest = time.monotonic() - began
    if trial.tally.slowest > AT_ONCE_S:
        trial.wrong(f"took {trial.tally.slowest:.0f} s to end in a long step")
    (trial.path / "switch").unlink()


class Trials:
    """Runs all trials, and the uninterrupted runs that they are compared with."""

    def __init__(self, folder, seed):
        self.folder, self.seed = folder, seed
        self.references = {}

    def reference(self, sort):
        """Run without interruption; return the folder, seconds and number of file operations."""
        if sort not in self.references:
            trial = Trial(self.folder, self.folder / f"{sort}-reference", sort)
            count, began = self.folder / "count", time.monotonic()
            count.write_text("150")
            if trial.start(count=count).wait(2 * HANGS_S) != 0:
                sys.exit(f"{trial.path} ended with {trial.calls[0].code}")
            seconds = time.monotonic() - began
            self.references[sort] = (trial.path, seconds, int(count.read_text()))
        return self.references[sort]

    def fast(self, sort, wanted):
        """Interrupt a command at random until the requested number is reached."""
        tally = Tally()
        path, seconds, operations = self.reference(sort)
        while sum(tally.ways.values()) < wanted:
            draw = random.Random(f"{self.seed} {sort} {tally.trials}")
            name = self.folder / f"{sort}-{tally.trials}"
            trial = Trial(self.folder, name, sort, draw.choice((1, 4)))
            for _ in range(draw.randint(1, 3)):
                interrupt(trial, draw, seconds, operations)
            tally.add(trial.finish(path))
            show(f"{sort}: {sum(tally.ways.values())} of {wanted}, {len(tally.faults)} wrong")
        return tally

    def slow(self, wanted):
        """Interrupt long steps, several at a time, because they only sleep."""
        kinds = [("train", "SIGINT"), ("train", "SIGTERM"), ("compare", "SIGINT")]
        kinds += [("torchrun", "SIGINT"), ("torchrun", "SIGTERM"), ("compare", "SIGTERM")]
        for sort, _ in kinds[:wanted]:
            self.reference(sort)
        tally = Tally()

        def one(number):
            sort, way = kinds[number % len(kinds)]
            trial = Trial(self.folder, self.folder / f"slow-{number}", sort, 100, real=True)
            interrupt_long_step(trial, way)
            return trial.finish(self.references[sort][0])

        with ThreadPoolExecutor(3) as pool:
            for each in pool.map(one, range(wanted)):
                tally.add(each)
        return tally


def show(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--counts", default="", help="interruptions of each sort, as train=20")
    parser.add_argument("--folder", type=Path, help="left out: a temporary one")
    options = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell ignores SIGINT in background jobs
    given = dict(pair.split("=") for pair in options.counts.split(",") if pair)
    counts = COUNTS | {sort: int(count) for sort, count in given.items()}
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="interruptions-"))).absolute()
    prepare(folder)
    _import_everything()
    trials, tallies = Trials(folder, options.seed), {}
    for sort, wanted in counts.items():
        if wanted:
            tallies[sort] = trials.slow(wanted) if sort == "slow" else trials.fast(sort, wanted)
            print_tally(sort, tallies[sort])
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    print_tally("all", total)
    sys.exit(1 if total.faults else 0)


def _import_everything():
    """Import everything that a command needs, so that forks start after the imports."""
    import torch

    torch.set_num_threads(1)


def print_tally(sort, tally):
    """Print a line per kind of interruption, and one per failure."""
    line = f"{sort}: {tally.trials} trials, {sum(tally.ways.values())} interruptions"
    slow = f"; {tally.slowest:.1f} s to end in a long step" if tally.slowest else ""
    print(f"{line}, {len(tally.faults)} faults{slow}")
    for way in WAYS:
        if tally.ways[way]:
            print(f"  {way:18} {tally.ways[way]:4} times {tally.lost[way]:4} steps lost")
    for fault in tally.faults if sort != "all" else ():
        print(f"  WRONG {fault}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
