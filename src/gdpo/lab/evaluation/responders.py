"""Defines responders: a model in this process, or reference answers to test a benchmark."""

import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol, TypeAlias

from gdpo.errors import ConfigError
from gdpo.lab.tasks import Problem, Task
from gdpo.rewards.task import Message
from gdpo.rewards.text import left_open


@dataclass(frozen=True, slots=True)
class Sampling:
    """Stores sampling settings."""

    samples: int = 1
    """Responses per problem."""
    temperature: float = 0.0
    """Temperature. 0: greedy decoding."""
    top_p: float = 1.0
    """Cumulative probability for nucleus sampling, above 0 and at most 1."""
    max_tokens: int = 1024
    """Maximum response length in tokens."""
    seed: int = 0
    """Random seed."""


@dataclass(frozen=True, slots=True)
class Response:
    """Stores one response."""

    text: str
    """The text that is scored."""
    num_tokens: int
    """Length of the text in tokens."""
    finish_reason: str
    """Why the generation ended: `stop` or `length`."""
    shown: tuple[Message, ...] = ()
    """All messages, if the response is a conversation. In that case, `text` contains the model's
    messages as JSON."""
    opened: str = ""
    """The tag at the end of the prompt (`gdpo.rewards.text.left_open`). Empty: none, or it is not
    known, because a server writes the prompt."""


NO_ROOM = Response("", 0, "length")
"""Response to a prompt that leaves no room for a response, for example late in a long
conversation."""

OnResponses: TypeAlias = Callable[[int], None]
"""Function called with the number of responses that have arrived since the last call."""


def ignore(_: int) -> None:
    """Ignore the progress."""


class Responder(Protocol):
    """Generates responses to problems."""

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: OnResponses = ignore
    ) -> list[list[Response]]:
        """Return `samples` responses per problem, reproducible for a given seed if possible."""
        ...


@dataclass(frozen=True, slots=True)
class RowAnswers:
    """Responds with reference answers or empty texts."""

    task: Task
    gold: bool

    def respond(
        self,
        problems: Sequence[Problem],
        seed: int,  # noqa: ARG002  nothing is sampled
        samples: int,
        heard: OnResponses = ignore,
    ) -> list[list[Response]]:
        """Return each problem's answer, `samples` times."""
        texts = [self.task.gold_completion(p.reference) if self.gold else "" for p in problems]
        heard(len(texts) * samples)
        return [[Response(text or "", 1, "stop")] * samples for text in texts]


