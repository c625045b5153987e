"""Tests `gdpo launch verl`: the run directory, the end of a run, and resuming.

A program named verl runs in place of verl. It records the arguments that it was called with.
"""

import json
import os
import signal
import subprocess
import threading
import time
from importlib.util import find_spec

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Dataset
from tests.refusals import config_error

from gdpo.errors import ConfigError, DataError, MissingExtraError
from gdpo.integrations.verl.settings import read_settings
from gdpo.lab.launch.launch import launch_verl, plan_verl
from gdpo.lab.launch.verl import Machines
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.runs.directory import read_environment, read_metrics
from gdpo.lab.runs.lock import is_locked
from gdpo.lab.training import train
from gdpo.rewards.weights_column import weights_of_cells

FOR_VERL = ("trainer.lr_scheduler_type=constant", "data.max_prompt_length=900")

PROGRAM = """
import json, os, pathlib, sys, time
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--config-path")).partition("=")[2])
call = {"arguments": sys.argv[1:], "log": os.environ["VERL_FILE_LOGGER_PATH"]}
step = {"gdpo/format/mean": 0.25 * len(sys.argv[-1]), "response_length/max": 7}
pathlib.Path(call["log"]).write_text(json.dumps({"step": 2, "data": step}) + "\\n")
for step in (2, 10):
    saved = folder.parent / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
    saved.mkdir(parents=True, exist_ok=True)
    (saved / "config.json").write_text(str(step))
    (saved / "model.safetensors").touch()
with open(folder / "called.jsonl", "a") as file:
    file.write(json.dumps(call) + "\\n")
time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
sys.exit(int(os.environ.get("STAND_IN_CODE", "0")))
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs the program as verl, under a given version."""

    def put(version):
        site = tmp_path / "site"
        package = site / "verl" / "trainer"
        package.mkdir(parents=True)
        for folder in (package, package.parent):
            (folder / "__init__.py").write_text("")
        (package / "main_ppo.py").write_text(PROGRAM)
        facts = site / f"verl-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Name: verl\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    return put


@pytest.fixture
def verl(install):
    install("0.9.1")


@pytest.fixture
def planned(load):
    def plan(*changes, **more):
        recipe = load(*FOR_VERL, *changes)
        return plan_verl(recipe, Machines(1, 1), **more)

    return plan


def calls(launch):
    lines = (launch.files.folder / "called.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_run_keeps_the_recipe_the_configuration_and_the_command_and_gets_a_model_and_a_readme(
    planned, verl
):
    launch = planned(overrides=("trainer.val_only=False",))
    lines = []
    assert launch_verl(launch, report=lines.append) == 0
    files, run = launch.files, launch.files.run
    assert load_recipe(run.path).digest == launch.recipe.digest
    assert yaml.safe_load(files.config.read_text()) == launch.config
    assert "verl.trainer.main_ppo" in files.command.read_text()
    environment = read_environment(run)
    assert (environment["engine"], environment["verl_exit_code"]) == ("verl", 0)
    assert "finished" in environment
    (call,) = calls(launch)
    assert call["arguments"][-1] == "trainer.val_only=False"
    assert call["log"] == str(files.metrics)
    assert str(run.model) in lines[-1]
    assert "step 10" in lines[-1]
    assert (run.model / "config.json").read_text() == "10"
    assert (run.model / "model.safetensors").is_file()
    text = run.readme.read_text()
    for part in (
        "- verl\n",
        f"gdpo launch verl {run.path}",
        "| format | 0 to 1 | 1 | 5.500 | 5.500 |",
    ):
        assert part in text
    (row,) = read_metrics(run)
    assert (row["step"], row["completions/max_length"], row["rewards/format/mean"]) == (2, 7, 5.5)


def test_the_saved_command_reruns_the_run(planned, verl):
    launch = planned()
    launch_verl(launch)
    subprocess.run(["sh", launch.files.command], check=True)
    first, again = calls(launch)
    assert first == again


def test_the_data_has_the_format_that_verl_and_our_rewards_read(planned, verl, rows):
    launch = planned(f"eval_data={{source: {rows}, limit: 2}}")
    launch_verl(launch)
    table = pq.read_table(launch.files.train).to_pylist()
    assert len(table) == 10
    assert table[3]["data_source"] == "gsm8k"
    assert table[3]["extra_info"] == {"index": 3}
    assert table[3]["prompt"][-1] == {"role": "user", "content": "What is 3 + 3?"}
    assert json.loads(table[3]["reward_model"]["ground_truth"])["answer"] == "6"
    assert pq.read_metadata(launch.files.evaluation).num_rows == 2
    assert launch.config["data"]["val_files"] == str(launch.files.evaluation)


