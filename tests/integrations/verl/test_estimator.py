"""Tests the estimator with stand-ins for verl's trainers and its queue."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.integrations.verl.configs import Config

from gdpo import ConfigError, gdpo
from gdpo.integrations.verl._estimator import (
    Carried,
    carrying,
    compute_advantages,
    latest,
    metrics_of_latest,
)
from gdpo.integrations.verl._trainers import (
    with_check,
    with_columns,
    with_metrics,
    with_queue,
    with_rewards_dumped,
)

ALGORITHM = {"adv_estimator": "gdpo/gdpo", "gdpo_reward_keys": ["correct", "format"]}
CORRECT, FORMAT = [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]
COLUMNS = {"correct": CORRECT, "format": FORMAT}
UIDS = np.array(["a", "a", "b", "b"], dtype=object)
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1]])
EXPECTED = gdpo(np.stack([CORRECT, FORMAT], -1).reshape(2, 2, 2), [1.0, 1.0]).reshape(-1)


def called(**more):
    zeros = torch.zeros(MASK.shape)
    return compute_advantages(
        token_level_rewards=zeros, response_mask=MASK, index=UIDS, **{"config": ALGORITHM, **more}
    )


@pytest.fixture(autouse=True)
def _nothing_left_of_other_tests():
    metrics_of_latest()


def test_every_trained_token_gets_its_rollouts_advantage_and_no_other_one_does():
    advantages, returns = called(non_tensor_batch=COLUMNS)
    torch.testing.assert_close(advantages, torch.tensor(EXPECTED)[:, None].float() * MASK)
    assert returns is advantages
    assert advantages.dtype == torch.float32


def test_rewards_that_are_carried_come_before_those_of_the_batch():
    with carrying(Carried(COLUMNS)), carrying(Carried({"other": CORRECT})):
        torch.testing.assert_close(called()[0], called(non_tensor_batch=COLUMNS)[0])


def test_rewards_that_did_not_arrive_are_an_error():
    with pytest.raises(ConfigError, match="did not reach the estimator"):
        called()


def test_a_column_gives_each_prompt_its_own_weights():
    cells = [{"correct": 2.0}] * 2 + [None] * 2
    config = ALGORITHM | {"gdpo_reward_weights": [1.0, 0.5], "gdpo_weights_column": "w"}
    advantages, _ = called(config=config, non_tensor_batch=COLUMNS | {"w": cells})
    rewards = np.stack([CORRECT, FORMAT], -1).reshape(2, 2, 2)
    wanted = gdpo(rewards, np.array([[2.0, np.nan], [1.0, 0.5]])).reshape(-1)
    torch.testing.assert_close(advantages, torch.tensor(wanted)[:, None].float() * MASK)
    assert metrics_of_latest()["gdpo/format/mean"] == 0  # only where it applies


def test_a_column_of_weights_that_is_not_there_is_told():
    config = ALGORITHM | {"gdpo_weights_column": "w"}
    with pytest.raises(ConfigError, match="no such column"):
        called(config=config, non_tensor_batch=COLUMNS)


def test_numbers_for_the_log_come_once_per_batch():
    called(non_tensor_batch=COLUMNS)
    metrics = metrics_of_latest()
    assert metrics["gdpo/correct/mean"] == 0.5
    assert metrics["gdpo/format/zero_variance_groups"] == 1
    assert metrics_of_latest() == {}


def test_multipliers_of_constraints_are_logged_and_learn():
    options = {"targets": {"format": 0.9}, "step_size": 1.0}
    config = {**ALGORITHM, "adv_estimator": "gdpo/constrained_grpo", "gdpo_options": options}
    for multiplier in (0.0, 0.4):  # that of the batch
        called(config=config, non_tensor_batch=COLUMNS)
        assert metrics_of_latest()["gdpo/format/multiplier"] == pytest.approx(multiplier)


def test_the_weights_of_a_batch_are_logged():
    options = {"schedules": {"format": {"to": 0.0, "steps": 2}}}
    config = {**ALGORITHM, "adv_estimator": "gdpo/gdpo", "gdpo_options": options}
    found = []
    for _ in range(3):
        called(config=config, non_tensor_batch=COLUMNS)
        found.append((latest().weights[1], metrics_of_latest()["gdpo/format/weight"]))
    start = found[0][0]
    assert found == [(start, start), (start / 2, start / 2), (0.0, 0.0)]


def test_a_finding_that_lasts_is_logged_once(caplog):
    groups = np.repeat([f"prompt-{i}" for i in range(64)], 2)
    missed = {"correct": [0.0, 1.0] * 64, "format": [0.0] * 128}
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            compute_advantages(torch.zeros(128, 1), torch.ones(128, 1), ALGORITHM, groups, missed)
            metrics_of_latest()
    assert any("format" in message for message in caplog.messages)
    assert len(caplog.messages) == len(set(caplog.messages))


def test_numbers_join_those_of_the_trainer():
    called(non_tensor_batch=COLUMNS)
    metrics = with_metrics(lambda batch, *, use_critic: {"critic/score/mean": 2.0})
    assert {"critic/score/mean", "gdpo/format/mean"} <= set(metrics("batch", use_critic=False))


def config(reward=None, **algorithm):
    return Config(algorithm=Config(algorithm or ALGORITHM), reward=reward)


def test_a_record_that_nothing_would_write_is_refused_before_the_run(tmp_path):
    asked = config(adv_estimator="grpo", gdpo_rollouts=str(tmp_path))
    with pytest.raises(ConfigError, match="gdpo_rollouts"):
        with_check(lambda config: "verl's answer", lambda: None)(asked)


def test_a_wrong_configuration_is_refused_where_a_trainer_asks_about_its_critic():
    check = with_check(lambda config: "verl's answer", lambda: None)
    assert check(config()) == "verl's answer"
    assert check(config(adv_estimator="grpo")) == "verl's answer"
    with pytest.raises(ConfigError, match="gdpo_reward_keys=None"):
        check(config(adv_estimator="gdpo/gdpo"))
    with pytest.raises(ConfigError, match="gdpo_reward_keys=None"):
        check(config(adv_estimator="grpo", gdpo_watch=True))


def test_keys_that_our_reward_function_does_not_give_are_refused_before_the_run():
    function = {"path": "pkg://gdpo.integrations.verl", "name": "compute_score"}
    function["reward_kwargs"] = {"task": "gsm8k"}
    reward = {"custom_reward_function": function}
    check = with_check(lambda config: "verl's answer", lambda: None)
    known = {**ALGORITHM, "gdpo_reward_keys": ["correctness", "format"]}
    assert check(config(reward, **known)) == "verl's answer"
    with pytest.raises(ConfigError, match=r"'correct', .*compute_score"):
        check(config(reward, **ALGORITHM))
    assert check(config({"custom_reward_function": {"path": "mine.py"}})) == "verl's answer"


def verls_compute_advantage(data, adv_estimator, config):
    """Call the estimator that is registered under the name."""
    if adv_estimator == "grpo":
        return "verl's own"
    return called(config=config)[0]


@pytest.mark.parametrize("name", ["gdpo/gdpo", "gdpo/gdpo.advantages:gdpo"])
def test_rewards_of_the_batch_reach_every_estimator_of_ours(name):
    registered = []
    compute = with_columns(verls_compute_advantage, registered.append)
    data = SimpleNamespace(non_tensor_batch=COLUMNS)
    advantages = compute(data, adv_estimator=name, config={**ALGORITHM, "adv_estimator": name})
    torch.testing.assert_close(advantages, torch.tensor(EXPECTED)[:, None].float() * MASK)
    assert registered == [name]


def test_other_estimators_are_left_to_verl():
    compute = with_columns(verls_compute_advantage, lambda name: None)
    assert compute(None, "grpo", config=None) == "verl's own"


def test_the_plain_name_calls_ours_by_its_own_name_if_it_is_to_be_replaced():
    registered = []
    compute = with_columns(verls_compute_advantage, registered.append)
    data = SimpleNamespace(non_tensor_batch=COLUMNS)
    replaced = {**ALGORITHM, "adv_estimator": "gdpo", "gdpo_replace": True}
    advantages = compute(data, adv_estimator="gdpo", config=replaced)
    torch.testing.assert_close(advantages, torch.tensor(EXPECTED)[:, None].float() * MASK)
    assert registered == ["gdpo/gdpo"]


class Queue:
    """Ignores fields that it does not have, as TransferQueue does."""

    def __init__(self, **fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: self.fields[name] for name in select_fields if name in self.fields}


class Trainer:
    """Stands in for verl's trainer, with the methods that are wrapped."""

    def __init__(self):
        self.config = config()
        self.dumped = None

    def _compute_advantage(self, batch, metrics):
        return called()[0]

    def _log_rollout_data(self, batch, timing_raw, rollout_data_dir):
        keys = sorted(batch.keys)
        self._dump_generations(inputs=keys, reward_extra_infos_dict={"uid": keys})

    def _dump_generations(self, inputs, reward_extra_infos_dict):
        self.dumped = reward_extra_infos_dict


