"""Measures how far each framework's advantages are from gdpo, with and without our plugin.

    python -m tests.conformance [framework[@version] ...] [--own] [--tests]

Creates an environment `.conformance/<framework>` per framework, runs the framework's script there,
and prints the figures of research/conformance.md. `trl@1.12.0` replaces the pinned version,
and `trl@newest` uses the newest version on the package index; all other packages stay as they are.
`--own` also runs the frameworks without gdpo. `--tests` also runs gdpo's own tests of a framework.
The patches in research/upstream are tried on the pinned versions: their tests must fail without the
fix. Exits with 1 if one of our paths is further than 1e-5 from gdpo, if a test fails, or if a
framework that was named could not be run.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path

from tests.conformance.patches import PATCHES, results_of_patch
from tests.environments import ROOT, NotRunError, ended, environment, last_line, overlaid

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".conformance"
WITHOUT = "without gdpo"
"""Suffix of the name of a path that runs without gdpo."""

NEWEST = "newest"
"""The version that stands for the newest one on the package index."""

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
    checkout: str | None = None
    """Folder of its package in a checkout, which `<FRAMEWORK>_SOURCE` must name. None: it is
    installed."""
    without: dict[str, str] = field(default_factory=dict)
    """Variables of a run without gdpo. Empty: the script gets `--own`."""
    distribution: str | None = None
    """Its name on the package index, for other versions. None: only the pinned version runs."""
    versions: tuple[str, ...] = ()
    """The versions that are tested in addition to the pinned one."""
    tests: tuple[str, ...] = ()
    """gdpo's own tests that use the framework."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of its process."""
    shim: Path | None = None
    """Prepares its import here, before the test of its patch."""


TRL_TESTS = (
    *("trl_adapter", "trl_conformance", "trl_environments", "trl_recording", "trl_references"),
    *("trl_trainer", "filtering", "generation_trl", "logprobs", "packing", "vllm_versions"),
)
SLIME = "others/requirements-slime.txt"
FRAMEWORKS = {
    "trl": Framework(
        "others/trl_paths.py",
        distribution="trl",
        versions=("1.15.0", "1.14.2", "1.13.0", "1.12.0"),
        tests=tuple(f"tests/integrations/test_{name}.py" for name in TRL_TESTS),
    ),
    "verl": Framework(
        "verl/paths.py",
        "verl/requirements.txt",
        without={"VERL_USE_EXTERNAL_PLUGINS": "none"},
        distribution="verl",
    ),
    "verl_0.8": Framework(
        "verl/paths.py",
        "verl/requirements-0.8.txt",
        without={"VERL_USE_EXTERNAL_MODULES": ""},
        variables={"VERL_USE_EXTERNAL_MODULES": "gdpo.integrations.verl._plugin"},
    ),
    "nemo_rl": Framework(
        "nemo_rl/paths.py",
        "nemo_rl/requirements.txt",
        checkout=".",
        without={"NEMO_RL_WITHOUT_GDPO": "1"},
        shim=HERE / "nemo_rl" / "source.py",
    ),
    "ms_swift": Framework(
        "others/ms_swift_paths.py",
        "others/requirements-ms_swift.txt",
        distribution="ms-swift",
        versions=("4.5.3",),
    ),
    "slime": Framework("others/slime_paths.py slime", SLIME, checkout="."),
    "miles": Framework("others/slime_paths.py miles", SLIME, checkout="."),
    "rllm": Framework("others/rllm_paths.py", "others/requirements-rllm.txt", checkout="."),
    "tunix": Framework("others/tunix_paths.py", "others/requirements-tunix.txt"),
    "prime_rl": Framework(
        "others/prime_rl_paths.py", "others/requirements-prime_rl.txt", checkout="src"
    ),
}


def prepared(asked):
    """Return a framework, the Python of its environment, and the environment's variables."""
    name, _, version = asked.partition("@")
    framework = FRAMEWORKS[name]
    python = interpreter(name, framework)
    checkout = {} if framework.checkout is None else source_of(name, framework.checkout)
    variables = framework.variables | checkout
    if not version:
        return framework, python, variables
    exactly = "" if version == NEWEST else f"=={version}"
    requirement = f"{framework.distribution}{exactly}"
    return framework, python, overlaid(ENVIRONMENTS / asked, python, requirement)


