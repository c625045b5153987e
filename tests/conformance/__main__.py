"""Measures how far each framework's advantages are from gdpo, with and without our plugin.

    python -m tests.conformance [framework ...] [--own]

Creates an environment `.conformance/<framework>` per framework, runs the framework's script there,
and prints the figures of docs/reference/conformance.md. `--own` also runs the frameworks without
gdpo. Exits with 1 if one of our paths is further than 1e-5 from gdpo, or if a framework that was
named could not be run.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path

from tests.environments import ROOT, NotRunError, environment, last_line

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".conformance"
WITHOUT = "without gdpo"
"""Suffix of the name of a path that runs without gdpo."""

CLOSE = 1e-5
REFUSED = "ConfigError"
"""Our refusal of a setting with which the framework would compute something else."""


@dataclass(frozen=True)
class Framework:
    """Describes how to run a framework's paths."""

    script: str
    """The script, with its arguments."""
    requirements: str | None = None
    """Requirements of its environment. None: it runs in this environment."""
    checkout: bool = False
    """Whether it has no package, so that `<FRAMEWORK>_SOURCE` must name a checkout."""
    without: str = "--own"
    """The argument, or the variable, for a run without gdpo."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of its process."""


SLIME = "others/requirements-slime.txt"
FRAMEWORKS = {
    "trl": Framework("others/trl_paths.py"),
    "verl": Framework(
        "verl/paths.py", "verl/requirements.txt", without="VERL_USE_EXTERNAL_PLUGINS=none"
    ),
    "verl_0.8": Framework(
        "verl/paths.py",
        "verl/requirements-0.8.txt",
        without="VERL_USE_EXTERNAL_MODULES=",
        variables={"VERL_USE_EXTERNAL_MODULES": "gdpo.integrations.verl._plugin"},
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


def lines_of(name, *, own):
    """Return the lines of the framework's script: a dict per path and number of rewards."""
    framework = FRAMEWORKS[name]
    variables = framework.variables | (source_of(name) if framework.checkout else {})
    python, command = interpreter(name, framework), framework.script.split()
    lines = run(python, command, variables)
    if own:
        given, equals, value = framework.without.partition("=")
        switch = {given: value} if equals else {}
        without = run(python, command if equals else [*command, given], variables | switch)
        lines += [{**line, "path": f"{line['path']}, {WITHOUT}"} for line in without]
    return lines


def interpreter(name, framework):
    """Return the Python of the framework's environment."""
    if framework.requirements is None:
        return Path(sys.executable)
    return environment(ENVIRONMENTS / name, HERE / framework.requirements)


def source_of(name):
    """Return the environment variables that name the user's checkout."""
    variable = f"{name.upper()}_SOURCE"
    folder = os.environ.get(variable, "")
    if not Path(folder, name).is_dir():
        raise NotRunError(f"set {variable} to a checkout that contains {name}/")
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


def rows_of(lines):
    """Return one row per path: the worst over the numbers of rewards."""
    rows = {}
    for line in lines:
        key = line["framework"], line["version"], line["path"]
        rows.setdefault(key, []).append(line)
    return [(*key, *worst(of_path)) for key, of_path in rows.items()]


def worst(lines):
    """Return the largest difference, and the results for missing rewards and no signal."""
    differences = [line["difference"] for line in lines]
    if errors := [each for each in differences if isinstance(each, str)]:
        return errors[0].partition(":")[0], "", ""
    difference = nan if any(map(isnan, differences)) else max(differences)
    return (
        difference,
        # A framework's own constants make a difference even without a missing reward.
        all(number(line["with_missing"]) < max(CLOSE, 2 * difference) for line in lines),
        all(number(line["no_signal"]) == 0 for line in lines),
    )


def number(value):
    """Return a value as a number; NaN if the framework raised an error."""
    return nan if isinstance(value, str) else value


def is_right(row):
    """Return whether gdpo equals the formula, or refuses the setting."""
    *_, difference, contained, silent = row
    if isinstance(difference, str):
        return difference == REFUSED
    return difference < CLOSE and contained and silent


def table(rows, missing):
    """Return the table in Markdown."""
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
    parser.add_argument(
        "frameworks", nargs="*", help=f"frameworks to run: {', '.join(FRAMEWORKS)}. Default: all"
    )
    parser.add_argument("--own", action="store_true", help="also run the frameworks without gdpo")
    options = parser.parse_args()
    if unknown := sorted(set(options.frameworks) - set(FRAMEWORKS)):
        parser.error(f"unknown framework: {', '.join(unknown)}. Allowed: {', '.join(FRAMEWORKS)}")
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
