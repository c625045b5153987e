"""Responses of a server that speaks OpenAI's chat protocol: vLLM, SGLang, llama.cpp and others.

An answer is streamed where the server can: so a request may take as long as it takes while
something comes, and what ends it is silence. Part of an answer cannot be gone on with, so a request
is sent again only where nothing has come, or once where an answer broke off. After a silence it is
not sent again: the server may still be at work on it.
"""

import http.client
import json
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gdpo.errors import ConfigError
from gdpo.evaluation._answered import ANSWERED, Answered
from gdpo.evaluation._chat_answer import (
    STREAMED,
    BrokenOffError,
    NoCountError,
    ServerError,
    ToldError,
    read_answer,
)
from gdpo.evaluation._responders import Heard, Response, Sampling, nobody
from gdpo.evaluation._side_by_side import side_by_side
from gdpo.tasks import Problem

logger = logging.getLogger(__name__)

SLOWEST = 10.0
"""Tokens/s that one of many requests to a server gets at least: the deadline of a server that does
not stream allows for `max_tokens` of them."""

_SHORTEST_DEADLINE = 600.0

_TRANSIENT = (408, 429, 500, 502, 503, 504)
_BAD_REQUEST = 400
_NOT_FOUND = 404
_REFUSES_A_FIELD = (400, 422)
_STREAM = re.compile(r"\bstream")

_READ = 10_000
"""Bytes of a refusal that are read."""

_NO_ROOM_SAYS = ("context length", "context size")
"""What vLLM, SGLang and llama.cpp say of a prompt that leaves no room for an answer."""

_NO_ROOM = Response("", 0, "length")
"""What such a prompt counts as, as late in a long conversation."""


@dataclass(frozen=True, slots=True)
class Server:
    """A chat server.

    Args:
        url: Up to and with `/v1`, which is added to an address without a path.
        model: What the server calls the model.
        sampling: How responses are drawn.
        at_once: Requests that wait side by side.
        deadline: Seconds of silence that end a request. None: as long as `max_tokens` take at
            `SLOWEST`, and 600 at least.
        retries: How often a request is sent again to which nothing has come.
        kept: Folder in which each response is kept when it is there, until the part is written;
            None: nowhere.
    """

    url: str
    model: str
    sampling: Sampling
    at_once: int = 32
    deadline: float | None = None
    retries: int = 3
    kept: Path | None = None
    _known: set[str] = field(default_factory=set[str], repr=False, compare=False)
    """What was found out about the server, and told."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"--server {self.url}: write the address with http:// or https://, up to /v1"
            )
        if self.deadline is not None and not 0 < self.deadline < float("inf"):
            raise ConfigError(f"--deadline must be seconds above 0, got {self.deadline:g}")
        if self.at_once < 1:
            raise ConfigError(f"--at-once must be 1 or more, got {self.at_once}")

    @property
    def address(self) -> str:
        """The address that paths of the protocol follow."""
        url = self.url.rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    @property
    def silence(self) -> float:
        """Seconds of silence that end a request."""
        return self.deadline or max(_SHORTEST_DEADLINE, self.sampling.max_tokens / SLOWEST)

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: Heard = nobody
    ) -> list[list[Response]]:
        """The responses to each problem, each asked for by itself.

        Raises:
            ServerError: One could not be had. Those that were in progress are there then, too.
        """
        answered = Answered(self.kept and self.kept / ANSWERED)
        asked = [self._request(problem, seed + i) for problem in problems for i in range(samples)]
        responses = side_by_side(
            lambda each: self._answer(each, answered), asked, at_once=self.at_once, done=heard
        )
        return [responses[i : i + samples] for i in range(0, len(responses), samples)]

    def _request(self, problem: Problem, seed: int) -> Mapping[str, Any]:
        drawn = self.sampling
        return {
            "model": self.model,
            "messages": problem.prompt,
            "temperature": drawn.temperature,
            "top_p": drawn.top_p,
            "max_tokens": drawn.max_tokens,
            "seed": seed,
        }

    def _answer(self, asked: Mapping[str, Any], answered: Answered) -> Response:
        if there := answered.find(asked):
            return there
        response = self._insist(asked)
        answered.add(asked, response)
        return response

    def _insist(self, asked: Mapping[str, Any]) -> Response:
        tries, left = 1, self.retries
        while True:
            try:
                return self._ask(asked)
            except _MayPassError as error:
                left = min(left, 1) if error.late else left
                if not left:
                    raise ServerError(
                        f"{self.url} does not answer after {tries} tries: {error}. What is done "
                        "is kept: start the server and give the same command again"
                    ) from error
                time.sleep(2.0 ** (tries - 1))
                tries, left = tries + 1, left - 1

    def _ask(self, asked: Mapping[str, Any]) -> Response:
        """One try; streamed, until it is seen that the server cannot."""
        streamed = "no stream" not in self._known
        try:
            return self._send({**asked, **STREAMED} if streamed else asked)
        except NoCountError:
            self._tell_once("no stream", "streams without the number of tokens (usage)")
        except ToldError as error:
            if not (streamed and error.code in _REFUSES_A_FIELD and _STREAM.search(error.text)):
                return self._refused(error)
            self._tell_once("no stream", f"does not stream: {error}")
        return self._ask(asked)

    def _send(self, body: Mapping[str, Any]) -> Response:
        request = urllib.request.Request(
            f"{self.address}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **_key()},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.silence) as answer:
                return read_answer(answer)
        except urllib.error.HTTPError as error:
            raise ToldError(error.code, f"{error.reason}: {_text_of(error)}") from error
        except TimeoutError as error:
            raise ServerError(
                f"{self.url} has sent nothing for {self.silence:g} s. What is done is kept: give "
                "the same command again, with a longer --deadline or fewer requests --at-once"
            ) from error
        except BrokenOffError as error:
            raise _MayPassError(str(error), late=error.pieces > 0) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _MayPassError(f"{type(error).__name__}: {error}") from error

    def _refused(self, error: ToldError) -> Response:
        """What an error of the server comes to: no room for an answer, another try, or the end."""
        if error.code in _TRANSIENT:
            raise _MayPassError(str(error), late=error.late) from error
        if error.code == _BAD_REQUEST and any(said in error.text for said in _NO_ROOM_SAYS):
            self._tell_once("no room", f"has no room for an answer, which counts as empty: {error}")
            return _NO_ROOM
        told = str(error)
        if error.code == _NOT_FOUND and not self.address.endswith("/v1"):
            told += f". The address goes up to /v1: try --server {self.address}/v1"
        raise ServerError(f"{self.url} refuses the request: {told}") from error

    def _tell_once(self, what: str, told: str) -> None:
        if what not in self._known:
            self._known.add(what)
            logger.warning("%s %s", self.url, told)


class _MayPassError(Exception):
    """Worth another try.

    Args:
        told: What went wrong.
        late: After something of the answer had come.
    """

    def __init__(self, told: str, *, late: bool = False) -> None:
        super().__init__(told)
        self.late = late


def _key() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _text_of(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(_READ).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
