"""Fills the disk of ten trainings, comparisons and evaluations, frees space, and resumes them.

    sudo python benchmarks/interruptions/full_disks.py

Each runs on a disk in memory with room for a few checkpoints; mounting it needs root. A case fails
if there is a traceback, if no sentence names the full disk, if a training does not name the saved
step, or if the result differs from that on a large disk. Exits with 1 if a case fails.
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
"""Sizes of the disks in checkpoints, for a training that keeps ten."""

COMPARED = (3.5, 7.0)
"""Sizes of the disks in checkpoints, for a comparison of two runs."""

FULL = re.compile(
    r"^(?:gdpo|.*failed): .*(?:disk of .* is full|but two checkpoints of this run).*", re.M
)
SAFE = re.compile(r"Step \d+ is saved|No step was saved yet|two checkpoints of this run")


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
    print(f"{len(wrong)} full disks, {sum(wrong)} reported or resumed wrongly")
    sys.exit(any(wrong))


def _training(shared, folder):
    folder.mkdir(exist_ok=True)
    path = recipe(shared, folder, 1)
    return ["train", path, "--no-report", "--set", "trainer.save_total_limit=10"]


def _trained(shared, reference, size):
    with Disk(size) as disk:
        command = _training(shared, disk.folder)
        first = _called(shared, disk.folder, command)
        disk.grow()
        begun = (disk.folder / "run").exists()
        done = _called(shared, disk.folder, [*command, *(["--resume"] if begun else [])])
        equal = done.returncode == 0 and not differing(disk.folder / "run", reference)
        return _is_wrong(f"train, {size:,} bytes", first, SAFE, equal=equal)


def _compared(shared, size):
    with Disk(size) as disk:
        command = ["compare", *_training(shared, disk.folder)[1:2], "--estimators", "grpo,gdpo"]
        command += ["--seeds", "1", "--jobs", "1", "--output", disk.folder / "run"]
        command += ["--set", "trainer.save_total_limit=10"]
        first = _called(shared, disk.folder, command)
        disk.grow()
        done = _called(shared, disk.folder, [*command, "--retry-failed"])
        return _is_wrong(f"compare, {size:,} bytes", first, FULL, equal=done.returncode == 0)


def _evaluated(shared, run):
    options = [run / "model", "--benchmarks", "gsm8k", "--data", f"gsm8k={shared / 'rows.jsonl'}"]
    command = ["evaluate", *options, "--max-tokens", "24", "--temperature", "1", "--samples", "4"]
    reference = shared / "evaluated"
    whole = _called(shared, shared, [*command, "--output", reference])
    assert whole.returncode == 0, whole.stdout
    with Disk(60_000) as disk:
        command += ["--output", disk.folder / "evaluation"]
        first = _called(shared, disk.folder, command)
        disk.grow()
        done = _called(shared, disk.folder, command)
        equal = done.returncode == 0 and not differing_evaluations(
            disk.folder / "evaluation", reference
        )
        return _is_wrong("evaluate, 60,000 bytes", first, FULL, equal=equal)


def _called(shared, folder, arguments):
    log = Path(tempfile.mkstemp()[1])
    process = spawn(["gdpo", *arguments], shared / "code", folder, log)
    code = process.wait(300)
    return subprocess.CompletedProcess(arguments, code, log.read_text(errors="replace"))


def _is_wrong(name, first, needed, *, equal):
    sentence = FULL.search(first.stdout)
    wrong = not sentence or "Traceback" in first.stdout or not needed.search(first.stdout)
    wrong = wrong or first.returncode == 0 or not equal
    shown = sentence[0] if sentence else first.stdout[-2000:]
    print(f"{'WRONG ' if wrong else ''}{name}: {shown}; continued: {'equal' if equal else 'NOT'}")
    sys.stdout.flush()
    return wrong


class Disk:
    """Mounts a disk in memory."""

    def __init__(self, size):
        self.folder = Path(tempfile.mkdtemp(prefix="disk-"))
        self._mount(f"size={size}")

    def _mount(self, options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder]
        subprocess.run(command, check=True)

    def grow(self):
        """Enlarge the disk."""
        self._mount("remount,size=1g")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", self.folder], check=True)
        self.folder.rmdir()


if __name__ == "__main__":
    main()
