"""Runs complete trainings on real engines, on a CPU, and prints what each one showed.

    python -m tests.engines [ENGINE ...] [--runs NAME ...] [--times N] [--write]

Creates an environment `.engines/<engine>` per engine and executes the runs of its script there,
each in an empty folder. A run generates, scores, updates and sends the weights back to the engine;
it fails if an assertion does not hold. `--write` puts the rows into research/engines.md.
Exits with 1 if a run fails or an engine cannot be run.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from tests.engines.policy import make_policy
from tests.environments import ROOT, NotRunError, environment

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".engines"
PAGE = ROOT / "research" / "engines.md"
CPU_PACKAGE = HERE / "cpu"
"""What vLLM, TRL's client and verl need on a CPU, as plugins."""

SAMPLED_EVERY = 0.5
"""Seconds between two readings of time and memory."""

LIMIT = 1800
"""Seconds after which a run that hangs is ended."""

COLUMNS = (
    *("engine", "run", "versions", "exit 0", "advantages", "log-probabilities", "learned"),
    *("CPU s", "wall s", "GB", "measured"),
)


@dataclass(frozen=True)
class Engine:
    """Describes how to run an engine."""

    script: str
    requirements: str
    packages: tuple[Path, ...] = ()
    needs_vllm_metadata: bool = False


ENGINES = {
    "trl-vllm": Engine("trl_vllm/runs.py", "trl_vllm/requirements.txt", (CPU_PACKAGE,), True),
    "verl": Engine("verl/runs.py", "verl/requirements.txt", (CPU_PACKAGE,), True),
    "tunix": Engine("tunix/runs.py", "../conformance/others/requirements-tunix.txt"),
    "tinker": Engine("tinker/runs.py", "tinker/requirements.txt"),
}


def tree(pid):
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def prepare(name):
    """Return the Python of an engine's environment."""
    engine = ENGINES[name]
    python = environment(ENVIRONMENTS / name, HERE / engine.requirements, packages=engine.packages)
    if engine.needs_vllm_metadata:
        printed_by(python, HERE / "vllm_metadata.py")
    return python


def printed_by(*command):
    """Return the output of a command that takes seconds."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise NotRunError(f"{command[1]} failed: {end(done.stderr)}")
    return done.stdout


def execute(python, name, run, policy):
    """Execute one run. Return what it showed and its costs.

    Raises:
        NotRunError: If it does not exit with 0. The message is the end of its log.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{run}-"))
    log = folder / "log.txt"
    command = [python, HERE / ENGINES[name].script, run, folder / "work", "--policy", policy]
    (folder / "work").mkdir()
    variables = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        costs = measure(process)
    printed = log.read_text(errors="replace")
    shown = [each for each in printed.splitlines() if each.startswith('{"run": ')]
    if process.returncode or not shown:
        why = f"exited with {process.returncode} after {costs[1]} s (limit: {LIMIT} s)"
        raise NotRunError(f"{run} {why}; its log is {log}:\n{end(printed)}")
    shutil.rmtree(folder)
    return json.loads(shown[-1]), costs


def measure(process):
    """Wait for a process, at most LIMIT seconds. Kill what is left of its tree afterwards.

    Returns:
        Cells of the table: CPU seconds, wall seconds and the largest memory of the tree.
    """
    started, wall, largest, cpu, seen = time.monotonic(), 0.0, 0, {}, {}
    try:
        while process.poll() is None and wall < LIMIT:
            memory = 0
            for each in tree(process.pid):
                seen[each.pid] = each
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    used = each.cpu_times()
                    cpu[each.pid] = used.user + used.system
                    memory += each.memory_full_info().pss
            largest, wall = max(largest, memory), time.monotonic() - started
            time.sleep(SAMPLED_EVERY)
    finally:  # also after Ctrl-C: an engine's workers may outlive the process that started them
        for left in (*seen.values(), *tree(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()
    return [f"{sum(cpu.values()):.0f}", f"{wall:.0f}", f"{largest / 1e9:.1f}"]


def end(text):
    return "\n".join(text.splitlines()[-25:])


def row(name, run, shown, costs, times):
    """Return the row of a run: the last of `times` executions."""
    figures = shown["figures"]
    versions = ", ".join(f"{key} {value}" for key, value in shown["versions"].items())
    difference, learned = (figures.get(key) for key in ("advantage_difference", "component"))
    both = figures.get("logprob_difference", [])
    cells = [
        name,
        run,
        versions,
        times,
        "" if difference is None else f"{difference:.1e}",
        " → ".join(f"{each:.4f}" for each in both),
        "" if learned is None else f"{learned[0]}: {learned[1]:.2f} → {learned[2]:.2f}",
        *costs,
        f"{datetime.now(UTC).date()}, {commit()}",
    ]
    return line(cells)


def line(cells):
    return f"| {' | '.join(cells)} |"


def commit():
    """Return the commit, marked if a file other than the page differs from it."""
    described = git("describe", "--always")
    changed = git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return (described or "no checkout") + ("-dirty" if changed else "")


def git(*arguments):
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def run_engine(name, runs, times):
    """Return rows of an engine, and the reasons of runs that failed."""
    python = prepare(name)
    listed = printed_by(python, HERE / ENGINES[name].script, "--list").split()
    chosen = [each for each in listed if not runs or each in runs]
    if not chosen:
        raise NotRunError(f"it has no run {' or '.join(runs)}. Its runs: {', '.join(listed)}")
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        policy = make_policy(Path(folder) / "policy")
        for run in chosen:
            sys.stderr.write(f"{name}: {run}\n")
            good = 0
            for _ in range(times):
                try:
                    shown, costs = execute(python, name, run, policy)
                except NotRunError as why:
                    failed.append(str(why))
                else:
                    good += 1
            if good:
                rows.append(row(name, run, shown, costs, f"{good} of {times}"))
    return rows, failed


def write(rows):
    """Replace the rows of the same runs in the page's table, and add the others at its end."""
    page = PAGE.read_text("utf-8")
    head, old, tail = re.split(r"(?<=---\|\n)((?:\|.*\n)*)", page, maxsplit=1)
    table = {tuple(each.split("|")[1:3]): each for each in (*old.splitlines(), *rows)}
    PAGE.write_text(head + "\n".join(table.values()) + "\n" + tail, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", nargs="*", help=f"engines: {', '.join(ENGINES)}. Default: all")
    parser.add_argument("--runs", nargs="+", default=[], help="names of runs. Default: all")
    parser.add_argument("--times", type=int, default=1, help="executions of each run. Default: 1")
    parser.add_argument("--write", action="store_true", help="update research/engines.md")
    options = parser.parse_args()
    if unknown := sorted(set(options.engines) - set(ENGINES)):
        parser.error(f"unknown engine: {', '.join(unknown)}. Allowed: {', '.join(ENGINES)}")
    if options.times < 1:
        parser.error(f"--times must be 1 or more, got {options.times}")
    rows, failed = [], []
    for name in options.engines or ENGINES:
        try:
            shown, wrong = run_engine(name, options.runs, options.times)
        except NotRunError as why:
            shown, wrong = [], [f"{name}: {why}"]
        rows += shown
        failed += wrong
    sys.stdout.write("\n".join([line(COLUMNS), line(["---"] * len(COLUMNS)), *rows, ""]))
    sys.stderr.write("".join(f"{why}\n" for why in failed))
    if options.write:
        write(rows)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
