"""vLLM in this process, against a stand-in for its documented interface: vLLM needs a GPU."""

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar

import pytest

from gdpo.errors import ConfigError, MissingExtraError
from gdpo.evaluation import evaluate
from gdpo.evaluation.benchmarks import find_benchmark
from gdpo.evaluation.evaluation import Settings
from gdpo.evaluation.named import responder_of
from gdpo.evaluation.responders import Sampling
from gdpo.rollouts import read_rollouts


@dataclass
class CompletionOutput:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


@dataclass
class RequestOutput:
    outputs: list[CompletionOutput]


@dataclass
class SamplingParams:
    n: int
    temperature: float
    top_p: float
    max_tokens: int
    seed: int | None


@dataclass
class LLM:
    model: str
    dtype: str = "auto"
    seed: int = 0
    asked: list = field(default_factory=list)
    made: ClassVar[list] = []

    def __post_init__(self):
        LLM.made.append(self)

    def chat(self, messages, sampling_params=None, *, use_tqdm=True):
        assert all(message.keys() == {"role", "content"} for chat in messages for message in chat)
        self.asked.append((len(messages), sampling_params))
        return [
            RequestOutput(
                [
                    CompletionOutput(f"<answer>{i}</answer>", (5,) * 4, "stop")
                    if i == 0
                    else CompletionOutput("on and on", (6,) * sampling_params.max_tokens, "length")
                    for i in range(sampling_params.n)
                ]
            )
            for _ in messages
        ]


@pytest.fixture
def vllm(monkeypatch):
    from importlib.machinery import ModuleSpec

    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    module.__spec__ = ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    LLM.made.clear()
    return module


def test_vllm_answers(vllm, tiny_policy, gsm8k_file, tmp_path):
    sampling = Sampling(2, 0.6, 0.95, max_tokens=7, seed=3)
    settings = Settings(str(tiny_policy), sampling, token_limit=5, rows=40, engine="vllm")
    answering = responder_of(
        settings.model, sampling, server=None, at_once=8, engine=settings.engine
    )
    evaluate(settings, [find_benchmark("gsm8k", gsm8k_file)], answering, tmp_path / "e")
    (model,) = LLM.made
    assert (model.model, model.dtype, model.seed) == (str(tiny_policy), "auto", 3)
    drawn = {"n": 2, "temperature": 0.6, "top_p": 0.95, "max_tokens": 7}
    assert model.asked == [
        (32, SamplingParams(**drawn, seed=3)),
        (8, SamplingParams(**drawn, seed=35)),
    ]
    file, _ = sorted((tmp_path / "e" / "gsm8k").iterdir())
    first, second = read_rollouts(file)[:2]
    assert (first.completion, first.num_tokens, first.finish_reason) == (
        "<answer>0</answer>",
        4,
        "stop",
    )
    assert first.rewards["correctness"] == 1  # 0+0
    assert (second.num_tokens, second.finish_reason) == (7, "length")
    assert second.rewards["length"] == 0


def test_an_evaluation_is_not_resumed_with_another_engine(vllm, tiny_policy, gsm8k_file, tmp_path):
    sampling = Sampling(max_tokens=3)
    benchmarks = [find_benchmark("gsm8k", gsm8k_file)]
    for engine in ("vllm", "transformers"):
        settings = Settings(str(tiny_policy), sampling, 5, rows=2, engine=engine)
        answering = responder_of(settings.model, sampling, server=None, at_once=8, engine=engine)
        if engine == "vllm":
            evaluate(settings, benchmarks, answering, tmp_path / "e")
        else:
            with pytest.raises(ConfigError, match=r"engine .*vllm.*transformers"):
                evaluate(settings, benchmarks, answering, tmp_path / "e")


@pytest.mark.parametrize(
    ("model", "engine", "message"),
    [
        ("gold", "vllm", "--engine vllm"),
        ("gold", "vlm", "--engine vlm: did you mean 'vllm'"),
    ],
)
def test_an_unknown_or_unusable_engine_is_refused(vllm, model, engine, message):
    with pytest.raises(ConfigError, match=message):
        responder_of(model, Sampling(), server=None, at_once=1, engine=engine)


def test_a_start_of_vllm_that_fails_is_one_message(vllm, tiny_policy, monkeypatch, gsm8k_file):
    def fails(**_):
        raise RuntimeError("Engine core initialization failed. " + 5000 * "x")

    monkeypatch.setattr(vllm, "LLM", fails)
    model = str(tiny_policy)
    answering = responder_of(model, Sampling(), server=None, at_once=1, engine="vllm")
    with pytest.raises(ConfigError) as error:
        answering(find_benchmark("gsm8k", gsm8k_file))
    message = str(error.value)
    assert f"{model}: RuntimeError: Engine core init" in message
    assert "--max-model-len" in message
    assert len(message) < 800 + len(model)


def test_vllm_that_is_not_installed_is_reported(tiny_policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"pip install vllm.*for --engine vllm"):
        responder_of(str(tiny_policy), Sampling(), server=None, at_once=1, engine="vllm")
