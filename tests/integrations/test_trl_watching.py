"""Tests `watch` on TRL's own trainers."""

import functools
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from tests.environments import ROOT
from tests.integrations.two_ranks import launched
from tests.integrations.variants import bytes_written, digits, logged, rollouts_of, sometimes_vowels
from tests.integrations.variants import make as make_variant
from tests.integrations.watched import TRAINERS, differences, make, train, watch_and_train
from tests.refusals import config_error
from transformers import TrainerCallback

from gdpo.diagnostics import Watch, diagnose
from gdpo.integrations.trl import watch
from gdpo.rollouts import rollout_file
from gdpo.rollouts.record import reward_arrays

NAMES = ("bytes_written", "digits", "sometimes_vowels")
EVALUATED = {"eval_strategy": "steps", "eval_steps": 3, "num_generations_eval": 2}


def only(caplog, words):
    (message,) = [message for message in caplog.messages if words in message]
    return message


def constant(completions, **columns):
    return [0.5] * len(completions)


@pytest.fixture
def grpo(place):
    """Makes TRL's GRPO trainers."""
    return functools.partial(make, "grpo", *place)


@pytest.fixture(scope="module", params=TRAINERS)
def runs(request, tiny_policy, tmp_path_factory):
    """Return a training of each of TRL's trainers without `watch`, and the same with it."""
    folder, how = tmp_path_factory.mktemp(request.param), {"estimators": ["gdpo"], **EVALUATED}
    return [
        train(request.param, tiny_policy, folder / str(watched), watched=watched, **how)
        for watched in (False, True)
    ]


@pytest.mark.slow
def test_a_watched_training_is_the_same_bit_for_bit(runs):
    assert any(gradient.any() for gradient in runs[0].gradients)
    assert list(differences(*runs)) == []
    folder = Path(runs[1].trainer.args.output_dir)
    assert len(list((folder / "rollouts").glob("*.parquet"))) == 6


@pytest.mark.slow
def test_two_processes_train_the_same_and_log_the_shares_of_both(place, tmp_path):
    folder = tmp_path / "True" / "rollouts"
    folder.mkdir(parents=True)
    rollout_file(folder, 9).touch()  # of an earlier run
    results = launched("tests.integrations.watched:on_two_ranks", *place)
    assert [result["differences"] for result in results] == [[], []]
    assert (folder / "earlier-1" / "step_000009.parquet").is_file()
    rollouts = rollouts_of(folder.parent)
    assert len(rollouts) == 16  # 8 of each process
    arrays = reward_arrays(rollouts)
    diagnosis = diagnose(arrays.rewards, arrays.weights, arrays.names, advantages=arrays.advantages)
    shares = [reward.influence_share for reward in diagnosis.rewards]
    assert results[0]["shares"][0] == pytest.approx(shares, abs=1e-6)


@pytest.mark.slow
def test_a_process_whose_watch_is_off_leaves_no_old_rollouts_in_the_record(place):
    results = launched("tests.integrations.watched:one_rank_off", *place)
    assert results == [["step_000001"]] * 2


@pytest.mark.slow
def test_two_metrics_for_each_reward_and_the_warnings_are_logged(runs):
    alone, watched = ({key for row in run.numbers[:1] for key in row} for run in runs)
    numbers = ("zero_variance_groups", "influence_share")
    wanted = {f"rewards/{name}/{number}" for name in NAMES for number in numbers}
    of_others = {key for key in watched if key.startswith("estimators/")}
    assert watched - alone - of_others == {*wanted, "diagnostics/warnings"}
    assert len(watched - of_others) <= 36 + len(("step",))


def test_evaluations_are_measured_too(grpo):
    trainer = grpo(num_generations_eval=2)
    watch(trainer, diagnostics="full")
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_rewards/digits/zero_variance_groups"] <= 1
    assert "eval_diagnostics/digits/missing" in metrics
    assert "eval_diagnostics/digits/mean" not in metrics  # TRL's eval_rewards/digits/mean


