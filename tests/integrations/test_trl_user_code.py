"""Tests that GDPOTrainer trains on what the user's code returns, and says what is wrong with it."""

import asyncio
import dataclasses
import functools
import unittest.mock

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.integrations import variants
from tests.integrations.turns import Kept, at_random, echo
from tests.integrations.turns import trainer_of as game_trainer
from tests.integrations.variants import digits, rollouts_of
from tests.refusals import config_error, reward_error
from transformers import AutoTokenizer, LlamaForSequenceClassification
from trl import GRPOTrainer

from gdpo.advantages import grpo
from gdpo.errors import DataError
from gdpo.integrations.trl import GDPOConfig, GDPOTrainer
from gdpo.integrations.trl._rewards import exact_where_kept, numbered
from gdpo.rewards import Reward


def tenths(completions, **columns):
    """Return values that float32 rounds."""
    return [sum(map(ord, text)) % 7 / 10 for text in completions]


def trainer_of(policy, folder, *, trainer_class=GDPOTrainer, rewards=(tenths, digits), **changed):
    record = {"rollouts_dir": str(folder / "rollouts")}
    options = {"max_steps": 1, "advantage": "grpo", **record, **changed}
    return variants.trainer_of(
        trainer_class, GDPOConfig, policy, folder, rewards=list(rewards), **options
    )


def trained(policy, folder, **changed):
    trainer = trainer_of(policy, folder, **changed)
    trainer.train()
    return trainer


def best_of_group(rewards):
    """Give 1 to the best of each group in the second reward, and 0 to the others."""
    rewards = rewards.clone()
    groups = rewards[:, 0].view(-1, 4)
    rewards[:, 1] = (groups == groups.amax(1, keepdim=True)).to(rewards).view(-1)
    return rewards


