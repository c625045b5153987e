"""`gdpo compare` and `gdpo report`: what is typed wrong is told at once; toys need no model."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.experiments.conftest import write_run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a recipe, or --suite toys"),
        (["recipes/gsm8k", "--suite", "toys"], "give a recipe, or --suite toys, not both"),
        (["--suite", "toys", "--set", "a=b"], "are for recipes, not toys"),
        (["--suite", "games"], "there is one suite, toys"),
        (["--suite", "toys", "--estimators", "gpdo"], "did you mean 'gdpo'"),
        (["--suite", "toys", "--seeds", "many"], "--seeds many: write how many, or which"),
        (["recipes/gsm8k", "--seeds", "0"], "--seeds 0: at least 1"),
        (["recipes/gsm8k", "--estimators", ","], "--estimators names none"),
        (["recipes/gsm8k", "--reach", "1.5"], "above 0 and at most 1"),
        (["recipes/gsm8q"], "did you mean 'gsm8k'"),
        (["recipes/gsm8k", "--vary", "rewards.formt.weight=1,2"], "did you mean 'format'"),
        (["--suite", "toys", "--vary", "a=1"], "are for recipes, not toys"),
    ],
)
def test_what_is_typed_wrong_is_told_before_anything_runs(arguments, message, gdpo_says):
    code, _, err = gdpo_says("compare", *arguments)
    assert code == 2
    assert message in err


def test_a_dry_run_shows_the_arms_and_writes_nothing(gdpo_says, tmp_path):
    folder = tmp_path / "compared"
    options = ["--estimators", "gdpo", "--vary", "rewards.format.weight=1,0.5", "--seeds", "5"]
    code, out, err = gdpo_says(
        "compare", "recipes/gsm8k", *options, "--dry-run", "--output", folder
    )
    assert (code, err) == (0, "")
    assert "gdpo format.weight=0.5: correctness × 1, integer × 1, format × 0.5" in out
    assert "3 comparisons" in out
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the run", "the comparison"])
def test_what_is_stopped_is_told_in_the_last_line_and_is_no_success(
    whom, recipe_file, tmp_path, own_rewards
):
    command = [sys.executable, "-m", "gdpo", "compare", recipe_file]
    folder = tmp_path / "compared"
    options = ["--estimators", "gdpo", "--seeds", "1", "--jobs", "1", "--output", folder]
    with subprocess.Popen(
        [*command, *options],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "own")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        note = folder / "logs" / "gdpo-seed-1.process"
        while not (note.is_file() and note.stat().st_size):
            assert process.poll() is None
            time.sleep(0.05)
        if whom == "the run":
            os.kill(json.loads(note.read_text())["pid"], signal.SIGTERM)
        else:
            process.send_signal(signal.SIGINT)
        *_, last = process.stdout.read().splitlines()
    assert last == (
        "stopped with 0 of 1 runs done; gdpo, seed 1: no step was done yet; the same command goes "
        "on"
    )
    assert process.returncode == 130
    assert not note.exists()


@pytest.mark.slow
def test_toys_are_compared_and_each_gets_a_page(gdpo_says, tmp_path):
    code, out, _ = gdpo_says(
        "compare",
        "--suite",
        "toys",
        "--estimators",
        "grpo,gdpo",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--output",
        str(tmp_path / "toys"),
    )
    assert code == 0
    assert "escape" in out
    assert "ten_rewards" in out
    assert (tmp_path / "toys" / "escape.html").stat().st_size > 10_000


def test_a_folder_of_runs_is_reported(gdpo_says, tmp_path):
    for label, level in (("grpo", 0.1), ("gdpo", 0.8)):
        for seed in range(5):
            write_run(tmp_path, label, seed, {"format": [level + seed / 100] * 4})
    code, out, _ = gdpo_says("report", str(tmp_path))
    assert code == 0
    assert "gdpo ends higher than grpo in format, by 0.7" in " ".join(out.split())
    assert len(out.splitlines()) <= 20
    assert (tmp_path / "report.html").is_file()


def test_a_folder_without_runs_is_named(gdpo_says, tmp_path):
    code, _, err = gdpo_says("report", str(tmp_path))
    assert code == 2
    assert "holds no run" in err
