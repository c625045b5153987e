"""Training end to end on a random tiny model: the run directory, interruptions, resumptions."""

import io
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from tests.refusals import config_error, data_error, refusal
from tests.training.conftest import (
    assert_resumes_exactly,
    contents,
    forget_checkpoints_after,
    repeatable,
    weights,
)

from gdpo.lab.experiments.reading import read_experiment
from gdpo.lab.recipes.read import load_recipe
from gdpo.lab.recipes.resolve import resolve
from gdpo.lab.runs.checkpoints import Checkpoint, complete
from gdpo.lab.runs.directory import read_environment, read_metrics, read_run
from gdpo.lab.runs.resume import resume_command
from gdpo.lab.training import train
from gdpo.lab.training.finish import _best_or, finish_run
from gdpo.lab.training.preflight import prepare, quiet
from gdpo.rollouts import read_rollouts
from gdpo.rollouts.record import read_declared

pytestmark = pytest.mark.slow


def resumed(recipe, **options):
    return train(recipe, resume=True, **options)


def test_the_diagnosis_of_the_end_is_of_what_was_trained(load, own_rewards, tmp_path):
    """Every other prompt's group is dead, and replaced; the record has both."""
    (tmp_path / "own" / "half_dead.py").write_text(
        "from gdpo import Reward\n"
        "def of(completion, reference):\n"
        "    return 0.5 if int(reference['answer']) % 4 else (len(completion) % 3) / 2\n"
        "half_dead = Reward('half_dead', of, low=0, high=1)\n"
    )
    changes = [
        "rewards=[{name: 'half_dead:half_dead'}]",
        "trainer.filter_groups=any_reward_varies",
        "trainer.max_filter_rounds=8",
    ]
    result = train(load(*changes))
    run = result.run
    records = [r for file in run.rollouts.glob("*.parquet") for r in read_rollouts(file)]
    assert not all(r.trained for r in records)
    assert "zero-advantage groups: 0 %" in run.readme.read_text()


def test_a_run_holds_everything_about_itself(finished):
    run = finished.run
    assert finished.finished
    assert finished.steps == 4
    metrics = read_metrics(run)
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert {
        "rewards/vowels/mean",
        "rewards/vowels/influence_share",
        "rewards/format/zero_variance_groups",
    } <= set(metrics[0])
    environment = read_environment(run)
    assert environment["seed"] == 42
    assert environment["packages"]["trl"]
    assert environment["command"]
    assert len(read_rollouts(run.rollouts / "step_000004.parquet")) == 8
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["checkpoint-3", "checkpoint-4"]
    assert "| vowels | 0 to 1 | 1 |" in run.readme.read_text()


def test_the_readme_of_a_run_says_what_the_rewards_did(finished):
    text = finished.run.readme.read_text()
    assert f"started {read_environment(finished.run)['started']}," in text
    assert "\\" not in text
    diagnosis = text.partition("Diagnosis of the last steps")[2]
    assert "gdpo on 8 x 4 rollouts (prompts x samples)" in diagnosis  # 4 steps of 2 prompts
    assert "vowels" in diagnosis
    assert finished.notes == ()  # eight groups are too few for a warning
    assert "- `format` is constant in 100 % of its 8 groups" in diagnosis


def test_the_trained_model_loads_and_writes(finished):
    assert not (finished.run.model / "files.json").exists()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(finished.run.model)
    tokenizer = AutoTokenizer.from_pretrained(finished.run.model)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], return_tensors="pt", add_generation_prompt=True
    )
    assert model.generate(**prompt, max_new_tokens=2).shape[1] > prompt["input_ids"].shape[1]


def test_a_run_keeps_what_is_declared_of_its_rewards(load):
    gated = "rewards.1.gate={on: vowels, at_least: 0.5}"
    ranged = "rewards.2={name: 'own_rewards:short_or', gate: {on: vowels, at_least: 0.5}}"
    recipe = load(gated, ranged, "trainer.max_steps=1")
    declared = {
        "vowels": {"low": 0.0, "high": 1.0},
        "brief": {"low": 0.0, "high": 1.0, "gate": {"on": "vowels", "at_least": 0.5}},
        "short": {"low": 0.0, "high": 1.0, "gate": {"on": "vowels", "at_least": 0.5}},
    }
    run = train(recipe).run
    assert read_environment(run)["rewards"] == declared
    assert read_run(run).ranges == dict.fromkeys(declared, (0.0, 1.0))
    (file,) = run.rollouts.glob("*.parquet")
    assert read_declared(pq.read_schema(file)) == declared
    lengthened = load(gated, ranged, "trainer.max_steps=2")
    run.update_environment(rewards=None)  # as a run of an earlier version
    resumed(lengthened)
    assert read_environment(run)["rewards"] == declared
    assert "rewards" not in read_environment(run)["resumed"][0]


