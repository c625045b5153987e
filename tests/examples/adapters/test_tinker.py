"""Tests the step of Tinker against a stand-in for its client and types (tinker 0.24).

`make engines ENGINES=tinker` trains through a server.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.conformance.others.adapters import adapter
from tests.examples.adapters.stand_ins import install
from tests.refusals import data_error

from gdpo import gdpo
from gdpo.advantages import AdvantageRule

NAMES, WEIGHTS = ["correct", "brevity"], [1.0, 0.5]
PROMPTS = [[11, 12, 13], [21]]
COMPLETIONS = [[[1, 2, 3], [4], [5, 6]], [[7, 8], [9, 1, 2, 3], [4]]]
REWARDS = [[[1.0, 0.3], [0.0, 0.9], [1.0, np.nan]], [[0.0, 0.1], [0.0, 0.7], [1.0, 0.2]]]


def tensor(array):
    return SimpleNamespace(array=array, data=array.flatten().tolist())


TYPES = SimpleNamespace(
    ModelInput=SimpleNamespace(from_ints=lambda tokens: SimpleNamespace(ints=list(tokens))),
    TensorData=SimpleNamespace(from_numpy=tensor),
    Datum=SimpleNamespace,
    AdamParams=SimpleNamespace,
)


def future(value):
    return SimpleNamespace(result=lambda: value)


def logprobs_of(tokens):
    """Return the sampler's log-probabilities, which differ from token to token."""
    return [-0.1 * token - 0.01 * i for i, token in enumerate(tokens)]


@dataclass
class Client:
    """Stands in for Tinker's training client and its sampling client."""

    completions: list = field(default_factory=lambda: COMPLETIONS)
    shift: float = 0.0
    """Number of nats by which the trainer's log-probability of each completion's last token is
    larger than the sampler's."""
    calls: list = field(default_factory=list)
    sampled: list = field(default_factory=list)
    data: list = field(default_factory=list)
    loss: str = ""
    adam: SimpleNamespace | None = None

    def save_weights_and_get_sampling_client(self):
        self.calls.append("weights")
        return self

    def sample(self, prompt, num_samples, sampling_params):
        self.calls.append("sample")
        self.sampled.append((prompt.ints, num_samples, sampling_params))
        group = self.completions[len(self.sampled) - 1]
        sequences = [
            SimpleNamespace(tokens=each, logprobs=logprobs_of(each), stop_reason="stop")
            for each in group
        ]
        sequences[-1].stop_reason = "length"
        return future(SimpleNamespace(sequences=sequences))

    def forward_backward(self, data, loss_fn):
        self.calls.append("forward_backward")
        self.data, self.loss = data, loss_fn
        # A prompt's positions have other values, which the difference must not contain.
        outputs = [each.loss_fn_inputs["logprobs"].array.copy() for each in data]
        for output, prompt in zip(outputs, self.prompt_of_row(), strict=True):
            output[: len(prompt) - 1] = -50.0
            output[-1] += self.shift
        outputs = [{"logprobs": tensor(each)} for each in outputs]
        return future(SimpleNamespace(loss_fn_outputs=outputs))

    def optim_step(self, adam):
        self.calls.append("optim_step")
        self.adam = adam
        return future(None)

    def prompt_of_row(self):
        return [
            p for (p, *_), group in zip(self.sampled, self.completions, strict=True) for _ in group
        ]


@pytest.fixture(autouse=True)
def sdk(monkeypatch):
    install(monkeypatch, tinker={"types": TYPES})


def step(client, rewards=REWARDS, rule=None, prompts=PROMPTS, scored=None):
    def score(completions):
        if scored is not None:
            scored.append(completions)
        return rewards

    return adapter("tinker").train_step(
        client,
        prompts,
        score,
        rule or AdvantageRule("gdpo", NAMES),
        WEIGHTS,
        sampling={"num_samples": 3, "sampling_params": "hot"},
        learning_rate=0.25,
    )


def inputs_of(datum):
    return {key: value.array for key, value in datum.loss_fn_inputs.items()}


