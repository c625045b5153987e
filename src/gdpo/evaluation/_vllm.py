"""A model that vLLM runs in this process.

Written against vLLM's documented interface for offline inference, and tested against a stand-in of
it. It has been run on the CPU build of vLLM 0.30.0.

References:
    https://docs.vllm.ai/en/stable/models/generative_models.html
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from gdpo.errors import ConfigError, MissingExtraError
from gdpo.evaluation._responders import Heard, Response, Sampling, nobody
from gdpo.tasks import Problem

_SHOWN = 300
"""Characters of vLLM's error that a message shows."""

_HOW = "vLLM (pip install vllm, in an environment of its own if its torch is another)"


def check_vllm() -> None:
    """Refuse where vLLM is not installed.

    Raises:
        MissingExtraError: It is not.
    """
    if find_spec("vllm") is None:
        raise MissingExtraError(_HOW, None, "for --engine vllm")


class VllmModel:
    """A model of vLLM, on the GPUs that it finds.

    Args:
        model: What `from_pretrained` takes; its tokenizer and chat template lie beside it.
        sampling: How responses are drawn.

    Raises:
        ConfigError: vLLM does not start with it.
    """

    def __init__(self, model: str, sampling: Sampling) -> None:
        # vLLM ships types that change from version to version.
        from vllm import LLM, SamplingParams  # pyright: ignore

        try:
            self._model: Any = LLM(model=model, dtype="auto", seed=sampling.seed)
        except Exception as error:
            raise ConfigError(
                f"vLLM does not start with {model}: {type(error).__name__}: "
                f"{str(error)[:_SHOWN]}. What it printed before may say more. Where it needs "
                "settings, start it yourself and ask it: `vllm serve MODEL --max-model-len 8192`, "
                "then gdpo evaluate MODEL --server http://localhost:8000/v1"
            ) from error
        self._params: Any = SamplingParams
        self._sampling = sampling

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: Heard = nobody
    ) -> list[list[Response]]:
        """The responses to each problem; vLLM batches them."""
        drawn = self._sampling
        params = self._params(
            n=samples,
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            max_tokens=drawn.max_tokens,
            seed=seed,
        )
        asked = [problem.prompt for problem in problems]
        answered = self._model.chat(asked, params, use_tqdm=False)
        heard(len(asked) * samples)
        return [[_read(one) for one in answer.outputs] for answer in answered]


def _read(output: Any) -> Response:
    reason = "length" if output.finish_reason == "length" else "stop"
    return Response(output.text, len(output.token_ids), reason)
