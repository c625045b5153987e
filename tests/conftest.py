"""Fixtures that several folders of tests use."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gdpo.cli import main
from gdpo.lab.recipes.read import load_recipe

settings.register_profile(
    "ci",
    max_examples=200,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", parent=settings.get_profile("ci"), max_examples=20)
settings.register_profile(
    "soak", parent=settings.get_profile("ci"), max_examples=20_000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Two torch threads on two busy cores wait for each other: one is faster and repeatable.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell starts a job in the background with SIGINT ignored. Tests send this signal to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """With GDPO_SLOW_SECONDS=2: names what took longer and is not marked `slow`."""
    if not (limit := os.environ.get("GDPO_SLOW_SECONDS")):
        return
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
                seconds[report.nodeid] += report.duration
    for test, taken in seconds.most_common():
        if taken > float(limit):
            terminalreporter.write_line(f"not marked slow: {taken:.1f} s {test}")


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory):
    """Folder of a random 2-layer Llama with a byte-level tokenizer and a chat template."""
    from tests.engines.policy import TINY, make_policy

    return make_policy(tmp_path_factory.mktemp("tiny_policy"), **TINY)


@pytest.fixture
def real():
    """Return the path of a file of real data, or skip the test if it is missing."""
    folder = os.environ.get("GDPO_DATA")
    if folder is None:
        pytest.skip("GDPO_DATA is not set")
    return Path(folder).joinpath


@pytest.fixture
def open_folder():
    """A folder that every user may enter; root, who may read all, becomes nobody for the test."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
    for inner in folder.rglob("*"):
        inner.chmod(0o700)
    shutil.rmtree(folder)


REWARDS = """
from gdpo import Reward

def share_of_vowels(completion, reference):
    return sum(c in "aeiou" for c in completion) / max(1, len(completion))

def brevity(completion, reference):
    return max(0.0, 1 - len(completion) / 40)

vowels = Reward("vowels", share_of_vowels, low=0, high=1)
brief = Reward("brief", brevity, low=0, high=1)
always_half = Reward("always_half", lambda completion, reference: 0.5, low=0, high=1)
raises = Reward("raises", lambda completion, reference: 1 / len(completion), low=0, high=10)
not_a_number = Reward("not_a_number", lambda completion, reference: float("nan"), low=0, high=1)
text = Reward("text", lambda completion, reference: "0.5", low=0, high=1)
too_high = Reward("too_high", lambda completion, reference: 2.0, low=0, high=1)
no_reward = share_of_vowels

def short_or(most=10, *, name="short"):
    return Reward(name, lambda n, _: float(n <= most), low=0, high=1, of="tokens")
"""


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [
        json.dumps({"question": f"What is {i} + {i}?", "answer": f"Twice {i}. #### {2 * i}"})
        for i in range(10)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def weighted(rows):
    """Write these cells into the rows of the recipe's data, one after the other and again."""

    def write(*cells, name="w"):
        lines = [json.loads(line) for line in rows.read_text().splitlines()]
        for i, line in enumerate(lines):
            line[name] = cells[i % len(cells)]
        rows.write_text("\n".join(map(json.dumps, lines)))
        return rows

    return write


@pytest.fixture
def own_rewards(tmp_path, monkeypatch):
    """The name of a module with rewards of a user's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)
    return "own_rewards"


@pytest.fixture
def recipe_file(tmp_path, tiny_policy, rows, own_rewards):
    """A recipe that trains in two seconds: 4 steps of 2 prompts x 4 samples, 5 steps per epoch."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"""task: gsm8k
model: {tiny_policy}
name: tiny
runs_dir: {tmp_path / "runs"}
data:
  source: {rows}
rewards:
  - name: {own_rewards}:vowels
  - name: {own_rewards}:brief
    weight: 0.5
  - name: format
batch:
  prompts: 2
  samples: 4
  micro_batch: 4
trainer:
  max_completion_length: 8
  learning_rate: 1e-2
  gradient_checkpointing: false
  max_steps: 4
  save_steps: 1
"""
    )
    return path


@pytest.fixture
def load(recipe_file):
    """Load the recipe with changes, each written as for `--set`."""
    return lambda *changes: load_recipe(recipe_file, changes)


@pytest.fixture
def recipe(recipe_file):
    return load_recipe(recipe_file)


@pytest.fixture
def small_disk():
    """Mounts a disk of so many bytes; where that is not allowed, the test is skipped."""
    mounted = []

    def mount(size):
        folder = Path(tempfile.mkdtemp())
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a small disk cannot be mounted here: it takes root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def saying(captured):
    """Return a function that runs the command line. It returns the exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main([str(argument) for argument in arguments])
        printed = captured.readouterr()
        return int(leaving.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def gdpo_says(capsys):
    return saying(capsys)


@pytest.fixture
def saved(tmp_path):
    """Write a text or records to a file with this name, and return its path."""

    def save(name, content):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content)
            return path
        from tests.rollouts.readers import written  # which needs pyarrow

        return written.rows(path, content)

    return save