class LocalModel:
    """Runs a model with transformers, on a GPU if available.

    If TRL is installed and supports the model, each prompt is processed once for all its samples,
    and finished rows leave the batch.
    """

    def __init__(self, model: str, tokenizer: Any, sampling: Sampling, *, at_once: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded: Any = AutoModelForCausalLM.from_pretrained(model)
        self._fast = _prepared(loaded, device)
        self._model = loaded.to(device).eval()
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._at_once = at_once

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: OnResponses = ignore
    ) -> list[list[Response]]:
        """Return the responses to each problem."""
        import torch

        torch.manual_seed(seed)
        size = max(1, self._at_once // samples)
        answered: list[list[Response]] = []
        for start in range(0, len(problems), size):
            answered += self._together(problems[start : start + size], samples)
            heard(min(size, len(problems) - start) * samples)
        return answered

    def _together(self, problems: Sequence[Problem], samples: int) -> list[list[Response]]:
        import torch

        read = self._tokenizer.apply_chat_template(
            [problem.prompt for problem in problems],
            add_generation_prompt=True,
            tokenize=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        ).to(self._model.device)
        drawn = self._sampling
        sampling = {"temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": 0}
        if drawn.temperature == 0:
            sampling = dict.fromkeys(sampling)
        rows: dict[str, Any] = {"num_return_sequences": samples}
        if self._fast:
            from gdpo.integrations.trl.generation import of_rows

            device = self._model.device
            rows = of_rows(torch.arange(len(problems), device=device).repeat_interleave(samples))
        with torch.inference_mode():
            ids = self._model.generate(
                input_ids=read["input_ids"],
                attention_mask=read["attention_mask"],
                max_new_tokens=self._sampling.max_tokens,
                pad_token_id=self._tokenizer.pad_token_id,
                do_sample=drawn.temperature > 0,
                **sampling,
                **rows,
            )[:, read["input_ids"].shape[1] :]
        opened = map(left_open, self._tokenizer.batch_decode(read["input_ids"]))
        written = iter(ids.tolist())
        return [[self._response(next(written), tag) for _ in range(samples)] for tag in opened]

    def _response(self, ids: list[int], opened: str) -> Response:
        ends = self._model.generation_config.eos_token_id
        ends = {*ends} if isinstance(ends, list) else {ends}
        length = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
        kept = ids if length is None else ids[:length]
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        reason = "length" if length is None else "stop"
        return Response(text, len(kept), reason, opened=opened)


def _prepared(model: Any, device: str) -> bool:
    """Limit the memory of kernels on a CPU. Return whether fast generation supports the model."""
    if find_spec("trl") is None:  # as in an environment for verl
        return False
    import torch

    from gdpo.integrations.trl.generation import model_not_covered
    from gdpo.integrations.trl.logprobs import bound_kernels

    if device == "cpu" and model.dtype == torch.bfloat16:
        bound_kernels()
    return model_not_covered(model) is None


def check_sampling(sampling: Sampling) -> None:
    """Raise a ConfigError if a setting is out of range, or for several greedy samples."""
    wrong = [
        f"--{name.replace('_', '-')} must be {allowed}, got {getattr(sampling, name)}"
        for name, fine, allowed in (
            ("samples", sampling.samples >= 1, "1 or more"),
            ("temperature", 0 <= sampling.temperature < float("inf"), "0 or more"),
            ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
            ("max_tokens", sampling.max_tokens >= 1, "1 or more"),
        )
        if not fine
    ]
    if sampling.samples > 1 and sampling.temperature == 0:
        wrong.append(
            "--samples above 1 needs a --temperature above 0, because greedy samples are identical"
        )
    if wrong:
        raise ConfigError("; ".join(wrong))


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Stores how to start vLLM."""

    log: Path
    """File for vLLM's output while it starts."""
    max_model_len: int | None = None
    """Maximum combined length of prompt and response, in tokens. None: the model's maximum."""
    enforce_eager: bool = False
    """Whether to run without compilation: vLLM starts sooner and generates more slowly."""


class VllmModel:
    """Runs a model with vLLM, on the GPUs that vLLM finds."""

    def __init__(
        self, model: str, tokenizer: Any, sampling: Sampling, options: VllmOptions
    ) -> None:
        try:
            with _output_in(options.log):
                # vLLM ships types that change from version to version.
                from vllm import LLM, SamplingParams  # pyright: ignore

                self._model: Any = LLM(
                    model=model,
                    dtype="auto",
                    seed=sampling.seed,
                    max_model_len=options.max_model_len,
                    enforce_eager=options.enforce_eager,
                )
        except Exception as error:
            raise ConfigError(
                f"vLLM cannot start with {model}: {_cause(error, options.log)}. Its "
                f"output is in {options.log}. Try --max-model-len 4096 or --enforce-eager, or "
                "start `vllm serve` with the settings that the model needs and use --server"
            ) from error
        self._params: Any = SamplingParams
        self._tokenizer = tokenizer
        self._sampling = sampling

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: OnResponses = ignore
    ) -> list[list[Response]]:
        """Return the responses to each problem, empty if the prompt leaves no room for them."""
        template = self._tokenizer.apply_chat_template
        read = [template(p.prompt, add_generation_prompt=True, return_dict=True) for p in problems]
        prompts = [list(each["input_ids"]) for each in read]
        responses = [[NO_ROOM] * samples for _ in prompts]
        longest = self._model.model_config.max_model_len
        fitting = [i for i, ids in enumerate(prompts) if len(ids) < longest]
        params = self._params(
            n=samples,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            max_tokens=self._sampling.max_tokens,
            seed=seed,
        )
        given = [{"prompt_token_ids": prompts[i]} for i in fitting]
        generated = self._model.generate(given, params, use_tqdm=False) if given else []
        for i, of_prompt in zip(fitting, generated, strict=True):
            opened = left_open(self._tokenizer.decode(prompts[i]))
            responses[i] = []
            for one in of_prompt.outputs:
                reason = "length" if one.finish_reason == "length" else "stop"
                responses[i].append(Response(one.text, len(one.token_ids), reason, opened=opened))
        heard(len(prompts) * samples)
        return responses


_SHOWN = 300
"""Maximum number of characters of vLLM's error to show in a message."""

_ERROR = re.compile(r"\b((?:\w+\.)*\w+(?:Error|Exception): .+)")
_REFERS = "See root cause above"
"""Part of the error that vLLM raises if a process of its engine failed."""


def _cause(error: Exception, log: Path) -> str:
    """Return vLLM's error in one line. If an engine process failed, the cause is in the log."""
    raised = f"{type(error).__name__}: {error}"
    printed: list[str] = []
    if _REFERS in raised:
        printed = _ERROR.findall(log.read_text("utf-8", "replace"))
    causes = [line for line in printed if _REFERS not in line]
    return shorten(causes[-1] if causes else raised, _SHOWN, placeholder=" …")


@contextmanager
def _output_in(file: Path) -> Generator[None]:
    """Redirect the output of this process and its children to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    streams = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.flush()
    with file.open("wb") as output:
        kept = [(os.dup(number), number) for number in (1, 2)]
        for _, number in kept:
            os.dup2(output.fileno(), number)
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        for copy, number in kept:
            os.dup2(copy, number)
            os.close(copy)
