"""Measures the bias of the advantages per turn that other frameworks compute, in their own code.

    python -m benchmarks.credit.frameworks [name ...]

Creates the frameworks' environments in `.conformance`, runs a script per framework there, and
prints a table. verl and AReaL are installed from the package index. Each of the others needs a
folder, which `<NAME>_SOURCE` names. Nothing of such a folder is stored in this repository. A
framework that cannot be run is listed with the reason. Exits with 1 if a framework that was named
could not be run.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from tests.environments import ROOT, NotRunError, environment, last_line, overlaid

HERE = Path(__file__).parent
TESTED = ROOT / "tests" / "conformance"


@dataclass(frozen=True)
class Framework:
    """Describes how to run a framework's script."""

    environment: str
    """Name of its environment in `.conformance`."""
    requirements: Path
    checkout: str | None = None
    """What the folder contains. None: the framework is installed from the package index."""

    instead: str | None = None
    """Requirement that replaces one of the environment's distributions."""
    script: str | None = None
    """Name of its script without `_turns.py`. None: the name of the framework."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script."""


VERL = "verl", TESTED / "verl" / "requirements.txt"
PRIME_RL = "prime_rl", TESTED / "others" / "requirements-prime_rl.txt"
MORE = "credit", HERE / "requirements-more.txt"
NEMO_RL = "nemo_rl", TESTED / "nemo_rl" / "requirements.txt"
FRAMEWORKS = {
    "verl": Framework(*VERL),
    "verl_0.8": Framework(
        *VERL, instead="verl==0.8.0", script="verl", arguments=("reinforce_plus_plus",)
    ),
    "areal": Framework(*MORE),
    "skyrl": Framework(*MORE, "the unpacked wheel of skyrl 0.4.0, which requires Python 3.12"),
    "pipelinerl": Framework(*VERL, "ServiceNow/PipelineRL at 58d3934"),
    "gigpo": Framework(*VERL, "langfengQ/DrMAS at 3b556f2, which contains verl-agent's gigpo/"),
    "opentinker": Framework(*VERL, "open-tinker/OpenTinker at f87fe25"),
    "igpo": Framework(*VERL, "GuoqingWang1/IGPO at bff163b"),
    "atropos": Framework(*MORE, "NousResearch/atropos at 296a0bc"),
    "verifiers": Framework(*PRIME_RL, "PrimeIntellect-ai/verifiers at cb2c520, pull request 1554"),
    "prime_rl": Framework(*PRIME_RL, "PrimeIntellect-ai/prime-rl at 0d60244, pull request 3282"),
    "nemo_rl": Framework(*NEMO_RL, "NVIDIA-NeMo/RL at 0ebab92, pull request 3543"),
}


def lines_of(name):
    """Return the lines of a framework's script: a dict per estimator."""
    framework = FRAMEWORKS[name]
    variable = f"{name.upper()}_SOURCE"
    if framework.checkout is not None and not Path(os.environ.get(variable, "")).is_absolute():
        raise NotRunError(f"set {variable} to a folder with {framework.checkout}")
    made = ROOT / ".conformance" / framework.environment
    python = environment(made, framework.requirements)
    variables = {"OMP_NUM_THREADS": "1", "VERL_USE_EXTERNAL_PLUGINS": "none"}
    if framework.instead is not None:
        variables |= overlaid(ROOT / ".conformance" / f"credit-{name}", python, framework.instead)
    done = subprocess.run(
        [python, HERE / f"{framework.script or name}_turns.py", *framework.arguments],
        env={**os.environ, **variables},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NotRunError(f"its script failed: {last_line(done.stderr)}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def table(lines, missing):
    """Return the table in Markdown."""
    shown = [
        "| framework | version | function | smallest case (0.125) | closed form | "
        "bias: outcome, outcome + 1 | degrees: the same | no signal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shown += [f"| {' | '.join(cells(line))} |" for line in lines]
    shown += [f"| {name} | | not run: {why} | | | | | |" for name, why in missing.items()]
    return "\n".join(shown)


def cells(line):
    smallest, exact = line["smallest"], line["size"] == "exact"
    return (
        line["framework"],
        line["version"],
        line["function"],
        "" if smallest is None else f"{smallest:.4f}" + ("" if exact else " (scaled)"),
        closed(line["closed"]) if exact else "only the direction",
        ", ".join(map(share, line["bias"])) if exact else "",
        ", ".join(map(angle, line["degrees"])) + noise(line["noise"]),
        "0" if line["no_signal"] < 1e-6 else f"{line['no_signal']:.2g}",
    )


def closed(shares):
    """Return the part of the gradient through a turn's reward, and through reaching turns."""
    if shares is None:
        return "none of those tried"
    named = (f"{own:g}/{reach:g} {factor}" for factor, (own, reach) in shares.items())
    return " + ".join(named)


def share(bias):
    return "0" if bias < 1e-5 else f"{bias:.2f}"


def angle(degrees):
    return "gradient is 0" if isnan(degrees) else "0" if degrees < 1e-3 else f"{degrees:.1f}"


def noise(degrees):
    return f" (noise {degrees:.1f})" if degrees else ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("frameworks", nargs="*", help=f"{', '.join(FRAMEWORKS)}. Default: all")
    asked = parser.parse_args().frameworks
    if unknown := sorted(set(asked) - set(FRAMEWORKS)):
        parser.error(f"unknown framework: {', '.join(unknown)}. Allowed: {', '.join(FRAMEWORKS)}")
    lines, missing = [], {}
    for name in asked or FRAMEWORKS:
        try:
            lines += lines_of(name)
        except NotRunError as why:
            missing[name] = str(why)
    sys.stdout.write(table(lines, missing) + "\n")
    sys.exit(bool(set(asked) & set(missing)))


if __name__ == "__main__":
    main()