@pytest.mark.slow
def test_what_would_change_under_another_estimator_is_logged_on_demand(tiny_policy, tmp_path):
    for name in ("grpo", "gdpo"):
        trainer = make(name, tiny_policy, tmp_path / name, per_device_train_batch_size=12)
        watch_and_train(trainer, estimators=["gdpo"])
        flips = logged(trainer, "estimators/gdpo/sign_flips")
        assert len(flips) == 6
        assert (max(flips) > 0.1) == (name == "grpo")
        shares = [logged(trainer, f"estimators/gdpo/{each}/influence_share")[-1] for each in NAMES]
        assert sum(map(abs, shares)) == pytest.approx(1)
        own = [logged(trainer, f"rewards/{each}/influence_share")[-1] for each in NAMES]
        assert (own == pytest.approx(shares, abs=0.02)) == (name == "gdpo")


MANY_GROUPS = {"per_device_train_batch_size": 132, "gradient_accumulation_steps": 1}
"""Batches of 33 groups of 4."""


class Steps(TrainerCallback):
    """Stores how often a constant reward had been reported at the end of each step."""

    def __init__(self, caplog):
        self.caplog = caplog
        self.messages = []

    def on_step_end(self, *args, **kwargs):
        self.messages.append(sum("is constant" in each for each in self.caplog.messages))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_the_watch_of_one_file_logs_the_same_numbers_and_a_constant_reward_is_told_once(
    name, place, caplog
):
    def unnamed(completions, **columns):
        return constant(completions)

    unnamed.__name__ = "red\x1b[31m\nline"
    rewards = [sometimes_vowels, digits, unnamed]
    trainer = make(name, *place, rewards=rewards, max_steps=10, **MANY_GROUPS)
    watch(trainer)
    one_file = runpy.run_path(str(ROOT / "examples" / "watch_one_file.py"))
    one_file["watch"](trainer, prefix="one_file")
    trainer.add_callback(steps := Steps(caplog))
    trainer.train()
    rows = trainer.state.log_history[:10]  # after 8 of them, the window is full
    numbers = ("influence_share", "zero_variance_groups")
    for key in [f"{reward}/{number}" for reward in trainer.reward_func_names for number in numbers]:
        both = ([row.get(f"{prefix}/{key}") for row in rows] for prefix in ("rewards", "one_file"))
        assert next(both) == pytest.approx(next(both), abs=1e-6)
    assert any(0 < row["one_file/digits/zero_variance_groups"] < 1 for row in rows)
    message = only(caplog, "is constant")
    assert message.startswith("gdpo, step 4: ")
    assert "`red⟨U+001B⟩[31m line`" in message
    assert "Check the function first" in message
    assert steps.messages == [0] * 3 + [1] * 7  # 66 groups show it, and the 66 after them
    assert caplog.messages[-1].startswith(
        "gdpo, steps 1 to 10: check the function of `red⟨U+001B⟩[31m line` first: it has not varied"
    )
    assert caplog.records[-1].levelname == "WARNING"


@pytest.mark.parametrize("ours", [True, False])
def test_the_verdict_is_logged_once_at_the_end_of_a_training(ours, place, grpo, caplog):
    if ours:
        trainer = make_variant("ours", *place, max_steps=2)
    else:
        trainer = grpo(max_steps=2)
        watch(trainer)
    trainer.train()
    (said,) = (record for record in caplog.records if "steps 1 to 2: " in record.message)
    groups = 2 * trainer.args.generation_batch_size // 4
    assert said.levelname == "WARNING"
    assert said.message == (
        f"gdpo, steps 1 to 2: unknown: {groups} groups are too few to tell. Record at least 64 "
        "groups"
    )
    state, handler = trainer.state, trainer.callback_handler
    state.is_world_process_zero = False
    handler.on_train_end(trainer.args, state, trainer.control)
    only(caplog, "steps 1 to 2: ")