def lines_of(asked, *, own):
    """Return the lines of the framework's script: a dict per path and number of rewards."""
    framework, python, variables = prepared(asked)
    command = framework.script.split()
    lines = run(python, command, variables)
    if own:
        arguments = [] if framework.without else ["--own"]
        without = run(python, [*command, *arguments], variables | framework.without)
        lines += [{**line, "path": f"{line['path']}, {WITHOUT}"} for line in without]
    return lines


def patched(name):
    """Return what the test of a framework's patch does without and with the fix."""
    framework, python, variables = prepared(name)
    shim, whole = framework.shim, framework.checkout is not None
    return results_of_patch(
        name, python, variables | framework.without, shim=shim, is_checkout=whole
    )


def interpreter(name, framework):
    """Return the Python of the framework's environment."""
    if framework.requirements is None:
        return Path(sys.executable)
    return environment(ENVIRONMENTS / name, HERE / framework.requirements)


def source_of(name, inside):
    """Return the environment variables that name the user's checkout."""
    variable = f"{name.upper()}_SOURCE"
    folder = Path(os.environ.get(variable, ""), inside)
    if not Path(folder, name).is_dir():
        raise NotRunError(f"set {variable} to a checkout that contains {Path(inside, name)}/")
    return {"PYTHONPATH": str(folder)}


def run(python, command, variables):
    """Return what a script of this folder prints as lines of JSON."""
    script, *arguments = command
    done = ended([python, HERE / script, *arguments], variables)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def tests_of(asked):
    """Run gdpo's own tests of a framework. Return pytest's last line, and whether all passed."""
    framework, python, variables = prepared(asked)
    pytest = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    done = ended([*pytest, *framework.tests], variables, allowed=range(256))
    if done.returncode:
        sys.stderr.write(done.stdout)
    return last_line(done.stdout).strip("= "), done.returncode == 0


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
        "frameworks",
        nargs="*",
        help=f"frameworks to run: {', '.join(FRAMEWORKS)}, or framework@version. Default: all",
    )
    parser.add_argument("--own", action="store_true", help="also run the frameworks without gdpo")
    parser.add_argument("--tests", action="store_true", help="also run gdpo's tests of them")
    options = parser.parse_args()
    check_names(parser, options.frameworks)
    rows, missing, tests, patches = [], {}, {}, {}
    for asked in options.frameworks or every_version():
        try:
            rows += rows_of(lines_of(asked, own=options.own))
            if options.tests and FRAMEWORKS[asked.partition("@")[0]].tests:
                tests[asked] = tests_of(asked)
            if (PATCHES / f"{asked}.patch").is_file():
                patches[asked] = patched(asked)
        except NotRunError as why:
            missing[asked] = str(why)
    sys.stdout.write(table(rows, missing) + "\n")
    sys.stdout.write("".join(f"{asked}: {line}\n" for asked, (line, _) in tests.items()))
    for name, (without, fixed) in patches.items():
        sys.stdout.write(f"{name}.patch: its test {without} without the fix, and {fixed} with it\n")
    ours = [row for row in rows if not row[2].endswith(WITHOUT)]
    asked_for = set(options.frameworks) & set(missing)
    is_good = all(is_right(row) for row in ours) and all(passed for _, passed in tests.values())
    is_good = is_good and all(found == ["fails", "passes"] for found in patches.values())
    sys.exit(bool(asked_for) or not is_good)


def every_version():
    """Return every framework, followed by its other tested versions."""
    return [
        asked
        for name, framework in FRAMEWORKS.items()
        for asked in (name, *(f"{name}@{version}" for version in framework.versions))
    ]


def check_names(parser, asked):
    names = {each: each.partition("@")[0] for each in asked}
    if unknown := sorted(set(names.values()) - set(FRAMEWORKS)):
        parser.error(f"unknown framework: {', '.join(unknown)}. Allowed: {', '.join(FRAMEWORKS)}")
    for each, name in names.items():
        if each != name and FRAMEWORKS[name].distribution is None:
            parser.error(f"{each}: {name} is not installed from a package index. Use {name}")


if __name__ == "__main__":
    main()
