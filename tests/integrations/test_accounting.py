"""The account of a training: it changes no number, adds up, and says where it is not supported."""

import pytest
import torch
from tests.integrations.variants import logged, settings, trained
from tests.integrations.watched import Trained, differences, make, watch_and_train
from tests.refusals import config_error

from gdpo.diagnostics.account import WINDOW
from gdpo.integrations.trl import GDPOConfig, watch
from gdpo.policy.effect import Batch

NAMES = ("bytes_written", "digits", "sometimes_vowels")


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def runs(request, tiny_policy, tmp_path_factory):
    """Return a watched training of one of TRL's trainers, and the same with the account."""
    found = []
    for every in (None, WINDOW):
        folder = tmp_path_factory.mktemp(request.param)
        how = {"max_steps": 3 * WINDOW + 1, "weight_decay": 0.1, "learning_rate": 1e-3}
        how |= {"temperature": 0.5, "adam_beta1": 0.0}
        run = Trained()
        trainer = make(request.param, tiny_policy, folder, callbacks=[run], **how)
        watch_and_train(trainer, effect_every=every)
        found.append(run.finish(trainer))
    return found


def rows_of(trainer):
    return [
        row for row in trainer.state.log_history if any(key.startswith("account/") for key in row)
    ]


@pytest.mark.slow
def test_a_training_with_an_account_is_the_same_bit_for_bit(runs):
    assert any(gradient.any() for gradient in runs[0].gradients)
    assert list(differences(*runs)) == []


@pytest.mark.slow
def test_each_window_is_logged_when_its_last_step_has_met_the_next_batch(runs):
    assert rows_of(runs[0].trainer) == []
    rows = rows_of(runs[1].trainer)
    assert {row["step"] for row in rows} <= {2 * WINDOW + 1, 3 * WINDOW + 1}
    told = [name for row in rows for name in NAMES if f"account/{name}/rest" in row]
    assert len(told) >= 4  # of six; the total of the others does not hold


@pytest.mark.slow
def test_without_an_older_momentum_the_rewards_are_all_that_moved_the_policy(runs):
    first = rows_of(runs[1].trainer)[0]
    for name in NAMES:
        if f"account/{name}/rest" in first:
            parts = [first[f"account/{name}/by/{other}"] for other in NAMES]
            # The rest is TRL's weight decay.
            assert abs(first[f"account/{name}/rest"]) < 0.05 * sum(map(abs, parts))


@pytest.mark.slow
def test_ours_logs_the_account_and_trains_the_same(place, caplog):
    sums, how = [], {"max_steps": 2 * WINDOW + 1, "per_device_train_batch_size": 16}
    for every in (None, WINDOW):
        trainer = trained("ours", *place, effect_every=every, **how)
        sums.append(torch.cat([each.flatten() for each in trainer.model.parameters()]))
    assert torch.equal(*sums)
    (row,) = rows_of(trainer)
    assert row["step"] == 2 * WINDOW + 1
    told = [message for message in caplog.messages if message.startswith("gdpo, steps 11 to 20: ")]
    parts = sum(f"account/{name}/rest" in row for name in NAMES)
    assert sum("(measured " in message for message in told) == parts
    assert sum("so it has no parts" in message for message in told) == len(NAMES) - parts
    assert "the last steps have no account" in caplog.text


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"effect_every": WINDOW - 1},
            f"effect_every must be an integer of at least {WINDOW}, got 9",
        ),
        ({"effect_every": WINDOW, "advantage": "turn_gdpo"}, "one advantage per rollout"),
        ({"effect_every": WINDOW, "optim": "sgd"}, "optim='adamw_torch'"),
        ({"effect_every": WINDOW, "num_generations": 12}, "two groups per generation batch"),
        ({"effect_every": WINDOW, "num_iterations": 2}, "one optimizer step per generation"),
        ({"effect_every": WINDOW, "steps_per_generation": 4}, "one optimizer step per generation"),
    ],
)
def test_what_has_no_account_is_refused_by_the_settings(changed, why, tmp_path):
    with config_error(why):
        GDPOConfig(**settings(tmp_path, **changed))


def infinite_once(completions, **columns):
    infinite_once.calls += 1
    return [
        float("inf") if infinite_once.calls == WINDOW + 5 else float(len(c)) for c in completions
    ]


@pytest.mark.slow
def test_a_window_with_a_batch_that_is_left_out_has_no_account(place, caplog):
    infinite_once.calls = 0
    trainer = make("grpo", *place, rewards=[infinite_once], max_steps=2 * WINDOW + 1)
    watch_and_train(trainer, effect_every=WINDOW)
    assert "leaves a batch out" in caplog.text
    assert rows_of(trainer) == []
    assert "effect_every is switched off" not in caplog.text


def test_several_processes_have_no_account(place, monkeypatch):
    trainer = make("grpo", *place)
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    with config_error("needs one process"):
        watch(trainer, effect_every=WINDOW)


def test_an_error_in_the_account_does_not_end_the_training(place, caplog):
    trainer = make("grpo", *place, max_steps=WINDOW + 1)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    watch_and_train(trainer, effect_every=WINDOW)
    assert trainer.state.global_step == WINDOW + 1
    (message,) = [m for m in caplog.messages if "effect_every is switched off" in m]
    assert "needs torch's AdamW without amsgrad, not SGD" in message
    assert logged(trainer, "diagnostics/warnings")  # the watch goes on


def test_tokens_of_tools_are_not_scored():
    output = {
        "prompt_ids": torch.tensor([[0, 5], [6, 7]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 3], [4, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]]),
    }
    made = Batch.of_trl(output, torch.zeros(1, 2, 3))
    assert made.input_ids.tolist() == [[0, 5, 1, 2, 3], [6, 7, 4, 0, 0]]
    assert made.attention_mask.tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert made.scored.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0]]
