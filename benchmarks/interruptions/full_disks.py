"""Fills the disk under ten trainings, comparisons and evaluations, makes room, and goes on.

    sudo python benchmarks/interruptions/full_disks.py

Each runs on a disk in memory of so many checkpoints, which takes root to mount. Wrong is: a
traceback, no sentence that names the full disk, a training that does not name the step that is
safe, and another result than on a large disk. Exits with 1 if anything is.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from _equal import differing, differing_evaluations
from _place import prepare, recipe
from _processes import spawn

CHECKPOINTS = (1.5, 2.3, 2.8, 3.3, 4.2, 5.6, 7.4)
"""How many a disk has room for under a training that keeps ten."""

COMPARED = (3.5, 7.0)
"""The same under a comparison of two runs."""

FULL = re.compile(
    r"^(?:gdpo|.*failed): .*(?:disk of .* is full|and two checkpoints of this run).*", re.M
)
SAFE = re.compile(r"Step \d+ is safe|No step was saved yet|two checkpoints of this run")


def main():
    shared = Path(tempfile.mkdtemp(prefix="full-disks-"))
    prepare(shared)
    once = _called(shared, shared / "reference", _training(shared, shared / "reference"))
    assert once.returncode == 0, once.stdout
    run = shared / "reference" / "run"
    size = sum(f.stat().st_size for f in next((run / "checkpoints").iterdir()).rglob("*"))
    wrong = [_trained(shared, run, round(size * count)) for count in CHECKPOINTS]
    wrong += [_compared(shared, round(size * count)) for count in COMPARED]
    wrong += [_evaluated(shared, run)]
    print(f"{len(wrong)} full disks, {sum(wrong)} told or continued wrongly")
    sys.exit(any(wrong))


def _training(shared, folder):
    folder.mkdir(exist_ok=True)
    path = recipe(shared, folder, 1)
    return ["train", path, "--no-report", "--set", "trainer.save_total_limit=10"]


def _trained(shared, reference, size):
    with Disk(size) as disk:
        command = _training(shared, disk.folder)
        told = _called(shared, disk.folder, command)
        disk.grow()
        begun = (disk.folder / "run").exists()
        done = _called(shared, disk.folder, [*command, *(["--resume"] if begun else [])])
        equal = done.returncode == 0 and not differing(disk.folder / "run", reference)
        return _is_wrong(f"train, {size:,} bytes", told, SAFE, equal=equal)


def _compared(shared, size):
    with Disk(size) as disk:
        command = ["compare", *_training(shared, disk.folder)[1:2], "--estimators", "grpo,gdpo"]
        command += ["--seeds", "1", "--jobs", "1", "--output", disk.folder / "run"]
        command += ["--set", "trainer.save_total_limit=10"]
        told = _called(shared, disk.folder, command)
        disk.grow()
        done = _called(shared, disk.folder, [*command, "--retry-failed"])
        return _is_wrong(f"compare, {size:,} bytes", told, FULL, equal=done.returncode == 0)


def _evaluated(shared, run):
    options = [run / "model", "--benchmarks", "gsm8k", "--data", f"gsm8k={shared / 'rows.jsonl'}"]
    command = ["evaluate", *options, "--max-tokens", "24", "--temperature", "1", "--samples", "4"]
    reference = shared / "evaluated"
    whole = _called(shared, shared, [*command, "--output", reference])
    assert whole.returncode == 0, whole.stdout
    with Disk(60_000) as disk:
        command += ["--output", disk.folder / "evaluation"]
        told = _called(shared, disk.folder, command)
        disk.grow()
        done = _called(shared, disk.folder, command)
        equal = done.returncode == 0 and not differing_evaluations(
            disk.folder / "evaluation", reference
        )
        return _is_wrong("evaluate, 60,000 bytes", told, FULL, equal=equal)


def _called(shared, folder, arguments):
    log = Path(tempfile.mkstemp()[1])
    process = spawn(["gdpo", *arguments], shared / "code", folder, log)
    code = process.wait(300)
    return subprocess.CompletedProcess(arguments, code, log.read_text(errors="replace"))


def _is_wrong(name, told, needed, *, equal):
    sentence = FULL.search(told.stdout)
    wrong = not sentence or "Traceback" in told.stdout or not needed.search(told.stdout)
    wrong = wrong or told.returncode == 0 or not equal
    shown = sentence[0] if sentence else told.stdout[-2000:]
    print(f"{'WRONG ' if wrong else ''}{name}: {shown}; continued: {'equal' if equal else 'NOT'}")
    sys.stdout.flush()
    return wrong


class Disk:
    """A disk in memory."""

    def __init__(self, size):
        self.folder = Path(tempfile.mkdtemp(prefix="disk-"))
        self._mount(f"size={size}")

    def _mount(self, options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder]
        subprocess.run(command, check=True)

    def grow(self):
        """Make room."""
        self._mount("remount,size=1g")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        self.folder.rmdir()


if __name__ == "__main__":
    main()
