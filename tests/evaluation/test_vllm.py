"""vLLM in this process, against a stand-in for its interface. `make engines` runs vLLM itself."""

import os
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from tests.refusals import config_error, missing_extra_error, refusal

from gdpo.lab.evaluation import evaluate
from gdpo.lab.evaluation.benchmarks import find_benchmark
from gdpo.lab.evaluation.evaluation import EvaluationSettings
from gdpo.lab.evaluation.named import responder_of
from gdpo.lab.evaluation.responders import Response, Sampling, VllmOptions
from gdpo.lab.tasks import Problem
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
    max_model_len: int | None = None
    enforce_eager: bool = False
    asked: list = field(default_factory=list)
    made: ClassVar[list] = []

    def __post_init__(self):
        LLM.made.append(self)

    @property
    def model_config(self):
        return SimpleNamespace(max_model_len=self.max_model_len or 1024)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True):
        assert all(len(each["prompt_token_ids"]) < (self.max_model_len or 1024) for each in prompts)
        self.asked.append((len(prompts), sampling_params))
        return [
            RequestOutput(
                [
                    CompletionOutput(f"<answer>{i}</answer>", (5,) * 4, "stop")
                    if i == 0
                    else CompletionOutput("on and on", (6,) * sampling_params.max_tokens, "length")
                    for i in range(sampling_params.n)
                ]
            )
            for _ in prompts
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


@pytest.fixture
def gsm8k(gsm8k_file):
    return find_benchmark("gsm8k", gsm8k_file)


@pytest.fixture
def responder(tiny_policy, tmp_path):
    def made(sampling, *, engine="vllm", **options):
        start = VllmOptions(tmp_path / "logs" / "vllm.log", **options)
        return responder_of(
            str(tiny_policy), sampling, server=None, at_once=8, engine=engine, vllm=start
        )

    return made


def test_vllm_answers(vllm, responder, tiny_policy, gsm8k, tmp_path):
    sampling = Sampling(2, 0.6, 0.95, max_tokens=7, seed=3)
    settings = EvaluationSettings(str(tiny_policy), sampling, token_limit=5, rows=40, engine="vllm")
    evaluate(settings, [gsm8k], responder(sampling), tmp_path / "e")
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


def test_the_options_reach_vllm(vllm, responder, gsm8k):
    responder(Sampling(), max_model_len=77, enforce_eager=True)(gsm8k)
    (model,) = LLM.made
    assert (model.max_model_len, model.enforce_eager) == (77, True)


def test_a_prompt_without_room_gets_empty_responses(vllm, responder, gsm8k):
    prompts = [[{"role": "user", "content": 100 * text}] for text in ("x", "1", "x")]
    prompts[1][0]["content"] = "1"
    model = responder(Sampling(2, 1.0, max_tokens=3), max_model_len=50)(gsm8k)
    responses = model.respond([Problem(prompt, {}) for prompt in prompts], seed=0, samples=2)
    assert [each[0].text for each in responses] == ["", "<answer>0</answer>", ""]
    assert responses[0] == 2 * [Response("", 0, "length")]
    assert model._model.asked[0][0] == 1


def test_an_evaluation_is_not_resumed_with_another_engine(
    vllm, responder, tiny_policy, gsm8k, tmp_path
):
    sampling = Sampling(max_tokens=3)

    def evaluated(engine):
        settings = EvaluationSettings(str(tiny_policy), sampling, 5, rows=2, engine=engine)
        evaluate(settings, [gsm8k], responder(sampling, engine=engine), tmp_path / "e")

    evaluated("vllm")
    with config_error(r"engine .*vllm.*transformers"):
        evaluated("transformers")


@pytest.mark.parametrize(
    ("model", "engine", "message"),
    [("gold", "vllm", "--engine vllm"), ("gold", "vlm", "--engine vlm: did you mean 'vllm'")],
)
def test_an_unknown_or_unusable_engine_is_refused(vllm, model, engine, message):
    with config_error(message):
        responder_of(model, Sampling(), server=None, at_once=1, engine=engine)


def test_a_start_of_vllm_that_fails_is_one_message(
    vllm, responder, tiny_policy, monkeypatch, gsm8k, capfd, tmp_path
):
    def fails(**_):
        os.write(2, b"(EngineCore pid=9) ERROR Traceback\n" + 5000 * b"x\n")
        os.write(2, b"(EngineCore pid=9) ERROR ValueError: no memory for 4096 tokens\n")
        raise RuntimeError("Engine core initialization failed. See root cause above. " + 5000 * "x")

    monkeypatch.setattr(vllm, "LLM", fails)
    message = refusal(responder(Sampling()), gsm8k)
    log = tmp_path / "logs" / "vllm.log"
    assert f"{tiny_policy}: ValueError: no memory for 4096 tokens. " in message
    assert all(each in message for each in ("--max-model-len", "--enforce-eager", str(log)))
    assert len(message) < 800 + len(str(tiny_policy)) + len(str(log))
    assert "EngineCore" not in "".join(capfd.readouterr())
    assert "EngineCore" in log.read_text()


def test_an_error_of_vllm_itself_is_shown(vllm, responder, monkeypatch, gsm8k):
    def fails(**_):
        raise ValueError("max_model_len (9) is too small\n  second line")

    monkeypatch.setattr(vllm, "LLM", fails)
    with config_error(r"len \(9\) is too small second line\. Its"):
        responder(Sampling())(gsm8k)


def test_vllm_that_is_not_installed_is_reported(tiny_policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with missing_extra_error(r"pip install vllm.*for --engine vllm"):
        responder_of(str(tiny_policy), Sampling(), server=None, at_once=1, engine="vllm")
