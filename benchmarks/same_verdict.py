"""Counts the runs whose verdict depends on the layout of the file, or rests on a guess.

python -m benchmarks.same_verdict same 500      # drawn runs in 7 layouts and 3 orders
python -m benchmarks.same_verdict unknown 60    # drawn files that no framework writes

`unknown` also runs each printed command, and compares its verdict with that of gdpo's record.
"""

import contextlib
import io
import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from tests.analysis.same_rows import LAYOUTS, drawn, orders, said
from tests.cli.unknown_files import conclusion, write_unknown

from gdpo.cli import main


def printed(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main([*map(str, arguments), "--output", "json"])
        except SystemExit as leaving:
            return leaving.code or 0, out.getvalue()
    return 0, out.getvalue()


def same(folder, runs):
    different = 0
    for seed in range(runs):
        found = set()
        rows = drawn(seed)
        for order in orders(rows, seed):
            for write in LAYOUTS:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                write(folder, order)
                rewards, about = said(folder)
                rounded = [(n, *(f"{v:.4f}" for v in each)) for n, each in rewards.items()]
                found.add(repr((rounded, about)))
        different += len(found) > 1
    print(f"{different} of {runs} runs differ between {len(LAYOUTS)} layouts and 3 orders")


def unknown(folder, files):
    guessed = right = refused = 0
    for seed in range(files):
        path, record = write_unknown(folder / str(seed), seed)
        code, out = printed("analyze", path)
        verdict = {} if code == 2 else json.loads(out)["runs"][0]["verdict"]
        refused += code == 2
        guessed += bool(verdict) and verdict["action"] != "unknown"
        if verdict.get("command"):
            _, again = printed(*shlex.split(verdict["command"])[1:])
            right += conclusion(again) == conclusion(printed("analyze", record)[1])
    print(
        f"{files} files: {refused} refused, {guessed} with a verdict that rests on a guess, "
        f"{right} with the right verdict from the printed command"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        {"same": same, "unknown": unknown}[sys.argv[1]](Path(temporary) / "rows", int(sys.argv[2]))
