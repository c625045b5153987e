"""Compares what the package prints, computes and writes with another commit, bit by bit.

    python -m tests.frozen COMMIT                    # all parts, about 2 minutes
    python -m tests.frozen COMMIT analyze help       # some of them

Both trees run on this machine with the same packages, so nothing is stored and equal means equal.
Prints the first lines that differ, and exits with 1 if any do. A change of behaviour that is meant
stands in the message of its commit.
"""

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.frozen.parts import PARTS

ROOT = Path(__file__).parents[2]
SHOWN = 12
"""Number of lines that are printed of a difference."""


def outputs(tree, part):
    """Return what the package in a tree does, by name. The inputs are always those of this tree."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{ROOT}", "COLUMNS": "80"}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TZ": "UTC"}
        command = [sys.executable, "-m", "tests.frozen.parts", part, f"{folder}/out.json"]
        subprocess.run(command, check=True, env=environment, cwd=folder)
        return json.loads(Path(folder, "out.json").read_text(encoding="utf-8"))


def differing(before, after):
    """Print how each output differs, and return the names of those that do."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in names:
        old, new = (texts.get(name, "").splitlines() for texts in (before, after))
        lines = list(difflib.unified_diff(old, new, name, name, lineterm="", n=1))
        print("\n".join(line[:200] for line in lines[:SHOWN]))
        if len(lines) > SHOWN:
            print(f"... {len(lines) - SHOWN} more lines")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}. Default: all")
    asked = parser.parse_args()
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "old")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), asked.commit], check=True)
        try:
            for part in asked.parts or PARTS:
                before, after = outputs(old, part), outputs(ROOT, part)
                names = differing(before, after)
                found += len(names)
                print(f"{part}: {len(after)} outputs, {len(names)} differ", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
