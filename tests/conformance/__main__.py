"""Measures how far each framework's advantages are from gdpo, with and without our plugin.

    python -m tests.conformance [framework[@version] ...] [--own] [--tests]

Creates an environment `.conformance/<framework>` per framework, runs the framework's script there,
and prints the figures of research/conformance.md. `trl@1.12.0` replaces the pinned version,
and `trl@newest` uses the newest version on the package index; all other packages stay as they are.
`--own` also runs the frameworks without gdpo. `--tests` also runs gdpo's own tests of a framework.
The patches in research/upstream are tried on the pinned versions: their tests must fail without the
fix. Exits with 1 if one of our paths is further than 1e-5 from gdpo, if a path without gdpo is not,
if a test fails, or if a framework that was named could not be run.
"""

import argparse
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.environments import ROOT, NotRunError, ended, environment, last_line, overlaid

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".conformance"
PATCHES = ROOT / "research" / "upstream"
WITHOUT = "without gdpo"
"""Suffix of the name of a path that runs without gdpo."""

NEWEST = "newest"
"""The version that stands for the newest one on the package index."""

CLOSE = 1e-5
REFUSED = ("reinforce_plus_plus", "ConfigError")
"""A path on which gdpo refuses a setting, because the framework would compute something else."""

SEARCHED = """import sys; from importlib.util import find_spec
print(*find_spec(sys.argv[1]).submodule_search_locations)"""
ENDED = {0: "passes", 1: "fails"}


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
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    """Environment variables that a version needs."""
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
        without={"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": ""},
        distribution="verl",
        versions=("0.8.0",),
        variables={"0.8.0": {"VERL_USE_EXTERNAL_MODULES": "gdpo.integrations.verl._plugin"}},
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
    framework, python, variables = FRAMEWORKS[name], Path(sys.executable), {}
    if framework.requirements is not None:
        python = environment(ENVIRONMENTS / name, HERE / framework.requirements)
    if framework.checkout is not None:
        variable = f"{name.upper()}_SOURCE"
        folder = Path(os.environ.get(variable, ""), framework.checkout)
        if not Path(folder, name).is_dir():
            wanted = Path(framework.checkout, name)
            raise NotRunError(f"set {variable} to a checkout that contains {wanted}/")
        variables = {"PYTHONPATH": str(folder)}
    if version:
        exactly = "" if version == NEWEST else f"=={version}"
        requirement = f"{framework.distribution}{exactly}"
        variables = overlaid(ENVIRONMENTS / asked, python, requirement)
    return framework, python, variables | framework.variables.get(version, {})


def rows_of(asked, *, own):
    """Return a row per path of the framework's script: the worst over the numbers of rewards."""
    framework, python, variables = prepared(asked)
    command, by_path = framework.script.split(), {}
    lines = run(python, command, variables)
    if own:
        arguments = [] if framework.without else ["--own"]
        without = run(python, [*command, *arguments], variables | framework.without)
        lines += [{**line, "path": f"{line['path']}, {WITHOUT}"} for line in without]
    for line in lines:
        key = line["framework"], line["version"], line["path"]
        by_path.setdefault(key, []).append(line)
    return [(*key, *worst(of_path)) for key, of_path in by_path.items()]


def run(python, command, variables):
    """Return what a script of this folder prints as lines of JSON."""
    script, *arguments = command
    done = ended([python, HERE / script, *arguments], variables)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def patched(name):
    """Run the test of a framework's patch on a copy, without and with the patch's fix.

    The patch contains its fix and a test, which is a new file below `tests/`.

    Returns:
        What the test does: `["fails", "passes"]`.

    Raises:
        NotRunError: If the patch does not fit the framework, or pytest cannot run its test.
    """
    framework, python, variables = prepared(name)
    patch, shim = PATCHES / f"{name}.patch", framework.shim
    tests = re.findall(r"^\+\+\+ b/(tests/\S+)", patch.read_text("utf-8"), re.M)
    package = Path(ended([python, "-c", SEARCHED, name], variables).stdout.strip())
    paths = [str(shim.parent)] if shim else []
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest"]
    pytest += ["-p", shim.stem] if shim else []
    results = []
    with TemporaryDirectory() as folder:
        # Of a checkout, the test also needs the folders beside the package.
        source, copy = package, Path(folder, name)
        if framework.checkout is not None:
            source, copy = package.parent, folder
        ignored = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(source, copy, ignore=ignored, dirs_exist_ok=True)
        variables |= framework.without | {
            "PYTHONPATH": os.pathsep.join([folder, variables.get("PYTHONPATH", ""), *paths]),
            f"{name.upper()}_SOURCE": folder,
            "GIT_CEILING_DIRECTORIES": str(Path(folder).parent),  # or git skips files in silence
        }
        for part in ("--include", "--exclude"):
            ended(["git", "apply", f"{part}=tests/*", patch], variables, folder=folder)
            done = ended([*pytest, *tests], variables, folder=folder, allowed=ENDED)
            results.append(ENDED[done.returncode])
    return results


def tests_of(asked):
    """Run gdpo's own tests of a framework. Return pytest's last line, and whether all passed."""
    framework, python, variables = prepared(asked)
    pytest = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    done = ended([*pytest, *framework.tests], variables, allowed=range(256))
    if done.returncode:
        sys.stderr.write(done.stdout)
    return last_line(done.stdout).strip("= "), done.returncode == 0


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
    *_, path, difference, contained, silent = row
    if isinstance(difference, str):
        return (path, difference) == REFUSED
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
    every_version = [
        asked
        for name, framework in FRAMEWORKS.items()
        for asked in (name, *(f"{name}@{version}" for version in framework.versions))
    ]
    rows, missing, tests, patches = [], {}, {}, {}
    for asked in options.frameworks or every_version:
        try:
            rows += rows_of(asked, own=options.own)
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
    is_good = (
        all(is_right(row) != row[2].endswith(WITHOUT) for row in rows)
        and all(passed for _, passed in tests.values())
        and all(found == ["fails", "passes"] for found in patches.values())
    )
    sys.exit(bool(set(options.frameworks) & set(missing)) or not is_good)


def check_names(parser, asked):
    for each in asked:
        name, _, version = each.partition("@")
        if name not in FRAMEWORKS:
            parser.error(f"unknown framework: {name}. Allowed: {', '.join(FRAMEWORKS)}")
        if version and FRAMEWORKS[name].distribution is None:
            parser.error(f"{each}: {name} is not installed from a package index. Use {name}")


if __name__ == "__main__":
    main()
