"""Responses of a server that speaks OpenAI's chat protocol: vLLM, SGLang, llama.cpp and others."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gdpo.errors import ConfigError, GdpoError
from gdpo.evaluation._responders import Response, Sampling
from gdpo.tasks import Sample

_SHOWN = 300
"""Characters of a server's answer that a message shows."""

_TRANSIENT = (408, 429, 500, 502, 503, 504)
_BAD_REQUEST = 400
_NOT_FOUND = 404

_NO_ROOM = {
    "choices": [{"message": {"content": ""}, "finish_reason": "length"}],
    "usage": {"completion_tokens": 0},
}
"""What a prompt counts as that leaves no room for an answer, as late in a long conversation."""


class ServerError(GdpoError):
    """A server did not answer, or not what was asked."""


@dataclass(frozen=True, slots=True)
class Server:
    """A chat server.

    Args:
        url: Up to and with `/v1`.
        model: What the server calls the model.
        sampling: How responses are drawn.
        at_once: Requests that wait side by side.
        deadline: Seconds that one request may take.
        retries: How often a request is sent again after a failure that may pass.
    """

    url: str
    model: str
    sampling: Sampling
    at_once: int = 32
    deadline: float = 600.0
    retries: int = 3

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"--server {self.url}: write the address with http:// or https://, up to /v1"
            )

    def respond(self, problems: Sequence[Sample], seed: int, samples: int) -> list[list[Response]]:
        """The responses to each problem, each asked for by itself.

        Raises:
            ServerError: One could not be had.
        """
        asked = [(problem, seed + i) for problem in problems for i in range(samples)]
        with ThreadPoolExecutor(self.at_once) as threads:
            responses = list(threads.map(lambda each: self._one(*each), asked))
        return [responses[i : i + samples] for i in range(0, len(responses), samples)]

    def _one(self, problem: Sample, seed: int) -> Response:
        for again in range(self.retries + 1):
            try:
                return _read(self._ask(problem, seed))
            except _MayPassError as error:
                if again == self.retries:
                    raise ServerError(
                        f"{self.url} does not answer after {again + 1} tries: {error}. What is "
                        "done is kept: start the server and give the same command again"
                    ) from error
                time.sleep(2.0**again)
        raise AssertionError("unreachable")

    def _ask(self, problem: Sample, seed: int) -> Any:
        drawn = self.sampling
        body = {
            "model": self.model,
            "messages": problem.prompt,
            "temperature": drawn.temperature,
            "top_p": drawn.top_p,
            "max_tokens": drawn.max_tokens,
            "seed": seed,
        }
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **_key()},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.deadline) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told = f"{error.code} {error.reason}: {error.read()[:_SHOWN]!r}"
            if error.code in _TRANSIENT:
                raise _MayPassError(told) from error
            if error.code == _BAD_REQUEST and "context length" in told:
                return _NO_ROOM
            if error.code == _NOT_FOUND and not self.url.rstrip("/").endswith("/v1"):
                told += f". The address goes up to /v1: try --server {self.url.rstrip('/')}/v1"
            raise ServerError(f"{self.url} refuses the request: {told}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _MayPassError(f"{type(error).__name__}: {error}") from error


class _MayPassError(Exception):
    """Worth another try."""


def _key() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read(answer: Any) -> Response:
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] or ""
        tokens = int(answer["usage"]["completion_tokens"])
        reason = "length" if choice.get("finish_reason") == "length" else "stop"
        return Response(str(text), tokens, reason)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerError(
            f"the server's answer has no choices[0].message.content or no "
            f"usage.completion_tokens: {str(answer)[:_SHOWN]}"
        ) from error
