"""Tests gdpo's rewards, tasks and gates as verl's reward function."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.refusals import config_error, data_error

from gdpo import Reward
from gdpo.integrations.verl import compute_score
from gdpo.integrations.verl.scores import PATH, as_reference, check_keys, with_num_tokens
from gdpo.lab.tasks import resolve_task

HERE = "tests.integrations.verl.test_compute_score:"

said = Reward("said", lambda text, reference: float(reference["word"] in text), low=0, high=1)
short = Reward("short", lambda count, reference: 1 - count / 100, low=0, high=1, of="tokens")
never = Reward("never", lambda text, reference: None, low=0, high=1)
broken = Reward("broken", lambda text, reference: 1 / 0, low=0, high=1)
misnamed = Reward("score", lambda text, reference: 1.0, low=0, high=1)


def bounded(limit):
    return Reward("bounded", lambda text, reference: float(len(text) <= limit), low=0, high=1)


def of(*names, text="yes", truth=None, tokens=None, **more):
    """Call `compute_score` as verl does."""
    info = {"index": 3} if tokens is None else {"num_tokens": tokens}
    return compute_score(
        data_source="mine",
        solution_str=text,
        ground_truth={"word": "yes"} if truth is None else truth,
        extra_info=info,
        rewards=[HERE + name if isinstance(name, str) else name for name in names],
        **more,
    )


def test_every_reward_comes_by_name_and_the_score_is_their_sum():
    assert of("said", "short", tokens=40) == {"score": 1.6, "said": 1.0, "short": 0.6}


def test_weights_are_of_the_score_alone():
    scores = of("said", "short", tokens=40, weights={"said": 1.0, "short": 0.5})
    assert scores == {"score": 1.3, "said": 1.0, "short": 0.6}


def test_a_gated_reward_is_0_where_its_condition_is_not_reached():
    gates = {"short": {"on": "said", "at_least": 1}}
    assert of("said", "short", text="no", tokens=40, gates=gates)["short"] == 0
    assert of("said", "short", tokens=40, gates=gates)["short"] == 0.6


def test_a_gate_of_the_group_is_an_error_before_anything_is_scored():
    gates = {"short": {"on": "said", "at_least": 1, "of": "group"}}
    kwargs = {"rewards": [HERE + "said", HERE + "short"], "gates": gates}
    function = {"path": PATH, "name": "compute_score", "reward_kwargs": kwargs}
    with config_error("'short' .* `of: group`.*'said'"):
        check_keys({"custom_reward_function": function}, ["said"])


@pytest.mark.parametrize("name", ["never", "broken"])
def test_a_reward_that_does_not_apply_or_fails_is_nan_and_adds_nothing(name):
    scores = of("said", name)
    assert scores["score"] == 1
    assert math.isnan(scores[name])


def test_a_reward_is_made_with_its_options():
    made = {"name": HERE + "bounded", "options": {"limit": 2}}
    assert of(made)["bounded"] == 0
    assert of(made, text="ok")["bounded"] == 1


@pytest.mark.parametrize("write", [dict, json.dumps], ids=["dict", "text"])
def test_the_answer_of_a_task_gets_the_most_of_every_reward(write):
    task = resolve_task("gsm8k")
    row = {"question": "What is 40 + 2?", "answer": "40 + 2 = 42\n#### 42"}
    reference = task.read_row(row).reference
    gold = task.gold_completion(reference)
    scores = compute_score(
        data_source="gsm8k", solution_str=gold, ground_truth=write(reference), task="gsm8k"
    )
    texts = [reward for reward in task.rewards if reward.of == "text"]
    assert texts
    assert {r.name: scores[r.name] for r in texts} == {r.name: r.high for r in texts}


def test_threads_do_not_mix_their_completions_up():
    with ThreadPoolExecutor(8) as pool:
        texts = ["yes" if i % 3 else "no" for i in range(60)]
        scores = list(pool.map(lambda text: of("said", text=text)["said"], texts))
    assert scores == [float(text == "yes") for text in texts]


def test_arrays_of_a_data_frame_become_lists():
    assert as_reference({"tests": np.array(["a", "b"]), "n": np.int64(2)}) == {
        "tests": ["a", "b"],
        "n": 2,
    }


@pytest.mark.parametrize("truth", ["42", "not json", 42, "[1]"])
def test_a_ground_truth_without_fields_is_an_error(truth):
    with data_error(r"ground_truth .*JSON object"):
        of("said", truth=truth)


WRONG = [
    ({}, r"reward_kwargs.* task"),
    ({"rewards": [HERE + "misnamed"]}, "'score'"),
    ({"rewards": [HERE + "said"], "worker": 2}, "'worker'"),
    ({"rewards": [HERE + "said"], "gates": {"said": {"when": "said"}}}, r"gates.*said"),
    ({"rewards": [{"name": HERE + "bounded", "options": {"most": 2}}]}, "most"),
    ({"rewards": [{"name": HERE + "said", "options": {"limit": 2}}]}, "takes no options"),
    ({"rewards": [HERE + "short"]}, r"reward\.reward_manager\.name=gdpo_tokens"),
]


@pytest.mark.parametrize(("given", "remedy"), WRONG)
def test_wrong_arguments_are_errors_with_a_remedy(given, remedy):
    with config_error(remedy):
        compute_score(solution_str="", ground_truth={}, **given)


class Batch(SimpleNamespace):
    """Stands in for one row of verl's DataProto."""

    def __getitem__(self, rows):
        return self


class Naive:
    """Stands in for verl's reward manager."""

    async def run_single(self, data):
        return data.non_tensor_batch["extra_info"][0]


@pytest.mark.parametrize("given", [None, {"index": 3}])
def test_the_manager_counts_the_tokens_of_the_completion(given):
    batch = Batch(
        batch={
            "responses": torch.zeros(1, 4),
            "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 0]]),
        },
        non_tensor_batch={} if given is None else {"extra_info": np.array([given], dtype=object)},
    )
    info = asyncio.run(with_num_tokens(Naive)().run_single(batch))
    assert info == {**(given or {}), "num_tokens": 3}