def batch_of(*tags):
    keys = ["b_1_0", "b_0_0", "a_1_0", "a_0_0"]
    return SimpleNamespace(keys=keys, tags=list(tags) or [{}] * 4, partition_id="train")


EXTRA = [
    {"reward_extra_info": {"correct": c, "format": f}} for c, f in zip(CORRECT, FORMAT, strict=True)
]


@pytest.mark.parametrize(
    "queue",
    [
        Queue(extra_fields=EXTRA),
        Queue(extra_fields=[SimpleNamespace(data=row) for row in EXTRA]),
        Queue(extra_fields=[{}] * 4, **COLUMNS),
    ],
    ids=["plain", "wrapped", "fields of a reward model"],
)
def test_rewards_are_fetched_from_the_queue(queue):
    computed = with_queue(Trainer._compute_advantage, queue)(Trainer(), batch_of(), {})
    torch.testing.assert_close(computed, torch.tensor(EXPECTED)[:, None].float() * MASK)


def test_rows_that_fill_the_batch_up_get_0():
    tags = [{}, {}, {"is_padding": True}, {"is_padding": True}]
    computed = with_queue(Trainer._compute_advantage, Queue(extra_fields=EXTRA))
    advantages = computed(Trainer(), batch_of(*tags), {})
    assert advantages[:2].any()
    assert not advantages[2:].any()


def test_a_reward_that_is_not_in_the_queue_is_an_error_that_names_it():
    computed = with_queue(Trainer._compute_advantage, Queue(extra_fields=[{}] * 4))
    with pytest.raises(ConfigError, match=r"'correct', .*rollout"):
        computed(Trainer(), batch_of(), {})


def test_the_rollout_dump_holds_each_reward_in_the_order_of_its_rows():
    trainer = Trainer()
    with_rewards_dumped(Trainer._log_rollout_data, Queue(extra_fields=EXTRA))(
        trainer, batch_of(), {}, "folder"
    )
    assert trainer.dumped == {
        "uid": ["a_0_0", "a_1_0", "b_0_0", "b_1_0"],
        "correct": CORRECT[::-1],
        "format": FORMAT[::-1],
    }
    assert "_dump_generations" not in vars(trainer)
