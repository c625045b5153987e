"""The demo from end to end, with a policy after three warm-start steps."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.demo.__main__ import main
from benchmarks.demo._policy import PolicySettings
from benchmarks.demo.run import DemoSettings, run_demo
from rich.console import Console

from gdpo.errors import ConfigError
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.runs.directory import RunDirectory
from gdpo.rollouts import read_rollouts, rollout_file

pytestmark = pytest.mark.slow

POLICY = PolicySettings(layers=1, width=32, heads=2, inner_width=32, vocabulary=300, steps=3)
ROOT = Path(__file__).parents[2]
SHORT = DemoSettings(steps=2, prompts=4, samples=2, policy=POLICY)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def console():
    return Console(file=io.StringIO(), width=120)


def printed(console):
    return console.file.getvalue()


def test_a_short_demo_trains_both_estimators_and_reports_them(place):
    shown = console()
    result = run_demo(shown, SHORT)
    assert result.folder == Path("runs/demo")
    assert [(c.label, c.reward, len(c.values)) for c in result.curves] == [
        ("grpo", "format", 2),
        ("gdpo", "format", 2),
        ("grpo", "correctness", 2),
        ("gdpo", "correctness", 2),
    ]
    assert result.picture is not None
    assert result.picture.stat().st_size > 10_000
    assert "correctness" in (result.folder / "report.html").read_text()
    for label in ("grpo", "gdpo"):
        run = RunDirectory(result.folder / label)
        assert run.model.is_dir(), "it went through gdpo train to the end"
        assert load_recipe(run.path).advantage == label
        assert run.read_environment()["device"] == {"type": "cpu", "threads": 1}
    first = [
        read_rollouts(rollout_file(result.folder / a / "rollouts", 1)) for a in ("grpo", "gdpo")
    ]
    assert [r.prompt for r in first[0]] == [r.prompt for r in first[1]]
    assert [r.completion for r in first[0]] == [r.completion for r in first[1]], (
        "both estimators start from the same policy and the same seed"
    )
    for expected in (
        "start: rare",
        "step 2 of 2",
        "correctness (-3 to 3)",
        "by step 2.",
        "python -m benchmarks.demo --seed 2 --steps 2",
        "python -m benchmarks.demo --start common --steps 2",
    ):
        assert expected in printed(shown)


def test_an_estimator_that_fails_is_reported_with_what_it_printed(place):
    shown = console()
    result = run_demo(shown, replace(SHORT, response_tokens=1000))
    assert set(result.failed) <= {"grpo", "gdpo"}
    assert result.failed
    assert result.curves == ()
    assert "failed: exit code 2" in printed(shown)
    assert "256" in printed(shown)


def test_the_default_folder_gets_a_number_when_it_exists(place):
    from benchmarks.demo.run import _claim

    assert [_claim(None) for _ in range(3)] == [
        Path("runs/demo"),
        Path("runs/demo-2"),
        Path("runs/demo-3"),
    ]


def test_a_folder_that_is_not_empty_is_never_written_to(place):
    taken = place / "mine"
    taken.mkdir()
    (taken / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"--output .*mine.* not empty"):
        run_demo(console(), SHORT, output=taken)
    assert [file.name for file in taken.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(("option", "value"), [("steps", "0"), ("start", "rarely")])
def test_a_wrong_option_is_reported_and_leaves_no_folder(place, capsys, monkeypatch, option, value):
    monkeypatch.setattr("sys.argv", ["demo", f"--{option}", value])
    with pytest.raises(SystemExit) as exit:
        main()
    printed = capsys.readouterr().err + str(exit.value.code)
    assert option in printed
    assert value in printed
    assert not Path("runs").exists()


def test_a_warm_start_that_is_interrupted_leaves_no_folder(place, monkeypatch):
    from benchmarks.demo import run

    def interrupted(settings, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "make_policy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(console(), SHORT)
    assert list(Path("runs").iterdir()) == []


_LONG = """
import sys
from rich.console import Console
from benchmarks.demo.run import DemoSettings
from benchmarks.demo._policy import PolicySettings
from benchmarks.demo.run import run_demo
policy = PolicySettings(layers=1, width=32, heads=2, inner_width=32, vocabulary=300, steps=3)
run_demo(Console(), DemoSettings(steps=2000, prompts=4, samples=2, policy=policy))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_both_training_runs(place, number):
    demo = subprocess.Popen(
        [sys.executable, "-c", _LONG],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = [Path("runs/demo") / label / "metrics.jsonl" for label in ("grpo", "gdpo")]
    try:
        deadline = time.monotonic() + 900
        while not all(file.exists() for file in metrics):
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        demo.send_signal(number)
        demo.wait(timeout=300)
    finally:
        demo.terminate()  # it stops its estimators
        demo.wait()
    sizes = [file.stat().st_size for file in metrics]
    for label in ("grpo", "gdpo"):
        assert RunDirectory(Path("runs/demo") / label).last_checkpoint() is not None
    time.sleep(1.0)
    assert [file.stat().st_size for file in metrics] == sizes, "nobody trains any more"


def test_the_starts_differ_in_their_warm_start_texts_and_in_the_learning_rate():
    rare, common = DemoSettings(), DemoSettings(start="common")
    assert rare.start == "rare"
    assert (rare.warm_started.texts.well_formed, rare.learning_rate) == (0.01, 2e-4)
    assert (common.warm_started.texts.well_formed, common.learning_rate) == (0.04, 5e-4)
    assert replace(rare, policy=POLICY).warm_started.layers == POLICY.layers


def test_each_seed_draws_its_own_warm_start():
    assert [DemoSettings(seed=seed).warm_started.seed for seed in (0, 7)] == [0, 7]


def test_the_next_commands_keep_the_other_options():
    from benchmarks.demo.run import _next_commands

    def commands(settings):
        return [line.partition(": ")[2] for line in _next_commands(settings)]

    assert commands(DemoSettings()) == [
        "python -m benchmarks.demo --seed 2",
        "python -m benchmarks.demo --start common",
    ]
    assert commands(DemoSettings(start="common", seed=7, steps=50)) == [
        "python -m benchmarks.demo --start common --seed 8 --steps 50",
        "python -m benchmarks.demo --seed 7 --steps 50",
    ]
