"""Tests gdpo's rewards, tasks and gates as an environment of NeMo-RL."""

import math
from typing import NamedTuple

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from gdpo import ConfigError, DataError, Reward
from gdpo.integrations.nemo_rl import _actor
from gdpo.integrations.nemo_rl._environment import Rewarder
from gdpo.tasks import resolve_task

HERE = "tests.integrations.nemo_rl.test_environment:"

said = Reward("said", lambda text, reference: float(reference["word"] in text), low=0, high=1)
short = Reward("short", lambda text, reference: 1 - len(text) / 100, low=0, high=1)
brief = Reward("brief", lambda count, reference: 1 - count / 10, low=0, high=1, of="tokens")
never = Reward("never", lambda text, reference: None, low=0, high=1)


class Return(NamedTuple):
    observations: object
    metadata: object
    next_stop_strings: object
    rewards: object
    terminateds: object
    answers: object


def of(*names, answers=("yes", "no"), truth='{"word": "yes"}', **more):
    logs = [
        [
            {"role": "user", "content": "yes?"},
            {"role": "assistant", "content": "an earlier yes"},
            {"role": "user", "content": "yes?"},
            {"role": "assistant", "content": answer},
        ]
        for answer in answers
    ]
    rewarder = Rewarder({"rewards": [HERE + name for name in names], **more})
    rewards = rewarder.score(logs, [{"ground_truth": truth}] * len(logs))
    return {name: values.tolist() for name, values in rewards.items()}


def test_every_reward_of_the_last_answer_comes_by_name_in_the_order_asked_for():
    rewards = of("short", "said")
    assert list(rewards) == ["reward/short", "reward/said"]
    assert rewards == {"reward/short": [0.97, 0.98], "reward/said": [1.0, 0.0]}


def test_a_gated_reward_is_0_where_its_condition_is_not_reached():
    gates = {"short": {"on": "said", "at_least": 1}}
    assert of("said", "short", gates=gates)["reward/short"] == [0.97, 0.0]


def test_a_reward_that_does_not_apply_is_nan():
    assert all(map(math.isnan, of("never")["reward/never"]))


def test_a_conversation_without_an_answer_is_scored_as_an_empty_one():
    rewarder = Rewarder({"rewards": [HERE + "said"]})
    rewards = rewarder.score(
        [[{"role": "user", "content": "yes"}]], [{"ground_truth": {"word": "yes"}}]
    )
    assert rewards["reward/said"].tolist() == [0.0]


def test_the_answer_of_nemo_rls_gsm8k_gets_the_most_of_every_reward():
    task = resolve_task("gsm8k")
    gold = task.gold_completion({"answer": "42"})
    rewarder = Rewarder({"task": "gsm8k", "ground_truth": "answer"})
    rewards = rewarder.score([[{"role": "assistant", "content": gold}]], [{"ground_truth": "42"}])
    assert {k: v.tolist() for k, v in rewards.items()} == {
        f"reward/{r.name}": [r.high] for r in task.rewards
    }


@pytest.mark.parametrize("truth", ["42", "not json", 42, None])
def test_a_ground_truth_without_fields_is_an_error(truth):
    with pytest.raises(DataError, match=r"ground_truth'\] .*JSON object"):
        of("said", truth=truth)


def test_a_ground_truth_that_is_to_be_a_field_must_be_text():
    with pytest.raises(DataError, match=r"env\.gdpo\.ground_truth"):
        of("said", truth={"word": "yes"}, ground_truth="word")


def test_a_reward_of_the_length_counts_the_tokens_of_the_tokenizer(tmp_path):
    words = Tokenizer(WordLevel({"yes": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)
    answers = ["yes " * 3, "", "yes no"]
    rewards = of("brief", answers=answers, tokenizer=str(tmp_path))
    assert rewards["reward/brief"] == [0.7, 1.0, 0.8]


def test_wrong_options_are_errors_before_anything_is_scored():
    with pytest.raises(ConfigError, match=r"env\.gdpo "):
        Rewarder({})
    with pytest.raises(ConfigError, match="'num_workers'"):
        Rewarder({"task": "gsm8k", "num_workers": 8})
    with pytest.raises(ConfigError, match=r"env\.gdpo\.tokenizer"):
        Rewarder({"rewards": [{"name": "token_limit", "options": {"limit": 9}}]})


def test_an_episode_ends_with_its_rewards():
    environment = _actor.environment_class(object, Return)({"rewards": [HERE + "said"]})
    logs = [[{"role": "assistant", "content": text}] for text in ("yes", "no", "yes")]
    metadata = [{"ground_truth": {"word": "yes"}}] * 3
    step = environment.step(logs, metadata)
    assert step.metadata is metadata
    assert list(step.rewards) == ["reward/said"]
    torch.testing.assert_close(step.rewards["reward/said"], torch.tensor([1.0, 0.0, 1.0]))
    assert step.terminateds.bool().all()
    assert {len(field) for field in (step.observations, step.next_stop_strings)} == {3}
    assert environment.global_post_process_and_metrics("batch") == ("batch", {})


def test_only_the_actor_is_made_when_it_is_asked_for():
    with pytest.raises(AttributeError, match="no attribute 'Environment'"):
        _actor.Environment  # noqa: B018