def test_an_existing_run_is_refused_and_left_as_it_is(finished, recipe):
    before = {p: p.stat().st_mtime_ns for p in finished.run.path.rglob("*")}
    with config_error(r"--resume.*--set name=tiny-2"):
        train(recipe)
    assert {p: p.stat().st_mtime_ns for p in finished.run.path.rglob("*")} == before


def test_a_folder_of_something_else_is_refused(recipe):
    with config_error(r"there is no run .*--resume"):
        resumed(recipe)
    recipe.run_dir.mkdir(parents=True)
    (recipe.run_dir / "thesis.tex").write_text("years of work")
    with config_error("not a gdpo run"):
        train(recipe)
    with data_error("not a gdpo run"):
        resumed(recipe)
    assert [p.name for p in recipe.run_dir.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("step", [2, 5, 6], ids=["first epoch", "between epochs", "second epoch"])
def test_a_resumed_run_equals_an_uninterrupted_one(trained, step):
    run = trained("trainer.max_steps=7", "trainer.save_total_limit=10").run
    whole_weights = weights(run)
    rollouts = read_rollouts(run.rollouts / "step_000007.parquet")
    assert [row["step"] for row in repeatable(run)] == [1, 2, 3, 4, 5, 6, 7]
    assert assert_resumes_exactly(run, step).steps == 7
    assert all(torch.equal(tensor, whole_weights[name]) for name, tensor in weights(run).items())
    assert read_rollouts(run.rollouts / "step_000007.parquet") == rollouts
    assert read_environment(run)["resumed"][0]["at_step"] == step


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_that_would_run_code_is_reported_and_runs_none(begun, recipe, file, tmp_path):
    evil, marker = begun.checkpoints / "checkpoint-3" / file, tmp_path / "EXECUTED"
    evil.write_bytes(pickle.dumps(Evil(marker), protocol=2))
    complete(evil.parent)  # as whoever wrote it would
    with pytest.raises(pickle.UnpicklingError):
        resumed(recipe)
    assert not marker.exists()


class Evil:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_resumed_run_goes_on_with_the_multipliers_of_its_constraints(load):
    constrained = [
        "advantage=constrained_grpo",
        "advantage_options={targets: {brief: 0.99}, step_size: 1}",
        "trainer.save_total_limit=10",
    ]
    run = train(load(*constrained)).run
    multipliers = [row["rewards/brief/multiplier"] for row in repeatable(run)]
    assert multipliers == sorted(multipliers)
    assert multipliers[0] == 0 < multipliers[1]
    assert_resumes_exactly(run, 2)


FALLING = "rewards.brief.weight={from: 1.0, to: 0.0, steps: 4}"


def recorded_weights(run):
    files = sorted(run.rollouts.glob("*.parquet"))
    return [read_rollouts(file)[0].weights["brief"] for file in files]


def test_a_resumed_run_goes_on_with_its_changing_weights(load):
    run = train(load(FALLING, "trainer.save_total_limit=10")).run
    weights = [row["rewards/brief/weight"] for row in repeatable(run)]
    assert weights == recorded_weights(run)
    assert len(set(weights)) > 1
    (read,) = read_experiment(run.path).runs
    assert read.weights["brief"].tolist() == weights
    assert f"| brief | 0 to 1 | {weights[-1]:g} |" in run.readme.read_text()
    assert_resumes_exactly(run, 2)


def test_with_sparse_logs_weights_are_those_of_the_logged_steps(load):
    run = train(load(FALLING, "trainer.logging_steps=2")).run
    recorded = recorded_weights(run)
    (read,) = read_experiment(run.path).runs
    assert len(set(recorded)) > 1
    np.testing.assert_array_equal(read.weights["brief"], [np.nan, recorded[1], np.nan, recorded[3]])


def test_steps_that_cannot_be_made_again_are_not_deleted(begun, recipe):
    shutil.rmtree(begun.checkpoints)

    before = contents(begun.path)
    text = refusal(resumed, recipe)
    assert "has logged 4 steps" in text
    assert "--set name=tiny-2" in text
    assert "--from-scratch" in text
    assert contents(begun.path) == before


def test_a_run_without_a_checkpoint_begins_again_where_that_is_asked_for(begun, recipe):
    whole = repeatable(begun)
    shutil.rmtree(begun.checkpoints)
    result = resumed(recipe, from_scratch=True)
    assert result.started_at == 0
    assert repeatable(begun) == whole
    (aside,) = begun.path.glob("dropped-*")
    assert len((aside / "metrics.jsonl").read_text().splitlines()) == 4
    assert len(list((aside / "rollouts").iterdir())) == 4


def test_a_finished_run_without_checkpoints_says_that_it_is_finished(finished, load):
    shutil.rmtree(finished.run.checkpoints)
    again = resumed(load())
    assert (again.finished, again.steps) == (True, 4)
    assert "already finished: 4 steps" in again.conclusion
    with config_error("4 steps"):
        resumed(load("trainer.max_steps=6"))
    assert len(read_metrics(finished.run)) == 4


def test_a_damaged_checkpoint_is_passed_over_and_reported(trained, load):
    longer = load("trainer.save_total_limit=10")
    run = trained("trainer.save_total_limit=10").run
    whole = repeatable(run)
    forget_checkpoints_after(run, 3)
    (run.checkpoints / "checkpoint-3" / "optimizer.pt").unlink()
    printed = Console(file=io.StringIO(), width=10_000)
    result = resumed(longer, console=printed)
    assert result.started_at == 2
    assert repeatable(run) == whole
    assert "checkpoint-3 is damaged: optimizer.pt is missing" in printed.file.getvalue()
    assert "the records of steps 3 to 4 were moved to" in printed.file.getvalue()
    assert len(list(run.path.glob("dropped-*/checkpoints/checkpoint-3"))) == 1


def test_a_copy_that_is_no_run_any_more_does_not_mean_another_one(begun):
    copy = begun.path.with_name("copy")
    shutil.copytree(begun.path, copy)
    (copy / "environment.json").unlink()
    with config_error(r"copy .*environment\.json"):
        load_recipe(copy, resume=True)


def test_a_run_that_cannot_be_written_to_is_one_message(begun, recipe):
    (begun.path / ".lock").unlink()
    (begun.path / ".lock").mkdir()
    with config_error("Is a directory"):
        resumed(recipe)


def test_a_run_with_other_versions_and_lost_records_is_resumed(begun, recipe):
    facts = read_environment(begun)
    begun.update_environment(gdpo="0.0.3", packages={**facts["packages"], "torch": "2.9.0"})
    begun.metrics.unlink()
    shutil.rmtree(begun.rollouts)
    printed = Console(file=io.StringIO(), width=10_000)
    assert resumed(recipe, console=printed).finished
    text = printed.file.getvalue()
    assert f"resumed with gdpo {facts['gdpo']} (before: 0.0.3), torch" in text
    assert "8 rollouts per step on 1 process" in text


def test_what_is_finished_says_so_last(finished, recipe):
    with quiet():
        job = prepare(resolve(recipe), rows=1)
    run = finished.run
    forget_checkpoints_after(run, 4)
    run.readme.unlink()
    run.readme.mkdir()  # the card cannot be written
    with pytest.raises(IsADirectoryError):
        finish_run(job, read_run(run))
    assert "finished" not in read_environment(run)
    assert not list(run.path.glob(".model.*"))
    run.readme.rmdir()
    finish_run(job, read_run(run))
    assert "finished" in read_environment(run)
    assert run.readme.is_file()


def test_a_finished_run_can_be_made_longer(finished, load):
    longer = resumed(load("trainer.max_steps=5"))
    assert (longer.started_at, longer.steps) == (4, 5)
    assert [row["step"] for row in read_metrics(longer.run)] == [1, 2, 3, 4, 5]
    longest = resumed(load("trainer.max_steps=6"))
    assert load_recipe(longest.run.path).trainer["max_steps"] == 6
    resumptions = read_environment(longest.run)["resumed"]
    assert [each["at_step"] for each in resumptions] == [4, 5]


def test_another_recipe_cannot_resume_a_run(finished, load):
    other = load("trainer.learning_rate=2e-2", "rewards.1.weight=2")
    text = refusal(resumed, other)
    assert "trainer.learning_rate: 0.01 → 0.02" in text
    assert "rewards.1.weight: 0.5 → 2.0" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [(lambda lines: lines * 2, r"rows .*10.*20"), (lambda lines: lines[::-1], r"digest .*order")],
)
def test_other_data_cannot_resume_a_run(begun, recipe, rows, changed, message):
    rows.write_text("".join(changed(rows.read_text().splitlines(keepends=True))))
    with config_error(message):
        resumed(recipe)


