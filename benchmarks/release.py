"""Print the row of this version in the README's table of releases.

Ratios, times and wrong readings are read from the records in research/; tokens are counted. A cell
without a record says so. `--measure` runs `make demo` and `make test` instead, on idle cores.

    python -m benchmarks.release
"""

import argparse
import re
import subprocess
import time
from pathlib import Path

from benchmarks._shown import row
from tests.test_design import SOURCE, tokens_of

from gdpo import __version__

ROOT = Path(__file__).parents[1]
HEAD = (
    "`make demo`, s",
    "`make test`, s",
    "TRL / gdpo, CPU",
    "TRL / gdpo, GPU",
    "tokens of code",
    "wrong readings",
)


def found(file: str, pattern: str) -> list[str]:
    """Return the groups of a pattern's last match in a record, or [] if there is no match."""
    matches = list(re.finditer(pattern, (ROOT / "research" / file).read_text("utf-8")))
    return list(matches[-1].groups()) if matches else []


def seconds(target: str, *, measure: bool) -> str:
    """Return the seconds of a target of the Makefile: measured, or as recorded (2 idle cores)."""
    if measure:
        start = time.monotonic()
        subprocess.run(["make", target], cwd=ROOT, check=True)
        return f"{time.monotonic() - start:.0f}"
    minutes = found(
        "claims.md", rf"`make {target}` takes (?:[^|,]*\(about )?(\d+)(?: to (\d+))? minutes"
    )
    return " to ".join(str(60 * int(each)) for each in minutes if each) or "no record"


def ratio(setting: str) -> str:
    """Return the last recorded TRL / gdpo of a setting of `benchmarks.against_trl training`."""
    cells = found("measurements.md", rf"\n\| {setting} \|[^\n]*?\*\*([\d.]+)\*\*")
    return " ".join(cells) or "no record"


def wrong_verdicts() -> str:
    """Return the wrong readings of known runs: of layouts, and of drawn runs in several files."""
    layouts = found("measurements.md", r"known run in (\d+) layouts.* none is read wrong")
    files = found("measurements.md", r"none has other shares, findings .* of the (\d+) files")
    return ", ".join(f"0 of {n}" for n in layouts + files) or "no record"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="time the two makes")
    measure = parser.parse_args().measure
    row("gdpo", HEAD, head=True)
    cells = [seconds(target, measure=measure) for target in ("demo", "test")]
    cells += [ratio("tool calling 600/100/4, every group has signal"), ratio("600, 100, 400, 4")]
    row(f"after {__version__}", [*cells, f"{tokens_of(SOURCE.rglob('*.py')):,}", wrong_verdicts()])


if __name__ == "__main__":
    main()
