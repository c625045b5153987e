"""Gets responses from an OpenAI-compatible server: vLLM, SGLang, llama.cpp and others.

Responses are streamed if the server supports it. A streamed request has no time limit while data
keep arriving. The `openai` client resends a request if no response has begun. A response that was
interrupted is requested once more, because a partial response cannot be continued. After a long
silence, a request fails and is not resent: the server may still be working on it.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from gdpo._files import errors_name
from gdpo.errors import ConfigError, GdpoError, MissingExtraError
from gdpo.lab.evaluation.responders import NO_ROOM, OnResponses, Response, Sampling, ignore
from gdpo.lab.tasks import Problem
from gdpo.rewards.calls import wait_for
from gdpo.rewards.text import content_text

logger = logging.getLogger(__name__)

SLOWEST = 10.0
"""Lowest expected generation speed of one of many concurrent requests, in tokens/s. This speed sets
the default deadline. If the server does not stream, `max_tokens` tokens must be generated before
the deadline."""

_SHORTEST_DEADLINE = 600.0

_SHOWN = 300
"""Maximum number of characters of a server's reply to include in a message."""

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""Request fields for a stream that ends with the number of tokens."""

_STREAM = re.compile(r"\bstream")

_NO_ROOM_SAYS = ("context length", "context size")
"""Phrases that vLLM, SGLang and llama.cpp use in their error messages when a prompt leaves no room
for a response."""


class ServerError(GdpoError):
    """Raised if a server does not reply, or replies without a response."""


class _NoCountError(Exception):
    """Raised if a stream ended without the number of tokens."""


class _InterruptedError(Exception):
    """Raised if a stream ended before the response was complete."""


Request: TypeAlias = Mapping[str, Any]
"""The fields of a request for a chat completion."""

ANSWERED = ".answered.jsonl"
"""File with the responses of an unfinished part, deleted when the part is saved."""


class Answered:
    """Saves responses by request, so that a resumed evaluation does not repeat requests.

    Args:
        file: File to read and to append to. None: save nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._saved = dict(_read(file)) if file is not None and file.is_file() else {}

    def find(self, asked: Request) -> Response | None:
        """Return the saved response to this request, or None."""
        return self._saved.get(_key_of_answered(asked))

    def add(self, asked: Request, response: Response) -> None:
        """Save a response."""
        if self._file is None:
            return
        kept = [_key_of_answered(asked), response.text, response.num_tokens, response.finish_reason]
        with errors_name(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="ascii") as file:
                # Start a new line first, because the last line may be incomplete.
                file.write("\n" + json.dumps(kept))


def _key_of_answered(asked: Request) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Path) -> Iterator[tuple[str, Response]]:
    """Yield the saved responses. Skip unreadable lines: the last line may be incomplete."""
    for line in file.read_text(encoding="ascii", errors="replace").split("\n"):
        try:
            key, text, num_tokens, reason = json.loads(line)
        except (ValueError, TypeError):
            continue
        yield key, Response(text, num_tokens, reason)


