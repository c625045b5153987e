"""Tests how verl's own estimators are watched, with stand-ins for verl's functions and batches."""

from types import SimpleNamespace

import pytest
import torch
from tests.integrations.verl.configs import (
    COLUMNS,
    KEYS,
    MASK,
    UIDS,
    Config,
    Queue,
    Trainer,
    batch_of,
    scored,
)

from gdpo.integrations.verl._carried import Carried
from gdpo.integrations.verl._trainers import (
    of_rows,
    with_columns,
    with_metrics,
    with_queue,
    with_watch,
)
from gdpo.rollouts import read_rollouts

ROWS = torch.tensor([-0.1, 0.1, 0.3, -0.3])
VERLS = Config(adv_estimator="rloo", gdpo_watch=True, gdpo_reward_keys=["correct", "format"])

OF_GDPO = Config(VERLS, adv_estimator="gdpo")

THEIRS = ROWS[:, None] * MASK
"""The advantages of verl's estimator."""


def batch(columns=COLUMNS, **tensors):
    return SimpleNamespace(
        batch={"response_mask": MASK, **tensors}, non_tensor_batch={"uid": UIDS, **columns}
    )


def assert_left(data):
    """The advantages are those of verl's estimator."""
    assert torch.equal(data.batch["advantages"], THEIRS)


def by_verl(data, adv_estimator, config):
    """Stand in for verl's `compute_advantage`."""
    data.batch["advantages"] = THEIRS
    return data


def noting(given, of):
    """Stand in for verl's gdpo, and note something of each batch that it gets."""

    def verls_gdpo(data, adv_estimator, config):
        given.append(of(data))
        return by_verl(data, adv_estimator, config)

    return verls_gdpo


def watched(run, data=None, config=VERLS):
    compute = with_columns(run, by_verl, {})
    return compute(data or batch(), config["adv_estimator"], config=config)


def test_the_rewards_of_a_watched_estimator_are_logged_with_its_own_advantages(run):
    done = watched(run)
    assert_left(done)
    assert set(done.batch) == {"response_mask", "advantages"}
    metrics = with_metrics(run, lambda: {"critic/score/mean": 2.0})()
    assert metrics["critic/score/mean"] == 2
    assert metrics["gdpo/format/zero_variance_groups"] == 1
    assert metrics["gdpo/correct/influence_share"] == 1


def test_an_estimator_that_is_not_watched_logs_nothing(run):
    watched(run, config=Config(VERLS, gdpo_watch=False))
    assert run.metrics() == {}


def test_what_goes_wrong_while_watching_is_said_once_and_the_training_goes_on(run, caplog):
    for _ in range(3):
        done = watched(run, batch({"correct": COLUMNS["correct"]}))
        assert_left(done)
        assert run.metrics() == {}
    (message,) = caplog.messages
    assert "'format', but no rollout in this batch has this reward" in message
    assert "stops watching" in message


def test_a_batch_whose_advantages_are_not_numbers_is_left_out(run, caplog):
    def broken(data, adv_estimator, config):
        data.batch["advantages"] = torch.full(MASK.shape, torch.nan)
        return data

    with_columns(run, broken, {})(batch(), "rloo", config=VERLS)
    assert with_metrics(run, lambda: {"loss": 1.0})() == {"loss": 1.0}
    assert "advantages must be a finite array" in caplog.messages[-1]
    watched(run)
    assert "gdpo/correct/influence_share" in run.metrics()  # the next batch is watched


