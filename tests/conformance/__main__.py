"""Frameworks' own code with our plugin, each in an environment of its own: how far from gdpo.

    python -m tests.conformance [framework ...] [--own]

Makes `.conformance/<framework>` where it is not yet, runs the framework's script there, and prints
the table of docs/reference/conformance.md. `--own` adds what frameworks make of the same batches
without us, where they have GDPO. Exit code 1: a path of ours is further than 1e-5 from gdpo, or
what was asked for could not be run.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".conformance"
WITHOUT = "without gdpo"
"""What the name of a path ends with that is the framework's own."""

CLOSE = 1e-5
REFUSED = "ConfigError"
"""Ours: a setting with which the framework would not compute what was asked for."""


@dataclass(frozen=True)
class Framework:
    """How its paths are run."""

    script: str
    """With its arguments."""
    requirements: str | None = None
    """None: it runs in the environment of this process."""
    checkout: bool = False
    """There is no package: `<FRAMEWORK>_SOURCE` names a folder with its source."""
    without: str = "--own"
    """The argument, or the variable, that leaves the work to the framework."""


SLIME = "others/requirements-slime.txt"
FRAMEWORKS = {
    "trl": Framework("others/trl_paths.py"),
    "verl": Framework(
        "verl/paths.py", "verl/requirements.txt", without="VERL_USE_EXTERNAL_PLUGINS=none"
    ),
    "nemo_rl": Framework(
        "nemo_rl/paths.py",
        "nemo_rl/requirements.txt",
        checkout=True,
        without="NEMO_RL_WITHOUT_GDPO=1",
    ),
    "ms_swift": Framework("others/ms_swift_paths.py", "others/requirements-ms_swift.txt"),
    "slime": Framework("others/slime_paths.py slime", SLIME, checkout=True),
    "miles": Framework("others/slime_paths.py miles", SLIME, checkout=True),
    "rllm": Framework("others/rllm_paths.py", "others/requirements-rllm.txt", checkout=True),
    "tunix": Framework("others/tunix_paths.py", "others/requirements-tunix.txt"),
}


class NotRunError(Exception):
    """A framework's paths could not be run; says why."""


def lines_of(name, *, own):
    """What the framework's script tells, a dict for each path and number of rewards."""
    framework = FRAMEWORKS[name]
    variables = source_of(name) if framework.checkout else {}
    python, command = interpreter(name, framework), framework.script.split()
    told = run(python, command, variables)
    if own:
        given, equals, value = framework.without.partition("=")
        switch = {given: value} if equals else {}
        without = run(python, command if equals else [*command, given], variables | switch)
        told += [{**line, "path": f"{line['path']}, {WITHOUT}"} for line in without]
    return told


def interpreter(name, framework):
    """The python of its environment, made where it is missing or its requirements have changed."""
    if framework.requirements is None:
        return Path(sys.executable)
    file, folder = HERE / framework.requirements, ENVIRONMENTS / name
    stamp, digest = folder / "made-of", hashlib.sha256(file.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    sys.stderr.write(f"{name}: making {folder} (minutes)\n")
    venv.create(folder, with_pip=True, clear=True)
    # Whole, these frameworks want GPUs: what their paths need on a CPU is listed, and no more.
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "-r", file, "-e", ROOT], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise NotRunError(f"its environment cannot be made: {last_line(done.stderr)}")
    stamp.write_text(digest)
    return python


def source_of(name):
    """Where the checkout is that the user names, for its script."""
    variable = f"{name.upper()}_SOURCE"
    folder = os.environ.get(variable, "")
    if not Path(folder, name).is_dir():
        raise NotRunError(f"{variable} names no checkout that holds {name}/")
    return {"PYTHONPATH": folder}


def run(python, command, variables):
    script, *arguments = command
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [python, HERE / script, *arguments],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NotRunError(f"{script} failed: {last_line(done.stderr)}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def rows_of(lines):
    """One row per path: over the numbers of rewards, the worst."""
    rows = {}
    for line in lines:
        key = line["framework"], line["version"], line["path"]
        rows.setdefault(key, []).append(line)
    return [(*key, *worst(of_path)) for key, of_path in rows.items()]


def worst(lines):
    """The difference, and whether a missing reward and a batch without signal do no harm."""
    told = [line["difference"] for line in lines]
    if errors := [each for each in told if isinstance(each, str)]:
        return errors[0].partition(":")[0], "", ""
    difference = nan if any(map(isnan, told)) else max(told)
    return (
        difference,
        # A framework's own constants make a difference, with a missing reward and without.
        all(number(line["with_missing"]) < max(CLOSE, 2 * difference) for line in lines),
        all(number(line["no_signal"]) == 0 for line in lines),
    )


def number(value):
    """NaN for what a framework raised."""
    return nan if isinstance(value, str) else value


def is_right(row):
    """Whether we are where the formula is, or refuse."""
    *_, difference, contained, silent = row
    if isinstance(difference, str):
        return difference == REFUSED
    return difference < CLOSE and contained and silent


def table(rows, missing):
    """Markdown."""
    lines = [
        "| framework | version | path | max difference from gdpo | NaN contained | no signal: 0 |",
        "|---|---|---|---|---|---|",
    ]
    for framework, version, path, difference, contained, silent in rows:
        shown = difference if isinstance(difference, str) else f"{difference:.1e}"
        answers = ({True: "yes", False: "no"}.get(each, "") for each in (contained, silent))
        lines.append(f"| {framework} | {version} | {path} | {shown} | {' | '.join(answers)} |")
    lines += [f"| {name} | | not run: {why} | | | |" for name, why in missing.items()]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("frameworks", nargs="*", help=", ".join(FRAMEWORKS))
    parser.add_argument("--own", action="store_true", help="the frameworks' own GDPO, too")
    options = parser.parse_args()
    if unknown := sorted(set(options.frameworks) - set(FRAMEWORKS)):
        parser.error(f"no such framework: {', '.join(unknown)}; there are: {', '.join(FRAMEWORKS)}")
    rows, missing = [], {}
    for name in options.frameworks or FRAMEWORKS:
        try:
            rows += rows_of(lines_of(name, own=options.own))
        except NotRunError as why:
            missing[name] = str(why)
    sys.stdout.write(table(rows, missing) + "\n")
    ours = [row for row in rows if not row[2].endswith(WITHOUT)]
    asked_for = set(options.frameworks) & set(missing)
    sys.exit(bool(asked_for) or not all(is_right(row) for row in ours))


if __name__ == "__main__":
    main()
