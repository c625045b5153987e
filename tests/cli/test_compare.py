"""`gdpo compare`: wrong options are refused at once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.checkout import environment, python


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--seeds many", "--seeds many"),
        ("--seeds 0", "--seeds 0"),
        ("--reach 1.5", "above 0 and at most 1"),
        (
            "--vary rewards.formt.weight=1,2",
            "--vary rewards.formt.weight=1: there is no reward 'formt': did you mean 'format'",
        ),
        (
            "--vary rewards.format.weight={to: 1},1",
            "--vary rewards.format.weight={to: 1}: weight is {'to': 1}: write {from",
        ),
        ("--estimators gpdo", "did you mean 'gdpo'"),
        ("--estimators ,", "--estimators"),
        ("--estimators a=gdpo,a=grpo", "a twice"),
        ("--estimators my mine=gdpo", "'my mine'"),
        ("--estimators ../a=gdpo", "'../a'"),
        ("--estimators =gdpo", "''"),
        ("--estimators mine=", "--estimators mine="),
        ("--estimators grpo=gdpo", "'grpo'"),
        ("--estimators recorded=gdpo", "'recorded'"),
    ],
)
def test_a_wrong_option_is_named_before_anything_runs(typed, message, mistake):
    assert message in mistake("compare", "recipes/gsm8k", *typed.split(maxsplit=1))


def test_a_misspelt_recipe_is_named(mistake):
    assert "did you mean 'gsm8k'" in mistake("compare", "recipes/gsm8q")


SCHEDULE = ("--set", "rewards.format.weight={from: 1, to: 0.2, steps: 200}")


@pytest.mark.parametrize(
    ("more", "varied", "label"),
    [((), "", "gdpo format.weight=0.5"), (SCHEDULE, ".to", "gdpo format.weight.to=0.5")],
)
def test_a_dry_run_shows_the_labels_and_writes_nothing(printed, tmp_path, more, varied, label):
    folder = tmp_path / "compared"
    options = ("--estimators", "gdpo", "--seeds", "5", "--dry-run", "--output", folder)
    vary = ("--vary", f"rewards.format.weight{varied}=0.5,0.2")
    out = printed("compare", "recipes/gsm8k", *more, *vary, *options)
    assert f"{label}: 0 of 5 done" in out
    assert "3 comparisons" in out
    assert not folder.exists()


def test_a_seed_without_its_model_is_named_before_anything_is_trained(
    mistake, recipe_file, tmp_path, tiny_policy
):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "1").symlink_to(tiny_policy)
    folder = tmp_path / "compared"
    changes = ["--set", f"model={tmp_path}/models/{{seed}}", "--seeds", "2", "--output", folder]
    assert "models/2, the model of seed 2" in mistake("compare", recipe_file, *changes)
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("options", "code"), [(["--dry-run"], 0), ([], 2)])
def test_only_a_dry_run_works_without_trl_and_prints_what_it_does_not_check(
    options, code, tmp_path
):
    blocked = "import sys; sys.modules.update(trl=None)"
    command = ["compare", "recipes/gsm8k", "--seeds", "3", "--output", tmp_path / "c", *options]
    done = python("-c", f"{blocked}; from gdpo.cli import main; main()", *command)
    assert done.returncode == code
    assert "pip install '.[train]'" in done.stdout + done.stderr
    assert ("3 comparisons" in done.stdout) == ("`trainer:`" in done.stdout) == (code == 0)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the run", "the comparison"])
def test_the_last_line_names_what_was_stopped_and_the_exit_code_is_not_0(
    whom, recipe_file, tmp_path, own_rewards
):
    command = [sys.executable, "-m", "gdpo", "compare", recipe_file]
    folder = tmp_path / "compared"
    options = ["--estimators", "gdpo", "--seeds", "1", "--jobs", "1", "--output", folder]
    with subprocess.Popen(
        [*command, *options], env=environment(tmp_path / "own"), stdout=subprocess.PIPE, text=True
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
    assert last == "stopped with 0 of 1 runs done; rerun the same command to resume"
    assert process.returncode == 130
    assert not note.exists()