def test_of_advantages_that_differ_by_token_the_mean_is_used_and_that_is_said(run, caplog):
    tokens = torch.tensor([[1.0, 2.0, 9.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert of_rows(run, tokens, mask, "gae").tolist() == [1.5, 1.0]
    (message,) = caplog.messages
    assert message.startswith("gae gives the tokens of a rollout different advantages")


def test_a_row_without_a_trained_token_has_0(run):
    assert of_rows(run, torch.ones(1, 3), torch.zeros(1, 3), "grpo").tolist() == [0.0]


@pytest.mark.parametrize(("weights", "expected"), [([1, 2], 0), ([1, 1], 1)])
def test_a_scalar_reward_that_is_another_sum_is_said(run, weights, expected, caplog):
    scores = torch.zeros(MASK.shape)
    scores[:, 1] = torch.tensor(COLUMNS["correct"]) + 2 * torch.tensor(COLUMNS["format"])
    data = batch(token_level_scores=scores)
    for _ in range(2):
        watched(run, data, Config(VERLS, gdpo_reward_weights=weights))
    assert sum("is not the sum of the rewards" in each for each in caplog.messages) == expected


def on_v1(run, folder=None, config=VERLS, padding=(), seen=None):
    algorithm = Config(config, **({"gdpo_rollouts": str(folder)} if folder else {}))

    def compute(trainer, meta, metrics):
        data = SimpleNamespace(batch={"response_mask": MASK}, non_tensor_batch={"uid": UIDS})
        inner = with_columns(run, seen or by_verl, {})
        outer = with_watch(
            run, lambda data, adv_estimator, config: inner(data, adv_estimator, config=config)
        )
        return outer(data, algorithm["adv_estimator"], config=algorithm)

    texts = {"prompts": [torch.tensor([7])] * 4, "responses": [torch.tensor([1, 2])] * 4}
    queue = Queue(KEYS, extra_fields=scored(**COLUMNS), **texts)
    trainer = Trainer(algorithm, MASK, UIDS, run=run)
    return with_queue(run, compute, queue)(trainer, batch_of(KEYS, padding), {})


def test_the_default_trainer_records_the_rewards_with_verls_advantages(run, tmp_path):
    done = on_v1(run, tmp_path)
    assert_left(done)
    found = read_rollouts(tmp_path / "step_000001.parquet")
    assert [each.advantage for each in found] == ROWS.double().tolist()
    assert dict(found[0].rewards) == {"correct": 0.0, "format": 1.0}
    assert run.metrics()["gdpo/correct/influence_share"] == 1


def test_a_record_that_cannot_be_written_does_not_end_a_watched_training(run, saved, caplog):
    done = on_v1(run, saved("file", "") / "rollouts")
    assert_left(done)
    assert "cannot write" in caplog.messages[-1]


def test_verls_gdpo_gets_its_rewards_on_the_default_trainer_and_leaves_the_batch_as_it_was(
    run, caplog
):
    given = []
    verls_gdpo = noting(given, lambda data: {**data.batch, **data.non_tensor_batch})
    config = Config(OF_GDPO, gdpo_watch=False)
    for _ in range(2):
        done = on_v1(run, config=config, seen=verls_gdpo, padding=KEYS[1:2])
    assert given[0]["prompts"].shape == (4, 0)
    assert torch.equal(given[0]["attention_mask"], MASK)
    assert given[0]["correct"].tolist() == [0, 0, 1, 0]  # 0 where a row fills the batch up
    assert given[0]["format"].tolist() == [1, 0, 0, 0]
    assert set(done.batch) == {"response_mask", "advantages"}
    assert set(done.non_tensor_batch) == {"uid"}
    (message,) = caplog.messages
    assert "The formula stays verl's" in message


def test_verls_gdpo_gets_the_totals_of_rewards_of_turns(run):
    given = []
    verls_gdpo = noting(given, lambda data: data.non_tensor_batch["correct"].tolist())
    compute = with_columns(run, verls_gdpo, {})
    columns = {"correct": [[0.0], [1.0, 2.0], 4.0, [0.0]], "format": COLUMNS["format"]}
    with run.carrying(Carried(columns)):
        compute(batch({}), "gdpo", config=OF_GDPO)
    assert given == [[0, 3, 4, 0]]


def test_verls_gdpo_keeps_its_rewards_when_the_watch_has_ended(run):
    run.watching.on = False
    given = []
    verls_gdpo = noting(given, lambda data: set(data.batch))
    on_v1(run, config=OF_GDPO, seen=verls_gdpo)
    assert given == [{"response_mask", "prompts", "attention_mask"}]
    assert run.metrics() == {}


def test_a_verl_that_passes_the_rewards_itself_is_left_alone(run, caplog):
    data = batch(prompts=torch.ones(4, 2))
    compute = with_columns(run, by_verl, {})
    with run.carrying(Carried(COLUMNS)):
        done = compute(data, "gdpo", config=OF_GDPO)
    assert torch.equal(done.batch["prompts"], torch.ones(4, 2))
    assert caplog.messages == []
