"""Training end to end on a random tiny model: the run directory, interruptions, resumptions."""

import json
import os
import shutil
import signal
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from gdpo.errors import ConfigError, DataError
from gdpo.rollouts import read_rollouts
from gdpo.training import RunDirectory, load_recipe, train

NOT_REPEATABLE = ("step_time", "train_runtime")
"""Figures that no two runs share."""


def repeatable(run: RunDirectory) -> list[dict]:
    return [
        {key: value for key, value in row.items() if key not in NOT_REPEATABLE}
        for row in run.read_metrics()
    ]


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.model / "model.safetensors")


def forget_checkpoints_after(run: RunDirectory, step: int) -> None:
    """What is left of a run that died after this step's checkpoint."""
    for folder in run.checkpoints.iterdir():
        if int(folder.name.rpartition("-")[2]) > step:
            shutil.rmtree(folder)
    shutil.rmtree(run.model)


def interrupt_when(condition) -> threading.Thread:
    """Press Ctrl-C in this process as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def finished(recipe):
    return train(recipe)


def test_a_run_holds_everything_about_itself(finished, recipe_file):
    run = finished.run
    assert finished.finished
    assert finished.steps == 4
    metrics = run.read_metrics()
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert {"rewards/vowels/mean", "rewards/vowels/group_std", "rewards/format/dead_groups"} <= set(
        metrics[0]
    )
    environment = run.read_environment()
    assert environment["seed"] == 42
    assert environment["packages"]["trl"]
    assert environment["command"]
    assert len(read_rollouts(run.rollouts / "step_000004.parquet")) == 8
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["checkpoint-3", "checkpoint-4"]
    assert run.curves.stat().st_size > 10_000
    assert "| vowels | 0 to 1 | 1 |" in run.readme.read_text()
    assert load_recipe(run.path).model_dump() == load_recipe(recipe_file).model_dump()


def test_the_trained_model_loads_and_writes(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(finished.run.model)
    tokenizer = AutoTokenizer.from_pretrained(finished.run.model)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2?"}], return_tensors="pt", add_generation_prompt=True
    )
    assert model.generate(**prompt, max_new_tokens=2).shape[1] > prompt["input_ids"].shape[1]


def test_an_existing_run_is_refused_and_left_as_it_is(finished, recipe):
    before = {p: p.stat().st_mtime_ns for p in finished.run.path.rglob("*")}
    with pytest.raises(ConfigError, match=r"--resume, or .*--set name=tiny-2"):
        train(recipe)
    assert {p: p.stat().st_mtime_ns for p in finished.run.path.rglob("*")} == before


def test_a_folder_of_something_else_is_refused(recipe):
    recipe.run_dir.mkdir(parents=True)
    (recipe.run_dir / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="no run of gdpo; nothing in it is overwritten"):
        train(recipe)
    with pytest.raises(DataError, match="no run of gdpo"):
        train(recipe, resume=True)
    assert [p.name for p in recipe.run_dir.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("step", [2, 5, 6], ids=["first epoch", "between epochs", "second epoch"])
def test_a_resumed_run_equals_an_uninterrupted_one(recipe_file, step):
    recipe = load_recipe(recipe_file, ["trainer.max_steps=7", "trainer.save_total_limit=10"])
    run = train(recipe).run
    whole, whole_weights = repeatable(run), weights(run)
    rollouts = read_rollouts(run.rollouts / "step_000007.parquet")
    assert [row["step"] for row in whole] == [1, 2, 3, 4, 5, 6, 7]
    forget_checkpoints_after(run, step)

    result = train(recipe, resume=True)

    assert result.started_at == step
    assert result.steps == 7
    assert repeatable(run) == whole
    assert all(torch.equal(tensor, whole_weights[name]) for name, tensor in weights(run).items())
    assert read_rollouts(run.rollouts / "step_000007.parquet") == rollouts
    assert run.read_environment()["resumed"][0]["at_step"] == step


def test_one_ctrl_c_finishes_the_step_and_leaves_a_run_that_resumes(recipe_file):
    recipe = load_recipe(recipe_file, ["trainer.max_steps=30", "trainer.save_steps=100"])
    run = RunDirectory(recipe.run_dir)
    thread = interrupt_when(lambda: len(run.read_metrics()) >= 2)
    result = train(recipe)
    thread.join()
    assert not result.finished
    assert 2 <= result.steps < 30
    assert len(run.read_metrics()) == result.steps
    assert f"gdpo train {run.path} --resume" in result.conclusion
    assert not run.model.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    shorter = load_recipe(run.path, [f"trainer.max_steps={result.steps + 1}"])
    resumed = train(shorter, resume=True)
    assert resumed.started_at == result.steps
    assert resumed.finished


def test_a_run_without_a_checkpoint_resumes_from_its_start(recipe):
    run = train(recipe).run
    whole = repeatable(run)
    forget_checkpoints_after(run, 0)
    result = train(recipe, resume=True)
    assert result.started_at == 0
    assert repeatable(run) == whole


def test_a_half_written_checkpoint_is_not_resumed_from(recipe):
    run = train(recipe).run
    (run.checkpoints / "checkpoint-4" / "trainer_state.json").write_text('{"global_st')
    shutil.rmtree(run.model)
    assert train(recipe, resume=True).started_at == 3


def test_a_finished_run_says_so_and_can_be_made_longer(finished, recipe_file):
    again = train(load_recipe(recipe_file), resume=True)
    assert again.started_at == again.steps == 4
    assert "is finished" in again.conclusion
    longer = train(load_recipe(recipe_file, ["trainer.max_steps=5"]), resume=True)
    assert (longer.started_at, longer.steps) == (4, 5)
    assert [row["step"] for row in longer.run.read_metrics()] == [1, 2, 3, 4, 5]
    longest = train(load_recipe(recipe_file, ["trainer.max_steps=6"]), resume=True)
    assert load_recipe(longest.run.path).trainer["max_steps"] == 6
    resumed = longest.run.read_environment()["resumed"]
    assert [resumption["at_step"] for resumption in resumed] == [4, 5]


def test_a_run_that_died_before_it_got_its_model_gets_it_on_resumption(finished, recipe):
    run = finished.run
    shutil.rmtree(run.model)
    run.readme.unlink()
    facts = run.read_environment()
    del facts["finished"]
    run.environment.write_text(json.dumps(facts))
    result = train(recipe, resume=True)
    assert result.started_at == result.steps == 4
    assert (run.model / "model.safetensors").is_file()
    assert run.readme.is_file()


def test_another_recipe_cannot_resume_a_run(finished, recipe_file):
    other = load_recipe(recipe_file, ["trainer.learning_rate=2e-2", "rewards.1.weight=2"])
    with pytest.raises(ConfigError) as error:
        train(other, resume=True)
    assert "trainer.learning_rate: 0.01 → 0.02" in str(error.value)
    assert "rewards.1.weight: 0.5 → 2.0" in str(error.value)


def test_other_data_cannot_resume_a_run(finished, recipe, rows):
    rows.write_text(rows.read_text() * 2)
    with pytest.raises(ConfigError, match="rows = 10, now it is 20"):
        train(recipe, resume=True)


def test_nothing_to_resume_is_said(recipe):
    with pytest.raises(ConfigError, match=r"no run .*leave out --resume"):
        train(recipe, resume=True)


def test_evaluation_rows_are_evaluated_on(recipe_file, rows):
    recipe = load_recipe(
        recipe_file,
        [
            f"eval_data={{source: {rows}, limit: 2}}",
            "trainer.eval_steps=2",
            "trainer.max_steps=2",
            "trainer.per_device_eval_batch_size=4",
        ],
    )
    metrics = train(recipe).run.read_metrics()
    assert [row["step"] for row in metrics if "eval_rewards/vowels/mean" in row] == [2]


def test_references_reach_the_rewards_as_they_are(recipe_file, tmp_path, monkeypatch):
    """Arrow would give every object the keys of all rows."""
    own = tmp_path / "own" / "own_task.py"
    own.write_text(
        """
from gdpo import Reward
from gdpo.tasks import Sample, Task

seen = []

def judge(completion, reference):
    seen.append(reference)
    return len(completion) % 7 / 6

TASK = Task(
    name="own",
    columns=(("question",),),
    read_row=lambda row: Sample([{"role": "user", "content": row["question"]}],
                                {"arguments": {row["question"]: 1}}),
    rewards=(Reward("judge", judge, low=0, high=1),),
    gold_completion=lambda reference: "123456",
    bad_completion="",
)
"""
    )
    recipe = load_recipe(recipe_file, ["task=own_task:TASK", "rewards=[]", "trainer.max_steps=1"])
    train(recipe)
    import own_task

    assert all(len(reference["arguments"]) == 1 for reference in own_task.seen)


def test_a_run_that_had_no_signal_says_that_nothing_was_learned(recipe_file):
    recipe = load_recipe(recipe_file, ["rewards=[{name: format}]", "trainer.max_steps=1"])
    assert "nothing was learned" in " ".join(train(recipe).notes)


def test_a_run_with_a_signal_does_not(finished):
    assert finished.notes == ()
