"""`gdpo compare` and `gdpo report`: wrong options are refused at once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.checkout import environment, python_path
from tests.experiments.conftest import write_run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipes/gsm8k", "--estimators", "gpdo"], "did you mean 'gdpo'"),
        (["recipes/gsm8k", "--seeds", "many"], "--seeds many"),
        (["recipes/gsm8k", "--seeds", "0"], "--seeds 0"),
        (["recipes/gsm8k", "--estimators", ","], "--estimators"),
        (["recipes/gsm8k", "--reach", "1.5"], "above 0 and at most 1"),
        (["recipes/gsm8q"], "did you mean 'gsm8k'"),
        (
            ["recipes/gsm8k", "--vary", "rewards.formt.weight=1,2"],
            "--vary rewards.formt.weight=1: there is no reward 'formt': did you mean 'format'",
        ),
        (
            ["recipes/gsm8k", "--vary", "rewards.format.weight={to: 1},1"],
            "--vary rewards.format.weight={to: 1}: weight is {'to': 1}: write {from",
        ),
        (["recipes/gsm8k", "--estimators", "gdpo,gdpo"], "gdpo"),
        (["recipes/gsm8k", "--estimators", "a=gdpo,a=grpo"], "a twice"),
        (["recipes/gsm8k", "--estimators", "gdpo,a=gdpo"], "'gdpo' and 'a'"),
        (["recipes/gsm8k", "--estimators", "my mine=gdpo"], "'my mine'"),
        (["recipes/gsm8k", "--estimators", "../a=gdpo"], "'../a'"),
        (["recipes/gsm8k", "--estimators", "=gdpo"], "''"),
        (["recipes/gsm8k", "--estimators", "mine="], "--estimators mine="),
        (["recipes/gsm8k", "--estimators", "grpo=gdpo"], "'grpo'"),
        (["recipes/gsm8k", "--estimators", "recorded=gdpo"], "'recorded'"),
        (["recipes/gsm8k", "--estimators", "mine=gpdo"], "did you mean 'gdpo'"),
    ],
)
def test_a_wrong_option_is_named_before_anything_runs(arguments, message, gdpo_says):
    code, _, err = gdpo_says("compare", *arguments)
    assert code == 2
    assert message in err


def test_a_dry_run_shows_the_labels_and_writes_nothing(gdpo_says, tmp_path):
    folder = tmp_path / "compared"
    options = ["--estimators", "gdpo", "--vary", "rewards.format.weight=1,0.5", "--seeds", "5"]
    code, out, err = gdpo_says(
        "compare", "recipes/gsm8k", *options, "--dry-run", "--output", folder
    )
    assert (code, err) == (0, "")
    assert "gdpo format.weight=0.5: 0 of 5 done" in out
    assert "3 comparisons" in out
    assert not folder.exists()


def test_a_dry_run_shows_the_schedules_of_each_variant(gdpo_says, tmp_path):
    common = ["recipes/gsm8k", "--estimators", "gdpo", "--dry-run", "--output", tmp_path / "c"]
    schedule = "rewards.format.weight={from: 1, to: 0.2, steps: 200}"
    varied = "rewards.format.weight.to=0.5,0.2"
    code, out, err = gdpo_says("compare", *common, "--set", schedule, "--vary", varied)
    assert (code, err) == (0, "")
    assert "gdpo format.weight.to=0.5: " in out


def test_a_dry_run_prints_the_smallest_p_value_and_the_seeds_that_are_needed(gdpo_says, tmp_path):
    options = ["--seeds", "3", "--dry-run", "--output", tmp_path / "compared"]
    code, out, _ = gdpo_says("compare", "recipes/gsm8k", *options)
    assert code == 0
    last = out.splitlines()[-1]
    assert "With 3 seeds no p-value can be below 0.3 after correction for 3 comparisons" in last
    assert "--seeds 5" in last


@pytest.mark.slow
def test_a_comparison_prints_what_it_can_show_before_anything_is_trained(
    gdpo_says, recipe_file, tmp_path, own_rewards, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path / "own"))
    options = ["--seeds", "1", "--jobs", "1", "--output", tmp_path / "compared"]
    _, out, _ = gdpo_says("compare", recipe_file, *options)
    assert out.index("cannot show a difference") < out.index("finished at step")
    assert "--seeds 5" in out[: out.index("finished at step")]


def test_a_seed_without_its_model_is_named_before_anything_is_trained(
    gdpo_says, recipe_file, tmp_path, tiny_policy
):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "1").symlink_to(tiny_policy)
    folder = tmp_path / "compared"
    changes = ["--set", f"model={tmp_path}/models/{{seed}}", "--seeds", "2", "--output", folder]
    code, _, err = gdpo_says("compare", recipe_file, *changes)
    assert code == 2
    assert "models/2, the model of seed 2" in err
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("options", "code"), [(["--dry-run"], 0), ([], 2)])
def test_only_a_dry_run_works_without_trl_and_prints_what_it_does_not_check(
    options, code, tmp_path
):
    blocked = "import sys; sys.modules.update(trl=None)"
    command = [
        "compare",
        "recipes/gsm8k",
        "--seeds",
        "3",
        "--output",
        str(tmp_path / "c"),
        *options,
    ]
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}; from gdpo.cli import main; main()", *command],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert "pip install '.[train]'" in done.stdout + done.stderr
    assert ("3 comparisons" in done.stdout) == ("`trainer:`" in done.stdout) == (code == 0)


def test_an_estimator_with_a_name_of_ones_own_is_shown_by_that_name(gdpo_says, tmp_path):
    named = "grpo,ours=gdpo,mine=gdpo.advantages:mo_grpo"
    options = ["--estimators", named, "--dry-run", "--output", tmp_path / "compared"]
    code, out, err = gdpo_says("compare", "recipes/gsm8k", *options)
    assert (code, err) == (0, "")
    assert "ours: 0 of " in out
    assert "ours-seed-1" in out
    assert "mine-seed-1" in out
    assert "contrib" not in out


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


def test_a_folder_of_runs_is_reported(gdpo_says, tmp_path):
    for label, level in (("grpo", 0.1), ("gdpo", 0.8)):
        for seed in range(5):
            write_run(tmp_path, label, seed, {"format": [level + seed / 100] * 4})
    code, out, _ = gdpo_says("report", str(tmp_path))
    assert code == 0
    assert "gdpo ends 0.7" in " ".join(out.split())
    assert "higher than grpo in format" in " ".join(out.split())
    assert "raw" in out
    assert len(out.splitlines()) <= 20
    assert (tmp_path / "report.html").is_file()


def test_a_folder_without_runs_is_named(gdpo_says, tmp_path):
    code, _, err = gdpo_says("report", str(tmp_path))
    assert code == 2
    assert "contains no run" in err
