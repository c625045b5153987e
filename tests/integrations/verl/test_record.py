"""Tests the rollout record of verl's default trainer, with stand-ins for trainer and queue."""

from types import SimpleNamespace

import pytest
import torch
from tests.integrations.verl import configs
from tests.integrations.verl.configs import Config, Queue, Trainer, batch_of, scored
from tests.refusals import config_error

from gdpo import gdpo
from gdpo.integrations.verl._trainers import with_queue
from gdpo.integrations.verl.scores import PATH
from gdpo.rollouts import read_rollouts
from gdpo.rollouts.readers import read_rollout_files

KEYS = ["b_1_0", "b_0_0", "a_1_0", "a_1_1", "a_0_0", "pad_0_0"]
UIDS = ["b", "b", "a", "a", "a", "pad"]
CORRECT = [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
FORMAT = [1.0, 0.0, None, None, 1.0, 0.0]
MASK = configs.MASK[[0, 1, 2, 3, 1, 2]]
SETTINGS = {"gdpo_reward_keys": ["correct", "format"], "gdpo_reward_weights": [1.0, 0.5]}


def queue_of(**more):
    return Queue(
        KEYS,
        prompts=[torch.tensor([7, i]) for i in range(6)],
        responses=[torch.arange(3)[: 3 - i % 2] for i in range(6)],
        extra_fields=scored(score=CORRECT, correct=CORRECT, format=FORMAT),
        **more,
    )


def trainer_of(folder):
    asked = {} if folder is None else {"gdpo_rollouts": str(folder)}
    return Trainer(Config(SETTINGS, adv_estimator="gdpo/gdpo", **asked), MASK, UIDS)


def trained(folder, step=1, queue=None, trainer=None):
    trainer = trainer or trainer_of(folder)
    trainer.global_steps = step
    computed = with_queue(trainer.run, Trainer._compute_advantage, queue or queue_of())
    return computed(trainer, batch_of(KEYS, ["pad_0_0"]), {})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the advantages of the rows of a batch, and the rollouts that were recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    return trained(folder), read_rollouts(folder / "step_000001.parquet")


def test_every_rollout_is_recorded_once_with_its_rewards_and_the_advantage_that_it_trains(recorded):
    rows, found = recorded
    rewards = [[[0, 1], [1, 0]], [[1, float("nan")], [0, 1]]]
    expected = gdpo(torch.tensor(rewards), (1.0, 0.5))
    assert [(r.group_id, r.sample_id) for r in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [list(r.rewards.values()) for r in found] == [[0, 1], [1, 0], [1, None], [0, 1]]
    assert {tuple(r.weights.items()) for r in found} == {(("correct", 1.0), ("format", 0.5))}
    torch.testing.assert_close(
        torch.tensor([r.advantage for r in found]), expected.flatten(), check_dtype=False
    )
    last = [(0, 0), (1, 0), (3, 1), (4, 0)]  # of each rollout: a row, and a token that is trained
    trained_with = torch.stack([rows[at] for at in last])
    torch.testing.assert_close(trained_with, expected.flatten(), check_dtype=False)
    assert {(r.run, r.step) for r in found} == {("mine", 1)}
    assert found[0].finish_reason == "length"  # as long as the limit


def test_the_record_declares_the_ranges_of_rewards_that_are_ours(tmp_path):
    trainer = trainer_of(tmp_path / "a")
    trained(None, trainer=trainer)
    (table,) = read_rollout_files(tmp_path / "a")
    assert table.ranges == {}
    function = {"path": PATH, "name": "compute_score", "reward_kwargs": {"task": "tool_calling"}}
    trainer = trainer_of(tmp_path / "b")
    trainer.config["reward"] = Config(custom_reward_function=function)
    trained(None, trainer=trainer)
    (table,) = read_rollout_files(tmp_path / "b")
    assert table.ranges == {"format": (0.0, 1.0)}  # `correct` is none of the task's


def test_of_several_outputs_the_last_has_the_texts_and_all_have_the_tokens(recorded):
    several = recorded[1][2]
    assert several.extra == {"uid": "a_1_1"}
    assert (several.prompt, several.completion) == ("7 3", "0 1")
    assert several.num_tokens == 3
    assert several.finish_reason == "stop"


def test_the_results_of_tools_are_messages_of_their_own(tmp_path):
    masks = [torch.tensor([1, 0, 1])[: 3 - i % 2] for i in range(len(KEYS))]
    trained(tmp_path, queue=queue_of(loss_mask=masks))
    found = read_rollouts(tmp_path / "step_000001.parquet")
    roles = ("assistant", "user", "assistant")
    assert found[0].completion == [
        {"role": role, "content": text} for role, text in zip(roles, "012", strict=True)
    ]
    whole = tmp_path / "whole"
    trained(whole, queue=queue_of(loss_mask=[torch.ones(3)[: 3 - i % 2] for i in range(6)]))
    assert read_rollouts(whole / "step_000001.parquet")[0].completion == "0 1 2"


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_it_was_judged_against_is_kept(tmp_path, wrapped):
    truth = [{"ground_truth": "42", "style": "rule"}] * len(KEYS)
    column = [SimpleNamespace(data=row) for row in truth] if wrapped else truth
    trained(tmp_path, queue=queue_of(reward_model=column))
    assert read_rollouts(tmp_path / "step_000001.parquet")[0].extra["ground_truth"] == "42"


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_batches_of_one_step_have_groups_of_their_own(tmp_path):
    trainer = trainer_of(tmp_path)
    for step in (1, 1, 2):
        trained(tmp_path, step, trainer=trainer)
    (first, second) = read_rollout_files(tmp_path)
    assert (len(first), len(set(first.groups.tolist())), len(second)) == (8, 4, 4)
    assert names(tmp_path) == ["step_000001.parquet", "step_000002.parquet"]


def test_a_resumed_run_keeps_writing(tmp_path):
    trained(tmp_path)
    trained(tmp_path, step=2)  # of another trainer
    assert names(tmp_path) == ["step_000001.parquet", "step_000002.parquet"]


def test_what_another_run_left_is_set_aside_though_it_was_of_this_process(tmp_path):
    trained(tmp_path)
    trained(tmp_path, step=2)
    for number in (1, 2):
        trained(tmp_path)
        assert (tmp_path / f"earlier-{number}" / "step_000001.parquet").is_file()
    assert names(tmp_path) == ["earlier-1", "earlier-2", "step_000001.parquet"]
    assert names(tmp_path / "earlier-1") == ["step_000001.parquet", "step_000002.parquet"]


def test_what_is_set_aside_gets_the_first_number_that_is_free(tmp_path):
    (tmp_path / "earlier-2").mkdir()
    for _ in range(3):
        trained(tmp_path)
    assert names(tmp_path) == ["earlier-1", "earlier-2", "earlier-3", "step_000001.parquet"]
    assert names(tmp_path / "earlier-2") == []


def test_a_step_that_cannot_be_written_does_not_end_the_training(tmp_path, caplog):
    trainer = trainer_of(tmp_path)
    first = trained(tmp_path, trainer=trainer)
    (tmp_path / "step_000002.parquet").mkdir()
    torch.testing.assert_close(trained(tmp_path, step=2, trainer=trainer), first)
    trained(tmp_path, step=3, trainer=trainer)
    assert [r.step for r in read_rollouts(tmp_path / "step_000001.parquet")] == [1] * 4
    assert [r.step for r in read_rollouts(tmp_path / "step_000003.parquet")] == [3] * 4
    lost, again = caplog.messages
    assert "step_000002.parquet" in lost
    assert again.endswith("1, from 2 to 2")


def test_a_folder_that_cannot_be_written_to_is_an_error_at_the_first_batch(saved):
    with config_error("cannot write"):
        trained(saved("file", "") / "rollouts")


def test_nothing_is_recorded_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert trained(None).shape == trained(tmp_path / "asked").shape
    assert [path.name for path in tmp_path.iterdir()] == ["asked"]