def test_the_weights_of_each_prompt_are_in_the_training_data_and_verl_reads_them(
    planned, verl, rows, weighted
):
    cells = [{"vowels": 2.0}, None, {"vowels": None, "format": 3}] + 7 * [{"brief": 0.0}]
    plain = rows.with_name("plain.jsonl")
    plain.write_text(rows.read_text())
    weighted(*cells)
    launch = planned("data.weights_column=w", f"eval_data={{source: {plain}}}")
    told = []
    launch_verl(launch, report=told.append)
    assert any("9 of 10 rows" in line for line in told)
    settings = read_settings(launch.config["algorithm"])
    column = settings.weights_column
    read = Dataset.from_parquet(str(launch.files.train))  # as verl does
    found, wanted = (
        weights_of_cells(each, settings.names, settings.weights, column="w")
        for each in (read[column], cells)
    )
    np.testing.assert_array_equal(found, wanted)
    assert column not in pq.read_schema(launch.files.evaluation).names


def test_a_run_is_not_overwritten_and_can_be_resumed(planned, verl, monkeypatch):
    monkeypatch.setenv("STAND_IN_CODE", "3")
    launch = planned()
    assert launch_verl(launch) == 3
    run = launch.files.run
    environment = read_environment(run)
    assert environment["verl_exit_code"] == 3
    assert "finished" not in environment
    with config_error(str(run.path)):
        launch_verl(launch)
    monkeypatch.setenv("STAND_IN_CODE", "0")
    assert launch_verl(launch, resume=True) == 0
    environment = read_environment(run)
    assert len(environment["resumed"]) == 1
    assert "finished" in environment
    folder = launch.files.folder
    assert {"metrics.jsonl", "metrics-1.jsonl", "config-1.yaml"} <= {
        f.name for f in folder.iterdir()
    }


def test_metrics_of_a_step_that_a_resumed_run_repeats_count_once(planned, verl, monkeypatch):
    monkeypatch.setenv("STAND_IN_CODE", "3")
    launch = planned()
    launch_verl(launch)
    with launch.files.metrics.open("a") as file:
        file.write('{"step": 1, "data": {"response_length/max": 5}}\n{"step": 3, "da')
    monkeypatch.setenv("STAND_IN_CODE", "0")
    launch_verl(launch, resume=True)
    rows = read_metrics(launch.files.run)
    assert [(row["step"], row["completions/max_length"]) for row in rows] == [(1, 5), (2, 7)]


def test_another_recipe_number_of_gpus_or_engine_does_not_resume_a_run(planned, verl, load):
    launch_verl(planned())
    with config_error("learning_rate"):
        launch_verl(planned("trainer.learning_rate=1.0"), resume=True)
    recipe = load(*FOR_VERL)
    with config_error(r"processes .*1.*2"):
        launch_verl(plan_verl(recipe, Machines(1, 2)), resume=True)
    assert not is_locked(planned().files.run.path)
    with config_error(r"engine .*verl.*trl"):
        train(planned().recipe, resume=True)


NO_VERL = pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")


@pytest.mark.parametrize(
    ("version", "change", "error", "message"),
    [
        ("0.8.0", "batch.prompts=2", ConfigError, r"verl 0\.8\.0 is too old.*0\.9 or newer"),
        pytest.param(None, "batch.prompts=2", MissingExtraError, "verl", marks=NO_VERL),
        ("0.9.1", "batch.prompts=20", ConfigError, r"10 rows.* 20 prompts"),
        ("0.9.1", "data.weights_column=w", DataError, r"row 1 of .* did you mean 'vowels'"),
    ],
)
def test_a_launch_that_cannot_work_is_refused_before_anything_is_written(
    planned, install, weighted, version, change, error, message
):
    if version is not None:
        install(version)
    weighted({"vowel": 1})
    with pytest.raises(error, match=message):
        launch_verl(planned(change))
    assert not planned().files.run.path.exists()


def test_sigterm_ends_verl_and_unlocks_the_run(planned, verl, monkeypatch):
    monkeypatch.setenv("STAND_IN_SECONDS", "30")
    launch = planned()

    def end_it():
        called = launch.files.folder / "called.jsonl"
        while not called.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_it).start()
    assert launch_verl(launch) == -signal.SIGTERM
    assert not is_locked(launch.files.run.path)
    assert "finished" not in read_environment(launch.files.run)
