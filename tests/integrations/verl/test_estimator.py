"""Tests the estimator with stand-ins for verl's trainers and its queue."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.integrations.verl.configs import (
    COLUMNS,
    MASK,
    UIDS,
    Config,
    Queue,
    Trainer,
    batch_of,
    scored,
)
from tests.refusals import config_error
from torch.testing import assert_close

from gdpo import gdpo
from gdpo.integrations.verl._carried import Carried
from gdpo.integrations.verl._trainers import (
    with_columns,
    with_metrics,
    with_queue,
    with_rewards_dumped,
)

ALGORITHM = {"adv_estimator": "gdpo/gdpo", "gdpo_reward_keys": ["correct", "format"]}
CORRECT, FORMAT = COLUMNS.values()
REWARDS = np.stack([CORRECT, FORMAT], -1).reshape(2, 2, 2)


def on_tokens(advantages):
    """Return the advantage of each token, for advantages `[prompt, sample]`."""
    return torch.tensor(advantages).reshape(-1, 1).float() * MASK


EXPECTED = on_tokens(gdpo(REWARDS, [1.0, 1.0]))


def called(run, **more):
    zeros = torch.zeros(MASK.shape)
    return run.compute_advantages(
        token_level_rewards=zeros, response_mask=MASK, index=UIDS, **{"config": ALGORITHM, **more}
    )


def test_every_trained_token_gets_its_rollouts_advantage_and_no_other_one_does(run):
    advantages, returns = called(run, non_tensor_batch=COLUMNS)
    assert_close(advantages, EXPECTED)
    assert returns is advantages
    assert advantages.dtype == torch.float32


def test_rewards_that_are_carried_come_before_those_of_the_batch(run):
    with run.carrying(Carried(COLUMNS)), run.carrying(Carried({"other": CORRECT})):
        assert_close(called(run)[0], called(run, non_tensor_batch=COLUMNS)[0])
    assert run.carried is None  # the next batch does not get them


def test_rewards_that_did_not_arrive_are_an_error(run):
    with config_error("did not reach the estimator"):
        called(run)


def test_a_column_gives_each_prompt_its_own_weights(run):
    cells = [{"correct": 2.0}] * 2 + [None] * 2
    config = ALGORITHM | {"gdpo_reward_weights": [1.0, 0.5], "gdpo_weights_column": "w"}
    advantages, _ = called(run, config=config, non_tensor_batch=COLUMNS | {"w": cells})
    wanted = gdpo(REWARDS, np.array([[2.0, np.nan], [1.0, 0.5]]))
    assert_close(advantages, on_tokens(wanted))
    assert run.metrics()["gdpo/format/mean"] == 0  # only where it applies


def test_a_column_of_weights_that_is_not_there_is_told(run):
    config = ALGORITHM | {"gdpo_weights_column": "w"}
    with config_error("no such column"):
        called(run, config=config, non_tensor_batch=COLUMNS)


def test_numbers_for_the_log_come_once_per_batch(run):
    called(run, non_tensor_batch=COLUMNS)
    metrics = run.metrics()
    assert metrics["gdpo/correct/mean"] == 0.5
    assert metrics["gdpo/format/zero_variance_groups"] == 1
    assert run.metrics() == {}


def test_multipliers_of_constraints_are_logged_and_learn(run):
    options = {"targets": {"format": 0.9}, "step_size": 1.0}
    config = {**ALGORITHM, "adv_estimator": "gdpo/constrained_grpo", "gdpo_options": options}
    for multiplier in (0.0, 0.4):  # that of the batch
        called(run, config=config, non_tensor_batch=COLUMNS)
        assert run.metrics()["gdpo/format/multiplier"] == pytest.approx(multiplier)


def test_the_weights_of_a_batch_are_logged(run):
    options = {"schedules": {"format": {"to": 0.0, "steps": 2}}}
    config = {**ALGORITHM, "adv_estimator": "gdpo/gdpo", "gdpo_options": options}
    found = []
    for _ in range(3):
        called(run, config=config, non_tensor_batch=COLUMNS)
        found.append((run.latest.weights[1], run.metrics()["gdpo/format/weight"]))
    start = found[0][0]
    assert found == [(start, start), (start / 2, start / 2), (0.0, 0.0)]


def test_a_finding_that_lasts_is_logged_once(run, caplog):
    groups = np.repeat([f"prompt-{i}" for i in range(64)], 2)
    missed = {"correct": [0.0, 1.0] * 64, "format": [0.0] * 128}
    for _ in range(4):
        ones = torch.ones(128, 1)
        run.compute_advantages(ones, ones, ALGORITHM, groups, missed)
        run.metrics()
    assert "format" in caplog.text
    assert len(caplog.messages) == len(set(caplog.messages))


def test_numbers_join_those_of_the_trainer(run):
    called(run, non_tensor_batch=COLUMNS)
    metrics = with_metrics(run, lambda batch, *, use_critic: {"critic/score/mean": 2.0})
    assert {"critic/score/mean", "gdpo/format/mean"} <= set(metrics("batch", use_critic=False))


def config(reward=None, **algorithm):
    return Config(algorithm=Config(algorithm or ALGORITHM), reward=reward)


def test_a_wrong_configuration_is_refused_where_a_trainer_asks_about_its_critic(check):
    assert check(config()) == "verl's answer"
    assert check(config(adv_estimator="grpo")) == "verl's answer"
    with config_error("gdpo_reward_keys=None"):
        check(config(adv_estimator="gdpo/gdpo"))
    with config_error("gdpo_reward_keys=None"):
        check(config(adv_estimator="grpo", gdpo_watch=True))
    with config_error("gdpo_rollouts"):
        check(config(adv_estimator="grpo", gdpo_rollouts="out"))


def test_keys_that_our_reward_function_does_not_give_are_refused_before_the_run(check):
    function = {"path": "pkg://gdpo.integrations.verl", "name": "compute_score"}
    function["reward_kwargs"] = {"task": "gsm8k"}
    reward = {"custom_reward_function": function}
    known = {**ALGORITHM, "gdpo_reward_keys": ["correctness", "format"]}
    assert check(config(reward, **known)) == "verl's answer"
    with config_error(r"compute_score.*'correct'"):
        check(config(reward, **ALGORITHM))
    assert check(config({"custom_reward_function": {"path": "mine.py"}})) == "verl's answer"


def verls(run):
    """Return a function that calls the estimator of a name, as verl's `compute_advantage` does."""

    def compute_advantage(data, adv_estimator, config):
        return "verl's own" if adv_estimator == "grpo" else called(run, config=config)[0]

    return compute_advantage