def test_a_training_without_a_step_has_no_verdict(place, caplog):
    trainer = make_variant("ours", *place)
    trainer.state.is_world_process_zero = True
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
    assert "gdpo, steps" not in caplog.text


@pytest.mark.slow
def test_the_findings_go_on_where_the_checkpoint_ended(grpo, caplog):
    options = {"rewards": [bytes_written, constant], **MANY_GROUPS}
    for steps, resumed in ((1, None), (3, True), (4, True), (5, True)):
        saved = {"save_strategy": "steps", "save_steps": steps, "max_steps": steps}
        trainer = grpo(**options, **saved)
        watch(trainer)
        trainer.train(resume_from_checkpoint=resumed)
        assert sum("is constant" in m for m in caplog.messages) == (steps >= 4)


def breaks(rewards, weights):
    if len(rewards) < 6:  # the made-up batches before the training have more prompts
        raise RuntimeError("broken on purpose")
    return rewards[..., 0]


def leaves(rewards, weights):
    return breaks(rewards, weights) if len(rewards) >= 6 else sys.exit(0)


@pytest.mark.parametrize(("estimator", "why"), [(breaks, "RuntimeError: broken"), (leaves, "")])
def test_an_error_in_the_watch_does_not_end_the_training(estimator, why, grpo, caplog):
    own = f"tests.integrations.test_trl_watching:{estimator.__name__}"
    trainer = watch_and_train(grpo(max_steps=2), estimators=[own])
    assert trainer.state.global_step == 2
    message = only(caplog, "watch is switched off")
    assert why in message
    assert not logged(trainer, "diagnostics/warnings")


def once_infinite(completions, **columns):
    once_infinite.calls += 1
    return [float("inf") if once_infinite.calls == 2 else float(len(c)) for c in completions]


def test_a_batch_with_an_infinite_reward_is_left_out_once(grpo, tmp_path, caplog):
    once_infinite.calls = 0
    trainer = grpo(max_steps=3, rewards=[once_infinite])
    watch_and_train(trainer, rollouts_dir=tmp_path / "rollouts")
    message = only(caplog, "leaves a batch out")
    assert "once_infinite" in message
    assert "infinite" in message
    assert "switched off" not in caplog.text
    counted = [row.get("diagnostics/warnings") for row in trainer.state.log_history[:3]]
    assert [value is None for value in counted] == [False, True, False]
    assert len(list((tmp_path / "rollouts").glob("step_*.parquet"))) == 3


def without_advantages(trainer, generate):
    kept = []

    def without(inputs):
        output = generate(inputs)
        kept.append(output.pop("advantages"))
        return output

    def restored(watched):
        return lambda inputs: {**watched(inputs), "advantages": kept[-1]}

    return without, restored


def scored_twice(trainer, generate):
    return lambda inputs: (generate(inputs), generate(inputs))[1], lambda watched: watched


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without_advantages, "KeyError: 'advantages'"),
        (scored_twice, "called _calculate_rewards 2 times for one batch"),
    ],
)
def test_a_trainer_with_another_batch_is_not_watched(change, why, grpo, caplog):
    trainer = grpo(max_steps=1)
    before, after = change(trainer, trainer._generate_and_score_completions)
    trainer._generate_and_score_completions = before
    watch(trainer)
    trainer._generate_and_score_completions = after(trainer._generate_and_score_completions)
    trainer.train()
    message = only(caplog, "watch is switched off")
    assert why in message


def test_rewards_of_one_name_are_numbered(grpo, tmp_path, caplog):
    def digits_2(completions, **columns):
        return bytes_written(completions)

    rewards = [digits, digits_2, functools.partial(digits), digits]
    own = {"rewards": rewards, "reward_weights": [1.0] * 4}
    trainer = grpo(max_steps=1, **own)
    watch(trainer, rollouts_dir=tmp_path / "rollouts")
    message = only(caplog, "share a name")
    names = ["digits", "digits_2", "digits_3", "digits_4"]
    assert ", ".join(names) in message
    trainer.train()
    shares = [f"rewards/{name}/influence_share" for name in names]
    assert set(shares) <= set(trainer.state.log_history[0])
    rollout, *_ = rollouts_of(tmp_path)
    assert list(rollout.rewards) == names