class Subclass(GDPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        return best_of_group(super()._calculate_rewards(*args, **kwargs))


class WithoutSuper(GDPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        first = torch.tensor(tenths(completions), dtype=torch.float64)
        return best_of_group(torch.stack([first, torch.zeros_like(first)], 1))


def replaced_on_the_instance(policy, folder, **changed):
    trainer = trainer_of(policy, folder, **changed)
    before = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *args: best_of_group(before(*args))
    return trainer


WAYS = {
    "subclass": functools.partial(trainer_of, trainer_class=Subclass),
    "without super": functools.partial(trainer_of, trainer_class=WithoutSuper),
    "instance": replaced_on_the_instance,
}


@pytest.mark.parametrize("way", WAYS)
def test_changed_rewards_are_trained_on_recorded_and_logged(way, place, tmp_path):
    trainer = WAYS[way](*place, max_steps=2)
    replaced = vars(trainer).get("_calculate_rewards")
    trainer.train()
    assert vars(trainer).get("_calculate_rewards") is replaced
    for step, row in enumerate(trainer.state.log_history[:2], start=1):
        rollouts = rollouts_of(tmp_path, step)
        first = np.array([tenths([each.completion])[0] for each in rollouts]).reshape(-1, 4)
        second = (first == first.max(1, keepdims=True)).astype(float)
        recorded = np.array([list(each.rewards.values()) for each in rollouts]).reshape(-1, 4, 2)
        np.testing.assert_array_equal(recorded, np.stack([first, second], -1))  # not rounded
        advantages = np.array([each.advantage for each in rollouts]).reshape(-1, 4)
        np.testing.assert_allclose(advantages, grpo(recorded, [1.0, 1.0]), atol=1e-6)
        assert row["rewards/digits/mean"] == pytest.approx(second.mean())
        assert row["reward"] == pytest.approx((first + second).mean(), rel=1e-6)
        shares = [row[f"rewards/{name}/influence_share"] for name in ("tenths", "digits")]
        assert sum(shares) == pytest.approx(1)
        assert shares[1] > 0.3


class Clipped(GDPOTrainer):
    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args).clamp(max=0)


class After(GDPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return {**output, "advantages": 0 * output["advantages"]}


@pytest.mark.parametrize(("cls", "rewards_are_off"), [(Clipped, True), (After, False)])
def test_rewards_or_advantages_that_are_switched_off_train_nothing(cls, rewards_are_off, place):
    row = trained(*place, trainer_class=cls).state.log_history[0]
    assert row["grad_norm"] == 0
    assert (row["reward"] == 0) == rewards_are_off
    assert (row["rewards/tenths/zero_variance_groups"] == 1) == rewards_are_off


def not_linear(rewards):
    rewards = best_of_group(rewards)
    rewards[::4] = -1000
    return rewards


@pytest.mark.parametrize("owner", [GRPOTrainer, GDPOTrainer])
def test_a_decorated_patch_of_a_class_counts(owner, place, tmp_path, monkeypatch):
    own, calls = owner._calculate_rewards, []

    @functools.wraps(own)
    def patched(self, *args):
        calls.append(self)
        return not_linear(own(self, *args))

    monkeypatch.setattr(owner, "_calculate_rewards", patched)
    trainer = trainer_of(*place)
    assert not calls  # no made-up batch
    trainer.train()
    assert len(calls) == 1
    rollouts = rollouts_of(tmp_path)
    assert [each.rewards["tenths"] for each in rollouts[::4]] == [-1000.0] * 3
    second = np.array([each.rewards["digits"] for each in rollouts]).reshape(-1, 4)
    assert 1 in second


@pytest.mark.parametrize("itself", [False, True])
def test_an_override_that_scores_the_batch_in_parts_counts(itself, place, tmp_path):
    """The parts are scored by TRL's method, or by the override itself, which halves them again."""

    class Parts(GDPOTrainer):
        def _calculate_rewards(self, *batch):
            half = len(batch[0]) // 2
            if half < 4:
                return super()._calculate_rewards(*batch)
            score = self._calculate_rewards if itself else super()._calculate_rewards
            parts = [[each[:half] for each in batch], [each[half:] for each in batch]]
            return torch.cat([score(*part) for part in parts])

    trained(*place, trainer_class=Parts)
    for each in rollouts_of(tmp_path):
        assert each.rewards["tenths"] == pytest.approx(tenths([each.completion])[0], rel=1e-6)


@pytest.mark.parametrize("way", ["removes itself", "puts the original back"])
def test_a_replacement_that_ends_itself_runs_once(way, place):
    trainer = trainer_of(*place, max_steps=2)
    before, calls = trainer._calculate_rewards, []

    def once(*args):
        calls.append(args)
        if way == "removes itself":
            del trainer._calculate_rewards
        else:
            trainer._calculate_rewards = before
        return before(*args)

    trainer._calculate_rewards = once
    trainer.train()
    assert len(calls) == 1
    assert vars(trainer).get("_calculate_rewards") is not once


def test_rewards_in_float32_without_super_are_not_taken_for_rounding(place):
    class Large(GDPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            first = torch.arange(len(completions)) % 4 / 10 + 100000
            return torch.stack([first, torch.ones_like(first)], 1)

    trainer = trained(*place, trainer_class=Large)
    assert trainer.state.log_history[0]["rewards/tenths/zero_variance_groups"] == 0
    assert trainer.state.log_history[0]["rewards/tenths/influence_share"] == 1


def test_a_patched_loss_is_not_tried_and_not_packed(place, monkeypatch, caplog):
    own, calls = GRPOTrainer._compute_loss, []

    @functools.wraps(own)
    def patched(self, *args):
        calls.append(args)
        return own(self, *args)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", patched)
    trainer = trainer_of(*place)
    assert not calls
    assert trainer._packer is None
    assert "overrides TRL's loss" in caplog.text


def test_a_decorated_reward_is_called_as_its_decorator_wants(place):
    def only_texts(function):
        @functools.wraps(function)
        def call(*args, completions, **columns):
            return [function(text) for text in completions]

        return call

    @only_texts
    def length(text):
        return float(len(text))

    trainer = trained(*place, rewards=[length])
    assert trainer.state.global_step == 1


def test_a_compute_advantages_of_the_instance_is_used(place, tmp_path):
    trainer = trainer_of(*place)
    trainer.compute_advantages = lambda rewards, token_counts=None: 2 * rewards[..., 0]
    trainer.train()
    rollouts = rollouts_of(tmp_path)
    assert [each.advantage for each in rollouts] == pytest.approx(
        [2 * each.rewards["tenths"] for each in rollouts]
    )


def test_gates_apply_to_rewards_without_super_and_trl_logs_them(place, tmp_path):
    class Mine(GDPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            ones = torch.ones(len(completions))
            return torch.stack([ones, (torch.arange(len(ones)) % 2).float()], 1)

    gates = {"tenths": {"on": "digits", "at_least": 1}}
    trainer = trained(*place, trainer_class=Mine, gates=gates)
    rollouts = rollouts_of(tmp_path)
    assert [each.rewards["tenths"] for each in rollouts] == [0.0, 1.0] * 6
    row = trainer.state.log_history[0]
    assert row["rewards/tenths/mean"] == row["rewards/tenths/gate_closed"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda rewards: rewards[:, :1], r"shape \(12, 1\).*shape \(12, 2\).*tenths, digits"),
        (lambda rewards: rewards[:4], r"shape \(4, 2\)"),
        (lambda rewards: rewards.long(), "torch.int64"),
        (lambda rewards: rewards.tolist(), "returned list"),
        (lambda rewards: None, "returned NoneType"),
    ],
)
def test_rewards_in_another_form_are_refused(made, named, place):
    class Wrong(GDPOTrainer):
        def _calculate_rewards(self, *args):
            return made(super()._calculate_rewards(*args))

    with reward_error(named):
        trainer_of(*place, trainer_class=Wrong).train()


def test_what_is_rounded_for_trl_stays_exact_and_what_is_changed_does_not():
    exact = torch.tensor([[0.1, 1e9 + 0.25], [torch.nan, 0.3]], dtype=torch.float64)
    tie_breaker = torch.tensor([[1e-12, 0.0], [0.0, 0.0]], dtype=torch.float64)
    for for_trl in (exact.float(), exact.float().double(), exact):
        rewards, kept = exact_where_kept(exact, for_trl)
        assert kept.all()
        torch.testing.assert_close(rewards, exact, rtol=0, atol=0, equal_nan=True)
    rewards, kept = exact_where_kept(exact, exact + tie_breaker)
    assert kept.tolist() == [[False, True], [True, True]]
    assert rewards[0, 0] == exact[0, 0] + 1e-12
    rewards, kept = exact_where_kept(exact, exact.float().nan_to_num(2.0))
    assert kept.tolist() == [[True, True], [False, True]]
    assert rewards[1, 0] == 2


def test_a_total_that_is_changed_stands_at_the_last_turn(tmp_path):
    class Bonus(Kept):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args).clone()
            rewards[0] += 5
            return rewards

    trainer = game_trainer(tmp_path, cls=Bonus, how=at_random, rewards=[echo])
    trainer.train()
    first, *others = rollouts_of(tmp_path)
    turns = [turn.rewards["echo"] for turn in first.turns]
    assert turns == [0.0] * (len(turns) - 1) + [first.rewards["echo"]]
    assert first.rewards["echo"] >= 5
    assert any(sum(t.rewards["echo"] for t in each.turns[:-1]) for each in others)


class Judge:
    __slots__ = ()

    def __call__(self, completions, **columns):
        return [float(len(text)) for text in completions]

    def method(self, completions, **columns):
        return self(completions)


async def slow(completions, **columns):
    await asyncio.sleep(0)
    return [float(len(text)) for text in completions]


def model_named(name):
    def load(policy):
        model = LlamaForSequenceClassification.from_pretrained(policy, num_labels=1)
        model.config._name_or_path = name
        return model

    return load


def brief(completions, **columns):
    return [float(len(text) < 5) for text in completions]


TWINS = {
    "function": lambda _: digits,
    "partial": lambda _: functools.partial(digits),
    "lambda": lambda _: lambda completions, **columns: [0.0] * len(completions),
    "instance": lambda _: Judge(),
    "method": lambda _: Judge().method,
    "async": lambda _: slow,
    "Reward": lambda _: Reward("brief", lambda completion, _: float(len(completion) < 5), 0, 1),
    "model": model_named("org/judge"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TWINS)
def test_the_way_out_of_two_equal_names_works(kind, tiny_policy, tmp_path):
    first, reward = (TWINS[kind](tiny_policy) for _ in range(2))
    first = brief if kind == "Reward" else first
    data = Dataset.from_dict({"prompt": ["a", "b"] * 6, "reference": [{"answer": "a"}] * 12})
    how = {"train_dataset": data}
    if kind == "model":
        tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
        how["reward_processing_classes"] = [tokenizer] * 2
    with config_error("two rewards have the name") as error:
        trainer_of(tiny_policy, tmp_path, rewards=[first, reward], how=how)
    remedy = str(error.value).partition("create the trainer: ")[2]
    given = {"reward": reward, "functools": functools, "dataclasses": dataclasses, "model": reward}
    exec(remedy if "=" in remedy.partition("(")[0] else f"renamed = {remedy}", given)
    renamed = given.get("renamed", given["model"])
    trainer = trainer_of(tiny_policy, tmp_path, rewards=[first, renamed], how=how)
    name, other = trainer.reward_func_names
    assert other == f"{name}_2"
    trainer.train()
    assert f"rewards/{other}/zero_variance_groups" in trainer.state.log_history[0]


def test_a_mock_or_a_proxy_is_a_function(place):
    class Proxy:
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __call__(self, completions, **columns):
            return [1.0] * len(completions)

    mock = unittest.mock.Mock(side_effect=lambda completions, **_: digits(completions))
    trainer = trainer_of(*place, rewards=[mock, Proxy()])
    assert trainer.reward_func_names == ["Mock", "Proxy"]
    trainer.train()
    assert trainer.state.global_step == 1


def test_numbers_of_equal_names_are_free():
    assert numbered(["a", "b"]) == ["a", "b"]
    assert numbered(["a", "a", "a_2", "a"]) == ["a", "a_3", "a_2", "a_4"]


def needs_columns(completions, gold, hint, **columns):
    return [0.0] * len(completions)


def needs_prompt(prompt, **columns):
    return [0.0] * len(prompt)


def takes_no_more(prompts, completions):
    return [0.0] * len(completions)


ANSWERED = Dataset.from_dict({"prompt": ["a", "b"] * 6, "answer": ["c"] * 12})
PARAMETERS = [
    (needs_columns, r"'needs_columns' needs the argument 'gold', 'hint'.*Columns: 'answer'"),
    (needs_prompt, r"'needs_prompt' needs the argument 'prompt'.*'prompts'"),
    (takes_no_more, r"'takes_no_more' does not take 'completion_ids'.*add \*\*kwargs"),
]


@pytest.mark.parametrize(("reward", "named"), PARAMETERS)
@pytest.mark.parametrize("known", [True, False], ids=["before", "stream"])
def test_parameters_that_do_not_fit_are_named(known, reward, named, place):
    if known:
        with reward_error(named):
            trainer_of(*place, rewards=[reward], how={"train_dataset": ANSWERED})
        return
    stream = {"train_dataset": ANSWERED.to_iterable_dataset().map(dict)}
    trainer = trainer_of(*place, rewards=[reward], how=stream)
    with reward_error(named):
        trainer.train()


def test_a_column_that_a_subclass_adds_is_not_missed(place):
    class Adds(GDPOTrainer):
        def _generate_and_score_completions(self, inputs):
            rows = [{**row, "gold": "a", "hint": "b"} for row in inputs]
            return super()._generate_and_score_completions(rows)

    trainer = trained(*place, trainer_class=Adds, rewards=[needs_columns])
    assert trainer.state.global_step == 1


def test_a_column_that_a_rollout_func_adds_is_not_missed(place):
    how = {"rollout_func": lambda prompts, trainer: pytest.fail("generated")}
    trainer_of(*place, rewards=[needs_columns], how=how)


def keyed(completions, **columns):
    return [float(text == columns["gold"]) for text in completions]


def in_words(completions, **columns):
    return ["0.5"] * len(completions)


def refuses(completions, **columns):
    raise DataError("too long")


def adds_text(completions, **columns):
    return [1 + text for text in completions]


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        (keyed, r"'keyed' raised KeyError.*'gold'.*add it.*'answer'"),
        (refuses, r"'refuses' raised DataError: 'too long'"),
        (adds_text, "catch the exception, and return None"),
        (in_words, r"'in_words' returned '0\.5' for completion 0 of 12: .* finite number, or None"),
    ],
)
def test_an_exception_or_a_text_of_a_reward_has_its_remedy(reward, named, place):
    trainer = trainer_of(*place, rewards=[reward], how={"train_dataset": ANSWERED})
    with reward_error(named):
        trainer.train()


