"""Tests the environment of `examples/nemo_rl`, without Ray."""

import math

import pytest
from tests.integrations.nemo_rl.recorded import environment
from tests.integrations.verl.test_compute_score import never, said
from tests.refusals import data_error
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from gdpo import Reward
from gdpo.lab.tasks import resolve_task

short = Reward("short", lambda text, reference: 1 - len(text) / 64, low=0, high=1)
brief = Reward("brief", lambda count, reference: 1 - count / 8, low=0, high=1, of="tokens")
two, counted = [short, said, never], [brief]
HERE = f"{__name__}:"


@pytest.fixture
def step(monkeypatch, tmp_path):
    """Return a function that scores the last of several messages."""

    def scored(rewards="two", answers=("yes", "no"), truth='{"word": "yes"}', **cfg):
        made = environment(monkeypatch, tmp_path / "nemo_rl", {"rewards": HERE + rewards, **cfg})
        before = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "yes?"}]
        logs = [[*before, {"role": "assistant", "content": answer}] for answer in answers]
        return made.step(logs, [{"ground_truth": truth}] * len(logs))

    return scored


def test_every_reward_of_the_last_answer_comes_by_name_and_the_episode_ends(step):
    done = step()
    assert list(done.rewards) == ["reward/short", "reward/said", "reward/never"]
    assert done.rewards["reward/short"].tolist() == [1 - 3 / 64, 1 - 2 / 64]
    assert done.rewards["reward/said"].tolist() == [1.0, 0.0]
    assert all(map(math.isnan, done.rewards["reward/never"]))
    assert done.terminateds.tolist() == [1, 1]
    assert done.metadata == [{"ground_truth": '{"word": "yes"}'}] * 2
    assert {len(field) for field in (done.observations, done.next_stop_strings)} == {2}


def test_a_gated_reward_is_0_where_its_condition_is_not_reached(step):
    gates = {"short": {"on": "said", "at_least": 1}}
    assert step(gates=gates).rewards["reward/short"].tolist() == [1 - 3 / 64, 0.0]


def test_the_answer_of_nemo_rls_gsm8k_gets_the_most_of_every_reward(monkeypatch, tmp_path):
    task = resolve_task("gsm8k")
    cfg = {"rewards": "gdpo.lab.tasks.gsm8k:TASK.rewards", "ground_truth": "answer"}
    gold = {"role": "assistant", "content": task.gold_completion({"answer": "42"})}
    done = environment(monkeypatch, tmp_path, cfg).step([[gold]], [{"ground_truth": "42"}])
    assert {k: v.tolist() for k, v in done.rewards.items()} == {
        f"reward/{r.name}": [r.high] for r in task.rewards
    }


def test_a_ground_truth_without_fields_is_an_error(step):
    with data_error(r"ground_truth is '42'.*env\.gdpo\.ground_truth"):
        step(truth="42")


def test_a_reward_of_the_length_counts_the_tokens_of_the_tokenizer(step, tmp_path):
    words = Tokenizer(WordLevel({"yes": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)
    done = step("counted", ["yes " * 3, "", "yes no"], tokenizer=str(tmp_path))
    assert done.rewards["reward/brief"].tolist() == [0.625, 1.0, 0.75]


def test_the_script_registers_it_with_its_own_python(step):
    step()
    import gdpo_environment
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.environments.utils import ENV_REGISTRY

    gdpo_environment.register()
    path = ENV_REGISTRY["gdpo"]["actor_class_fqn"]
    assert path == "gdpo_environment.GdpoEnvironment"
    assert {path: "python"} == ACTOR_ENVIRONMENT_REGISTRY
