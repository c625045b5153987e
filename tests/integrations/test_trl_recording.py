"""The rollout record that a trainer of TRL's own writes."""

import numpy as np
import pytest
import torch
from tests.integrations.arms import SAMPLES, WEIGHTS, make
from tests.integrations.two_ranks import launched

from gdpo.errors import ConfigError
from gdpo.integrations.trl import record_rollouts
from gdpo.rollouts import read_rollouts

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def trained(folder, policy, arm="theirs", **changed):
    trainer = make(arm, policy, folder / "run", **changed)
    record_rollouts(trainer, folder / "rollouts")
    trainer.train()
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
        assert {rollout.step for rollout in rollouts} == {step}
        assert [r.group_id for r in rollouts] == [i // SAMPLES for i in range(12)]
        np.testing.assert_array_equal(rewards_of(rollouts), batch["rewards"])
        assert [r.advantage for r in rollouts] == pytest.approx(batch["advantages"], abs=1e-6)
        assert list(rollouts[0].weights.values()) == WEIGHTS
        assert {r.finish_reason for r in rollouts} <= {"stop", "length"}
        assert all(r.prompt and 0 < r.num_tokens <= 12 for r in rollouts)


def test_training_is_what_it_is_without_it(tiny_policy, tmp_path):
    alone = make("theirs", tiny_policy, tmp_path / "alone")
    alone.train()
    for recorded, batch in zip(trained(tmp_path, tiny_policy), alone.record, strict=True):
        np.testing.assert_array_equal(recorded["rewards"], batch["rewards"])
        assert recorded["advantages"] == batch["advantages"]


def test_evaluations_are_kept_apart(tiny_policy, tmp_path):
    options = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    trainer = make("theirs", tiny_policy, tmp_path / "run", **options)
    record_rollouts(trainer, tmp_path / "rollouts")
    trainer.evaluate()
    (file,) = (tmp_path / "rollouts" / "eval").glob("*.parquet")
    assert {rollout.sample_id for rollout in read_rollouts(file)} == {0, 1}
    assert not list((tmp_path / "rollouts").glob("*.parquet"))


def test_an_evaluation_batch_may_be_larger_than_a_generation(tiny_policy, tmp_path):
    options = {"num_generations_eval": 2, "per_device_eval_batch_size": 24}
    trainer = make("theirs", tiny_policy, tmp_path / "run", **options)
    record_rollouts(trainer, tmp_path / "rollouts")
    trainer.evaluate()
    assert (tmp_path / "rollouts" / "eval").is_dir()


def test_the_advantages_are_those_that_a_subclass_makes(tiny_policy, tmp_path):
    trainer = make("theirs", tiny_policy, tmp_path / "run")
    generate = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: {
        **(output := generate(inputs)),
        "advantages": torch.full_like(output["advantages"], 7.0),
    }
    record_rollouts(trainer, tmp_path / "rollouts")
    trainer.train()
    file = next((tmp_path / "rollouts").glob("*.parquet"))
    assert {rollout.advantage for rollout in read_rollouts(file)} == {7.0}


def test_the_rollouts_of_another_run_are_not_mixed_in(tiny_policy, tmp_path):
    trained(tmp_path, tiny_policy, max_steps=1)
    with pytest.raises(ConfigError, match="holds the rollouts of another run"):
        trained(tmp_path, tiny_policy, max_steps=1)


def recorded_of_a_rank(policy, folder):
    return trained(folder, policy, per_device_train_batch_size=6)


def test_of_two_processes_one_writes_the_rollouts_of_both(tiny_policy, tmp_path):
    function = "tests.integrations.test_trl_recording:recorded_of_a_rank"
    first, second = launched(function, tiny_policy, tmp_path)
    for file, *halves in zip(
        sorted((tmp_path / "rollouts").glob("*.parquet")), first, second, strict=True
    ):
        wanted = halves[0]["advantages"] + halves[1]["advantages"]
        assert [r.advantage for r in read_rollouts(file)] == pytest.approx(wanted, abs=1e-6)


def test_ours_records_by_itself(tiny_policy, tmp_path):
    with pytest.raises(ConfigError, match="rollouts_dir in its GDPOConfig"):
        record_rollouts(make("ours", tiny_policy, tmp_path), tmp_path / "rollouts")