@pytest.mark.parametrize(
    ("name", "called_by"),
    [
        ("gdpo/gdpo", "gdpo/gdpo"),
        ("gdpo/gdpo.advantages:gdpo", "gdpo/gdpo.advantages:gdpo"),
        ("gdpo", "gdpo/gdpo"),  # with gdpo_replace
    ],
)
def test_rewards_of_the_batch_reach_every_estimator_of_ours(run, name, called_by):
    registry = {}
    compute = with_columns(run, verls(run), registry)
    data = SimpleNamespace(non_tensor_batch=COLUMNS)
    config = {**ALGORITHM, "adv_estimator": name, "gdpo_replace": name == "gdpo"}
    advantages = compute(data, adv_estimator=name, config=config)
    assert_close(advantages, EXPECTED)
    assert registry == {called_by: run.compute_advantages}


def test_other_estimators_are_left_to_verl(run):
    compute = with_columns(run, verls(run), {})
    assert compute(None, "grpo", config=None) == "verl's own"


KEYS = ["b_1_0", "b_0_0", "a_1_0", "a_0_0"]
EXTRA = scored(**COLUMNS)


def through_queue(run, *, padding=(), **fields):
    trainer = Trainer(ALGORITHM, MASK, UIDS, run=run)
    computed = with_queue(run, Trainer._compute_advantage, Queue(KEYS, **fields))
    return computed(trainer, batch_of(KEYS, padding), {})


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_fields": EXTRA},
        {"extra_fields": [SimpleNamespace(data=row) for row in EXTRA]},
        {"extra_fields": [{}] * 4, **COLUMNS},
    ],
    ids=["plain", "wrapped", "fields of a reward model"],
)
def test_rewards_are_fetched_from_the_queue(run, fields):
    assert_close(through_queue(run, **fields), EXPECTED)


def test_rows_that_fill_the_batch_up_get_0(run):
    advantages = through_queue(run, extra_fields=EXTRA, padding=KEYS[2:])
    assert advantages[:2].any()
    assert not advantages[2:].any()


def test_a_reward_that_is_not_in_the_queue_is_an_error_that_names_it(run):
    with config_error(r"'correct', .*rollout"):
        through_queue(run, extra_fields=[{}] * 4)


def test_the_rollout_dump_holds_each_reward_in_the_order_of_its_rows(run):
    trainer = Trainer(ALGORITHM, MASK, UIDS, run=run)
    queue = Queue(KEYS, extra_fields=EXTRA)
    with_rewards_dumped(run, Trainer._log_rollout_data, queue)(
        trainer, batch_of(KEYS), {}, "folder"
    )
    reversed_columns = {name: column[::-1] for name, column in COLUMNS.items()}
    assert trainer.dumped == {"uid": sorted(KEYS), **reversed_columns}
    assert "_dump_generations" not in vars(trainer)