@pytest.mark.parametrize("weights", [{"tenths": 1.0}, {}])
def test_a_name_that_is_left_out_of_the_weights_is_an_error(weights, place):
    with config_error(r"leaves out.*'digits'.*tenths, digits"):
        trainer_of(*place, reward_weights=weights)


REUSED = [
    {"num_iterations": 2},
    {"steps_per_generation": 2, "per_device_train_batch_size": 4},
    {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
]
"""Settings with which two optimizer steps use one generation."""


@pytest.mark.slow
@pytest.mark.parametrize("changed", REUSED)
def test_a_batch_that_trl_generates_again_counts_once(changed, place, tmp_path):
    """TRL's checkpoint at step 3 is inside a generation, which the resumed run generates again."""

    def steps_counted(resume):
        trainer = trainer_of(
            *place,
            max_steps=6,
            save_strategy="steps",
            save_steps=3,
            advantage_options={"schedules": {"digits": {"from": 1.0, "to": 0.5, "steps": 100}}},
            **changed,
        )
        checkpoint = str(tmp_path / "checkpoint-3") if resume else None
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer._objective.rule.state()["schedules"]["step"], trainer

    whole, trainer = steps_counted(resume=False)
    assert whole == 3
    resumed, _ = steps_counted(resume=True)
    assert resumed == 3
    trainer.train()  # again, from the start: every batch counts
    assert trainer._objective.rule.state()["schedules"]["step"] == 6