def test_each_prompt_is_sampled_with_the_newest_weights_and_the_model_is_updated_once():
    client = Client()
    done = step(client)
    assert client.calls == ["weights", "sample", "sample", "forward_backward", "optim_step"]
    assert client.sampled == [(prompt, 3, "hot") for prompt in PROMPTS]
    assert (client.loss, client.adam) == (
        "importance_sampling",
        SimpleNamespace(learning_rate=0.25),
    )
    assert done.completions == COMPLETIONS
    assert done.finish_reasons == 2 * [["stop", "stop", "length"]]


def test_the_completions_are_scored_and_their_advantages_are_those_of_the_estimator():
    scored = []
    done = step(Client(), scored=scored)
    assert scored == [COMPLETIONS]
    assert_array_equal(done.rewards, REWARDS)
    assert_array_equal(done.advantages, gdpo(np.array(REWARDS), WEIGHTS))


def test_position_i_predicts_token_i_plus_1():
    client = Client()
    step(client)
    rows = [p + c for p, group in zip(PROMPTS, COMPLETIONS, strict=True) for c in group]
    for datum, tokens in zip(client.data, rows, strict=True):
        inputs = inputs_of(datum)
        assert datum.model_input.ints == tokens[:-1]
        assert inputs["target_tokens"].tolist() == tokens[1:]
        assert {len(each) for each in inputs.values()} == {len(tokens) - 1}
        assert {key: each.dtype for key, each in inputs.items()} == {
            "target_tokens": np.int64,
            "logprobs": np.float32,
            "advantages": np.float32,
        }


def test_only_sampled_tokens_get_the_advantage_and_the_log_probabilities_of_the_sampler():
    client = Client()
    done = step(client)
    rows = [(p, s) for p in range(2) for s in range(3)]
    assert np.all(done.advantages != 0)  # otherwise a wrong position would not be seen
    for datum, (p, s) in zip(client.data, rows, strict=True):
        completion, inputs = COMPLETIONS[p][s], inputs_of(datum)
        prompt = [0.0] * (len(PROMPTS[p]) - 1)  # the first sampled token is predicted by its last
        expected = prompt + [done.advantages[p, s]] * len(completion)
        assert_allclose(inputs["advantages"], expected, rtol=1e-6)
        assert_allclose(inputs["logprobs"], prompt + logprobs_of(completion), rtol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.5, -0.5])
def test_the_log_probability_difference_is_the_mean_over_sampled_tokens(shift):
    completions, tokens = 6, 13
    expected = abs(shift) * completions / tokens
    assert step(Client(shift=shift)).logprob_difference == pytest.approx(expected, abs=1e-6)


def test_a_missing_reward_reaches_the_estimator_and_an_infinite_one_stops_before_the_update():
    assert np.isnan(step(Client()).rewards[0, 2, 1])
    client = Client()
    with data_error(r"reward 1 .*prompt 0, sample 2"):
        step(client, np.where(np.isnan(REWARDS), np.inf, REWARDS))
    assert "forward_backward" not in client.calls


def test_the_state_of_the_estimator_is_updated_after_its_use():
    options = {"targets": {"brevity": 0.9}, "step_size": 1.0}
    rule, untouched = (AdvantageRule("constrained_grpo", NAMES, options) for _ in range(2))
    before = rule.state()
    done = step(Client(), rule=rule)
    assert_array_equal(done.advantages, untouched(np.array(REWARDS), WEIGHTS))
    untouched.update(np.array(REWARDS), WEIGHTS)
    assert rule.state() == untouched.state() != before


@pytest.mark.parametrize("rewards", [REWARDS[:1], [[[1.0, 0.0]] * 4] * 2, REWARDS[0]])
def test_rewards_of_another_shape_are_refused_before_the_update(rewards):
    client = Client()
    with data_error("2 prompts with 6 completions"):
        step(client, rewards)
    assert "forward_backward" not in client.calls


def test_an_empty_prompt_is_refused_before_anything_is_sampled():
    client = Client()
    with data_error("prompt"):
        step(client, prompts=[[1], []])
    assert client.calls == []


def test_an_empty_completion_counts_as_no_token():
    completions = [[[1, 2, 3], [], [5, 6]], [[7, 8], [9, 1, 2, 3], [4]]]
    assert step(Client(completions)).logprob_difference == pytest.approx(0.0, abs=1e-6)