def test_a_state_that_cannot_be_restored_does_not_end_the_training(grpo, tmp_path, caplog):
    saved = {"save_strategy": "steps", "save_steps": 1}
    grpo(max_steps=1, **saved).train()
    file = tmp_path / "checkpoint-1" / "trainer_state.json"
    state = json.loads(file.read_text())
    state["stateful_callbacks"]["gdpo.Watch"] = Watch().state() | {"history": "lost"}
    file.write_text(json.dumps(state))
    trainer = grpo(max_steps=2)
    watch(trainer)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2
    only(caplog, "watch is switched off")


def test_a_gdpo_trainer_needs_no_watch_and_trains(place, caplog):
    trainer = make_variant("ours", *place, max_steps=1)
    watch(trainer)
    message = only(caplog, "changes nothing")
    assert "rollouts_dir and diagnostics in its GDPOConfig" in message
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_trainer_is_watched_once(place, caplog):
    trainer = make("rloo", *place, max_steps=1)
    watch(trainer)
    callbacks = len(trainer.callback_handler.callbacks)
    watch(trainer)
    assert len(trainer.callback_handler.callbacks) == callbacks
    assert "already watched" in caplog.text
    trainer.train()
    assert trainer.state.log_history[0]["rewards/digits/influence_share"] is not None


def test_a_watch_after_the_training_says_so(grpo, caplog):
    trainer = grpo(max_steps=1)
    trainer.train()
    watch(trainer)
    assert caplog.messages[-1].startswith("watch missed the steps before it: call it before")


def random_numbers(rewards, weights):
    return torch.rand(*rewards.shape[:2]).to(rewards)


def test_an_estimator_that_draws_numbers_does_not_change_the_training(grpo):
    losses = []
    for estimators in ([], ["tests.integrations.test_trl_watching:random_numbers"]):
        trainer = watch_and_train(grpo(max_steps=2), estimators=estimators)
        losses.append([row["loss"] for row in trainer.state.log_history[:2]])
    assert losses[0] == losses[1]


def no_names(trainer):
    del trainer.reward_func_names


def no_callbacks(trainer):
    del trainer.callback_handler


class _Fixed:
    _calculate_rewards = property(lambda self: lambda *args: None)
    _generate_and_score_completions = print
    reward_func_names = ("a", "b")
    args = callback_handler = None


class AsyncGRPOTrainer:
    """Calculates rewards elsewhere."""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_names, ""),
        (no_callbacks, ""),
        (_Fixed, ""),
        (AsyncGRPOTrainer, "AsyncGRPOTrainer does not calculate rewards"),
    ],
)
def test_a_trainer_that_cannot_be_watched_is_left_as_it_was(change, why, grpo, caplog):
    if isinstance(change, type):
        trainer = change()
    else:
        trainer = grpo()
        change(trainer)
    before = dict(vars(trainer))
    watch(trainer)
    assert vars(trainer) == before
    assert any("changes nothing" in each and why in each for each in caplog.messages)


def test_a_method_with_more_arguments_is_watched(grpo):
    trainer = grpo(max_steps=1)
    own = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs, tag: own(inputs)
    watch(trainer)
    watched = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: watched(inputs, "tag")
    trainer.train()
    assert trainer.state.log_history[0]["rewards/digits/influence_share"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"diagnostics": "all"}, "diagnostics='all'"),
        ({"estimators": ["gpdo"]}, "gdpo"),
        ({"estimators": ["constrained_grpo"]}, "targets"),
    ],
)
def test_wrong_arguments_are_errors_before_the_training(options, message, grpo):
    trainer = grpo()
    with config_error(message):
        watch(trainer, **options)
    watch(trainer)  # and nothing was left behind
