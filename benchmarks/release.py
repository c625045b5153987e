"""Print the row of this version in the README's table of releases.

Times, ratios and wrong readings are the results in research/releases.json; tokens are counted.
`--measure` runs `make demo` and `make test` instead, on idle cores.

    python -m benchmarks.release
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

from benchmarks._shown import row
from tests.test_design import SOURCE, tokens_of

from gdpo import __version__

ROOT = Path(__file__).parents[1]
RESULTS = json.loads((ROOT / "research" / "releases.json").read_text("utf-8"))["results"]


def measured(command: str) -> str:
    """Return the seconds that a command takes now."""
    start = time.monotonic()
    subprocess.run(command.split(), cwd=ROOT, check=True)
    return f"{time.monotonic() - start:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="time the two makes")
    measure = parser.parse_args().measure
    cells: dict[str, list[str]] = {}
    for result in RESULTS:
        if "seconds" in result:
            recorded = " to ".join(map(str, result["seconds"]))
            shown = measured(result["command"]) if measure else recorded
        elif "ratio" in result:
            shown = str(result["ratio"])
        else:
            shown = f"{result['wrong']} of {result['of']}"
        cells.setdefault(result["column"], []).append(shown)
    cells["tokens of code"] = [f"{tokens_of(SOURCE.rglob('*.py')):,}"]
    row("gdpo", cells, head=True)
    row(f"after {__version__}", map(", ".join, cells.values()))


if __name__ == "__main__":
    main()