def test_a_run_that_had_no_signal_says_that_nothing_was_learned(load):
    recipe = load("rewards=[{name: format}]", "trainer.max_steps=1")
    assert "nothing was learned" in " ".join(train(recipe).notes)


@pytest.mark.parametrize("named", ["folder", "recipe.yaml", "from inside"])
def test_a_copied_run_directory_means_itself_when_resumed(begun, tmp_path, monkeypatch, named):
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(begun.path, copy)
    untouched = begun.recipe.read_bytes(), begun.environment.read_bytes()
    monkeypatch.chdir(copy if named == "from inside" else tmp_path)
    given = {"folder": copy, "recipe.yaml": copy / "recipe.yaml", "from inside": "."}[named]

    result = resumed(load_recipe(given, resume=True))

    assert result.run.path == copy
    assert (result.started_at, result.steps) == (3, 4)
    assert (begun.recipe.read_bytes(), begun.environment.read_bytes()) == untouched
    assert not (begun.checkpoints / "checkpoint-4").exists()
    assert resumed(load_recipe(copy, resume=True)).started_at == 4


def test_a_run_with_a_relative_folder_resumes_from_another_working_folder(
    load, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run = train(load("runs_dir=runs", "trainer.max_steps=1")).run
    command = resume_command(run).split()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    result = resumed(load_recipe(command[2], ["trainer.max_steps=2"], resume=True))
    assert result.started_at == 1
    assert result.run.path == tmp_path / "runs" / "tiny"
    assert not list((tmp_path / "other").iterdir())


def test_a_renamed_run_needs_a_name_that_a_run_can_have(begun):
    renamed = begun.path.rename(begun.path.with_name("tiny (copy)"))
    with config_error("Rename the folder"):
        load_recipe(renamed, resume=True)


def test_a_recipe_outside_a_run_keeps_its_name_when_resumed(recipe_file, recipe):
    assert load_recipe(recipe_file, resume=True) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.model_init_kwargs={nonsense: 1}", "TypeError: .*nonsense"),
        ("trainer.report_to=wandb", "WandbCallback requires"),
        ("model={truncated}", "SafetensorError"),
    ],
)
def test_a_trainer_that_cannot_be_made_is_one_message_and_keeps_no_name(
    load, tiny_policy, tmp_path, override, message
):
    truncated = tmp_path / "truncated"
    shutil.copytree(tiny_policy, truncated)
    file = truncated / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200])
    recipe = load(override.replace("{truncated}", str(truncated)))
    with config_error(rf"(?s)trainer.*settings: {message}"):
        train(recipe)
    assert not recipe.run_dir.exists()
    assert not list(recipe.run_dir.parent.iterdir())


def test_a_resumption_that_cannot_be_built_keeps_the_run(begun, recipe_file):
    recipe = load_recipe(begun.path)
    Path(recipe.model, "model.safetensors").rename(Path(recipe.model, "kept"))
    Path(recipe.model, "model.safetensors").write_bytes(b"cut")
    try:
        with config_error("the trainer cannot be built"):
            resumed(recipe)
    finally:
        Path(recipe.model, "kept").replace(Path(recipe.model, "model.safetensors"))
    assert begun.environment.exists()


def test_the_best_checkpoint_is_found_after_a_run_was_moved(load, rows, tmp_path):
    recipe = load(
        f"eval_data={{source: {rows}, limit: 2}}",
        "trainer.eval_steps=1",
        "trainer.per_device_eval_batch_size=4",
        "trainer.load_best_model_at_end=true",
        "trainer.metric_for_best_model=eval_reward",
    )
    with quiet():
        job = prepare(resolve(recipe), rows=1)
    best, last = tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"
    best.mkdir()
    last.mkdir()
    noted = {"global_step": 2, "best_model_checkpoint": "/before/checkpoints/checkpoint-1"}
    (last / "trainer_state.json").write_text(json.dumps(noted))
    assert _best_or(Checkpoint(last, 2), job) == best
