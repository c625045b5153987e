"""Tests the rollout record written by TRL's own trainer."""

import numpy as np
import pytest
import torch
from tests.integrations.variants import SAMPLES, WEIGHTS, make, rollouts_of
from tests.integrations.watched import watch_and_train
from tests.refusals import config_error
from transformers import TrainerCallback

from gdpo.integrations.trl import watch
from gdpo.rollouts import read_rollouts, rollout_file

pytestmark = pytest.mark.slow


def trained(folder, policy, variant="theirs", **changed):
    trainer = make(variant, policy, folder / "run", **changed)
    watch_and_train(trainer, rollouts_dir=folder / "rollouts")
    return trainer.record


def rewards_of(rollouts):
    return [
        [np.nan if value is None else value for value in rollout.rewards.values()]
        for rollout in rollouts
    ]


def test_it_holds_what_trl_trained_on(tiny_policy, tmp_path):
    batches = trained(tmp_path, tiny_policy)
    files = sorted((tmp_path / "rollouts").glob("*.parquet"))
    assert len(files) == len(batches) == 3
    for step, (file, batch) in enumerate(zip(files, batches, strict=True), 1):
        rollouts = read_rollouts(file)
        assert {(rollout.run, rollout.step) for rollout in rollouts} == {("run", step)}
        assert [r.group_id for r in rollouts] == [i // SAMPLES for i in range(12)]
        np.testing.assert_array_equal(rewards_of(rollouts), batch["rewards"])
        assert [r.advantage for r in rollouts] == pytest.approx(batch["advantages"], abs=1e-6)
        assert list(rollouts[0].weights.values()) == WEIGHTS
        assert {r.finish_reason for r in rollouts} <= {"stop", "length"}
        assert all(r.prompt and 0 < r.num_tokens <= 12 for r in rollouts)


def test_evaluations_are_kept_apart(tiny_policy, tmp_path):
    options = {"num_generations_eval": 2, "per_device_eval_batch_size": 24}
    trainer = make("theirs", tiny_policy, tmp_path / "run", **options)
    watch(trainer, rollouts_dir=tmp_path / "rollouts")
    trainer.evaluate()
    (file,) = (tmp_path / "rollouts" / "eval").glob("*.parquet")
    assert {rollout.sample_id for rollout in read_rollouts(file)} == {0, 1}
    assert not list((tmp_path / "rollouts").glob("*.parquet"))


def test_the_advantages_are_those_that_a_subclass_makes(tiny_policy, tmp_path):
    trainer = make("theirs", tiny_policy, tmp_path / "run")
    generate = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: {
        **(output := generate(inputs)),
        "advantages": torch.full_like(output["advantages"], 7.0),
    }
    watch_and_train(trainer, rollouts_dir=tmp_path / "rollouts")
    file = next((tmp_path / "rollouts").glob("*.parquet"))
    assert {rollout.advantage for rollout in read_rollouts(file)} == {7.0}


def recording(variant, policy, folder, **changed):
    """Return TRL's trainer or ours, recording to `rollouts`."""
    into = {"rollouts_dir": str(folder / "rollouts")} if variant == "ours" else {}
    trainer = make(variant, policy, folder / "run", **into, **changed)
    if variant == "theirs":
        watch(trainer, rollouts_dir=folder / "rollouts")
    return trainer


def files(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet"))


STEPS = ["step_000001.parquet", "step_000002.parquet"]
BEFORE = "eval/step_000000.parquet"
BOTH = pytest.mark.parametrize("variant", ["ours", "theirs"])


@BOTH
def test_what_another_run_left_is_set_aside_when_training_begins(place, tmp_path, variant):
    recording(variant, *place, max_steps=2, run_name="long", eval_on_start=True).train()
    recording(variant, *place, max_steps=1, run_name="short", eval_on_start=True).train()
    folder = tmp_path / "rollouts"
    for where, run, steps in ((folder / "earlier-1", "long", STEPS), (folder, "short", STEPS[:1])):
        mine = [name for name in files(where) if not name.startswith("earlier")]
        assert mine == [BEFORE, *steps]
        assert {r.run for name in mine for r in read_rollouts(where / name)} == {run}


@BOTH
@pytest.mark.parametrize("evaluated", [False, True])
def test_a_resumed_run_keeps_its_folder(place, tmp_path, variant, evaluated):
    saved = {"save_strategy": "steps", "save_steps": 1}
    recording(variant, *place, max_steps=1, **saved).train()
    trainer = recording(variant, *place, max_steps=2, eval_on_start=evaluated)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert files(tmp_path / "rollouts") == ["eval/step_000001.parquet"][:evaluated] + STEPS


def test_an_evaluation_before_training_is_the_runs_own(tiny_policy, tmp_path):
    trained(tmp_path, tiny_policy, max_steps=1)
    trainer = recording("theirs", tiny_policy, tmp_path, max_steps=1)
    trainer.evaluate()
    trainer.train()
    assert files(tmp_path / "rollouts") == ["earlier-1/" + STEPS[0], BEFORE, STEPS[0]]


def test_a_second_training_of_one_trainer_is_another_run(place, tmp_path):
    trainer = recording("ours", *place, max_steps=1, eval_on_start=True)
    for _ in range(2):
        trainer.train()
    folder = tmp_path / "rollouts"
    assert files(folder) == [f"earlier-1/{BEFORE}", f"earlier-1/{STEPS[0]}", BEFORE, STEPS[0]]
    assert [len(read_rollouts(folder / name)) for name in files(folder)] == [24, 12] * 2


def test_the_batches_of_the_first_step_are_of_one_run(tiny_policy, tmp_path):
    trained(tmp_path, tiny_policy, gradient_accumulation_steps=2, steps_per_generation=1)
    rollouts = rollouts_of(tmp_path)
    assert [r.group_id for r in rollouts] == [i // SAMPLES for i in range(24)]


class InTheWay(TrainerCallback):
    """Creates a folder at the path of the second step's file."""

    def __init__(self, folder):
        self.folder = folder

    def on_step_end(self, args, state, control, **kwargs):
        rollout_file(self.folder, 2).mkdir(exist_ok=True)


def test_a_step_that_cannot_be_written_does_not_end_the_training(tiny_policy, tmp_path, caplog):
    trainer = make("theirs", tiny_policy, tmp_path / "run", eval_on_start=True)
    watch(trainer, rollouts_dir=tmp_path / "rollouts")
    (tmp_path / "rollouts" / "eval").write_text("")  # so that evaluations cannot be written either
    trainer.add_callback(InTheWay(tmp_path / "rollouts"))
    trainer.train()
    assert trainer.state.global_step == 3
    for step in (1, 3):
        assert len(rollouts_of(tmp_path, step)) == 12
    of_evaluation, of_training, again, _verdict = caplog.messages
    assert "eval/step_000000.parquet" in of_evaluation
    assert "rollouts/step_000002.parquet" in of_training
    assert again.endswith("1, from 2 to 2")


def test_a_folder_that_cannot_be_written_to_is_an_error_before_training(
    tiny_policy, tmp_path, saved
):
    folder = saved("file", "") / "rollouts"
    theirs = make("theirs", tiny_policy, tmp_path / "run")
    with config_error("cannot write"):
        watch(theirs, rollouts_dir=folder)
    with config_error("cannot write"):
        make("ours", tiny_policy, tmp_path / "run", rollouts_dir=str(folder))