@dataclass(frozen=True, slots=True)
class ServerModel:
    """Gets responses of a model on an OpenAI-compatible server.

    Args:
        url: Base URL with `/v1`, which is added to a URL without a path.
        deadline: Seconds without data after which a request fails. None: the time for `max_tokens`
            tokens at `SLOWEST` tokens/s, but at least 600 s.
        retries: How often the client resends a request without data.
        kept: Folder for the responses of unfinished parts.
    """

    url: str
    model: str
    sampling: Sampling
    at_once: int = 32
    deadline: float | None = None
    retries: int = 4
    kept: Path | None = None
    _known: set[str] = field(default_factory=set, repr=False, compare=False)
    """Properties of the server that were detected and logged."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"--server {self.url}: the URL must start with http:// or https://, such as "
                "http://localhost:8000/v1"
            )
        if self.deadline is not None and not 0 < self.deadline < float("inf"):
            raise ConfigError(
                f"--deadline must be a number of seconds above 0, got {self.deadline:g}"
            )
        if self.at_once < 1:
            raise ConfigError(f"--at-once must be 1 or more, got {self.at_once}")
        if find_spec("openai") is None:
            raise MissingExtraError("openai", "server", "to evaluate a model on a server")

    @property
    def address(self) -> str:
        """Base URL of the API."""
        url = self.url.rstrip("/")
        return url if urlsplit(url).path else f"{url}/v1"

    @property
    def silence(self) -> float:
        """Seconds without data after which a request fails."""
        return self.deadline or max(_SHORTEST_DEADLINE, self.sampling.max_tokens / SLOWEST)

    def respond(
        self, problems: Sequence[Problem], seed: int, samples: int, heard: OnResponses = ignore
    ) -> list[list[Response]]:
        """Return the responses to each problem, with one request per response.

        Raises:
            ServerError: If a request failed. Other responses in progress are saved first.
        """
        drawn = self.sampling
        asked: list[Request] = [
            {
                "model": self.model,
                "messages": problem.prompt,
                "temperature": drawn.temperature,
                "top_p": drawn.top_p,
                "max_tokens": drawn.max_tokens,
                "seed": seed + i,
            }
            for problem in problems
            for i in range(samples)
        ]
        responses = wait_for(self._all(asked, heard))
        return [responses[i : i + samples] for i in range(0, len(responses), samples)]

    async def _all(self, asked: Sequence[Request], heard: OnResponses) -> list[Response]:
        """Return the responses in order. After a failure, only running requests are finished."""
        from openai import AsyncOpenAI

        answered = Answered(self.kept and self.kept / ANSWERED)
        responses: dict[int, Response] = {}
        failures: list[ServerError] = []
        left = iter(enumerate(asked))

        async def work_off() -> None:
            for i, each in left:
                saved = answered.find(each)
                try:
                    responses[i] = saved or await self._answer(client, each)
                except ServerError as error:
                    failures.append(error)
                else:
                    if saved is None:
                        answered.add(each, responses[i])
                    heard(1)
                if failures:
                    return

        async with AsyncOpenAI(
            base_url=self.address,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=self.silence,
            max_retries=self.retries,
        ) as client:
            await asyncio.gather(*(work_off() for _ in range(min(self.at_once, len(asked)))))
        if failures:
            raise failures[0]
        return [responses[i] for i in range(len(asked))]

    async def _answer(self, client: Any, asked: Request) -> Response:
        import openai

        try:
            try:
                return await self._ask(client, asked)
            except _InterruptedError:
                return await self._ask(client, asked)
        except (TimeoutError, openai.APITimeoutError) as error:
            raise ServerError(
                f"{self.url} sent nothing for {self.silence:g} s. Finished responses are saved: "
                "rerun the same command with a longer --deadline or a smaller --at-once"
            ) from error
        except _InterruptedError as error:
            raise ServerError(
                f"{self.url} interrupted a response, and its repetition, too: {error}. Finished "
                "responses are saved: check the server, then rerun the same command"
            ) from error
        except json.JSONDecodeError as error:
            raise ServerError(
                f"{self.url} sent a reply that is not JSON ({error}). Use an OpenAI-compatible "
                "server"
            ) from error
        except openai.APIError as error:
            if not _leaves_no_room(error):
                raise ServerError(self._why(error)) from error
            self._warn_once(
                "no room",
                "has no room for a response to a prompt, so the response is empty: "
                f"{_said(error)[:_SHOWN]}",
            )
            return NO_ROOM

    async def _ask(self, client: Any, asked: Request) -> Response:
        """Send a request, for a stream if the server supports it."""
        import openai

        if "no stream" not in self._known:
            try:
                return await _of_stream(await self._begun(client, {**asked, **_STREAMED}))
            except _NoCountError:
                self._warn_once("no stream", "streams without reporting the token count (usage)")
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not _STREAM.search(_said(error)):
                    raise
                self._warn_once("no stream", f"does not stream: {_said(error)[:_SHOWN]}")
        return _of_reply(await self._begun(client, asked))

    async def _begun(self, client: Any, body: Request) -> Any:
        async with asyncio.timeout(self.silence):  # the client would resend a request in time-out
            return await client.chat.completions.create(**body)

    def _why(self, error: Any) -> str:
        code, said = getattr(error, "status_code", None), _said(error)[:_SHOWN]
        if code is None or code in (408, 409, 429) or code >= 500:  # which the client resends
            return (
                f"{self.url} did not respond after {self.retries + 1} tries: {said}. "
                "Finished responses are saved: start the server, then rerun the same command"
            )
        message = f"{self.url} refuses the request: {said}"
        if code in (401, 403):
            message += ". Set OPENAI_API_KEY to a key that the server accepts"
        if code == 404 and not self.address.endswith("/v1"):
            message += f". The URL must end with /v1: try --server {self.address}/v1"
        return message

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._known:
            self._known.add(what)
            logger.warning("%s %s", self.url, message)


async def _of_stream(stream: Any) -> Response:
    import openai

    texts: list[str] = []
    tokens, reason = None, None
    try:
        async for event in stream:
            for choice in event.choices or ():
                texts.append(choice.delta.content or "")
                reason = choice.finish_reason or reason
            if event.usage:
                tokens = int(event.usage.completion_tokens)
    except (openai.APIError, json.JSONDecodeError) as error:
        if isinstance(error, openai.APITimeoutError) or _leaves_no_room(error):
            raise
        raise _InterruptedError(_said(error)) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ServerError(
            f"the server's stream has events that are not chat.completion.chunk "
            f"({type(error).__name__}: {error}). Use an OpenAI-compatible server"
        ) from error
    if tokens is not None:
        return Response("".join(texts), tokens, _reason(reason))
    closed = bool(texts) and reason is None
    raise _InterruptedError("the connection was closed") if closed else _NoCountError


def _of_reply(answer: Any) -> Response:
    try:
        choice = answer.choices[0]
        text = content_text(choice.message.content)
        return Response(text, int(answer.usage.completion_tokens), _reason(choice.finish_reason))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ServerError(
            f"the server's reply lacks choices[0].message.content or usage.completion_tokens: "
            f"{str(answer)[:_SHOWN]}. Use an OpenAI-compatible server"
        ) from error


def _reason(given: Any) -> str:
    return "length" if given == "length" else "stop"


def _leaves_no_room(error: Exception) -> bool:
    return any(said in _said(error) for said in _NO_ROOM_SAYS)


def _said(error: Any) -> str:
    """Return the server's text, or the error with its cause if the server sent none."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return f"{error.status_code} {error.response.text}"
    cause = error.__cause__ or getattr(error, "body", None)
    return str(error) if cause is None else f"{error} ({cause})"
