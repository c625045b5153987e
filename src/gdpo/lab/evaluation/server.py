"""Gets responses from an OpenAI-compatible server: vLLM, SGLang, llama.cpp and others.

Responses are streamed if the server supports it. A streamed request has no time limit while data
keep arriving. A request is resent several times if no data arrived, but only once if a response was
interrupted, because a partial response cannot be continued. After a long silence, it fails and is
not resent: the server may still be working on it.
"""

import hashlib
import http.client
import json
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gdpo._files import errors_name
from gdpo.errors import ConfigError, GdpoError
from gdpo.lab.evaluation.responders import NO_ROOM, OnResponses, Response, Sampling, ignore
from gdpo.lab.tasks import Problem
from gdpo.rewards.text import content_text

T = TypeVar("T")


R = TypeVar("R")


def side_by_side(
    work: Callable[[T], R], items: Sequence[T], *, at_once: int, done: Callable[[int], None]
) -> list[R]:
    """Apply `work` to the items in parallel threads, and return the results in order.

    After a failure, no more items start, and the error is raised when the running ones have
    finished. A KeyboardInterrupt is raised immediately. `done` is called with 1 after each item, in
    the calling thread.
    """
    jobs: list[Future[R]] = [Future() for _ in items]
    left = iter(list(zip(jobs, items, strict=True)))  # next() on a list iterator is atomic
    for _ in range(min(at_once, len(jobs))):
        threading.Thread(target=_work_off, args=(left, work, jobs), daemon=True).start()
    try:
        for job in as_completed(jobs):
            if not job.cancelled():
                job.result()
                done(1)
    except Exception:
        wait(jobs)
        raise
    finally:
        _cancel(jobs)
    return [job.result() for job in jobs]


def _work_off(
    left: Iterable[tuple[Future[R], T]], work: Callable[[T], R], jobs: Iterable[Future[R]]
) -> None:
    for job, item in left:
        if job.set_running_or_notify_cancel():
            try:
                job.set_result(work(item))
            except BaseException as error:  # noqa: BLE001  raised again by result()
                _cancel(jobs)
                job.set_exception(error)


def _cancel(jobs: Iterable[Future[R]]) -> None:
    for job in jobs:
        job.cancel()


SHOWN = 300
"""Maximum number of characters of a server's reply to include in a message."""


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""Request fields for a stream that ends with the number of tokens."""


_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Possible prefixes of a line in a stream. JSON text never starts with any of them."""


class ServerError(GdpoError):
    """Raised if a server does not reply, or replies without a response."""


class BrokenOffError(Exception):
    """Raised if a stream ended before the response was complete."""

    def __init__(self, why: object, pieces: int) -> None:
        super().__init__(f"the response ended early, after {pieces:,} pieces: {why}")
        self.pieces = pieces


class NoCountError(Exception):
    """Raised if a stream ended without the number of tokens."""


class ReplyError(Exception):
    """Raised if a reply or a stream contains an error.

    Args:
        code: HTTP status, or the code in the stream, or 500.
        late: Whether part of the response arrived before the error.
    """

    def __init__(self, code: int, text: str, *, late: bool = False) -> None:
        super().__init__(f"{code} {text[:SHOWN]}")
        self.code = code
        self.text = text
        self.late = late


def read_answer(lines: Iterable[bytes]) -> Response:
    """Read a response from the lines of a server's reply as they arrive.

    Raises:
        ServerError: If the reply is JSON without a response.
        ValueError: If the reply is neither a stream nor JSON.
        TimeoutError: If reading a line takes too long.
        BrokenOffError, NoCountError, ReplyError: See these classes.
    """
    coming = (line for line in lines if line.strip())
    first = next(coming, b"")
    if not first.startswith(_FIELDS):
        return _of_json(json.loads(b"".join((first, *coming))))
    return _of_stream(chain([first], coming))


def _of_json(answer: Any) -> Response:
    try:
        choice = answer["choices"][0]
        text = content_text(choice["message"]["content"])
        tokens = int(answer["usage"]["completion_tokens"])
        return Response(str(text), tokens, _reason(choice.get("finish_reason")))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"the server's reply lacks choices[0].message.content or usage.completion_tokens: "
            f"{str(answer)[:SHOWN]}. Use an OpenAI-compatible server"
        ) from error


def _reason(given: Any) -> str:
    return "length" if given == "length" else "stop"


@dataclass(slots=True)
class _Coming:
    """Collects the parts of a streamed response."""

    texts: list[str] = field(default_factory=list[str])
    pieces: int = 0
    tokens: int | None = None
    reason: Any = None

    def take_all(self, lines: Iterable[bytes]) -> bool:
        """Add all events. Return whether the stream had an end marker."""
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                if value.strip() == b"[DONE]":
                    return True
                self._take(json.loads(value))
        return False

    def _take(self, event: Any) -> None:
        if error := event.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            code = code if isinstance(code, int) else 500
            raise ReplyError(code, json.dumps(error), late=self.pieces > 0)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            self.texts.append(delta.get("content") or "")
            # Some servers send thinking in a separate field, which counts as a piece too.
            self.pieces += any(value for key, value in delta.items() if key != "role")
            self.reason = choice.get("finish_reason") or self.reason
        if usage := event.get("usage"):
            self.tokens = int(usage["completion_tokens"])


def _of_stream(lines: Iterable[bytes]) -> Response:
    coming = _Coming()
    try:
        ended = coming.take_all(lines)
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise BrokenOffError(f"{type(error).__name__}: {error}", coming.pieces) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"the server's stream has events that are not chat.completion.chunk "
            f"({type(error).__name__}: {error}). Use an OpenAI-compatible server"
        ) from error
    if ended and coming.tokens is None:
        raise NoCountError
    if coming.tokens is None or not (ended or coming.reason):
        raise BrokenOffError("the connection was closed", coming.pieces)
    return Response("".join(coming.texts), coming.tokens, _reason(coming.reason))


ANSWERED = ".answered.jsonl"
"""File with the responses of an unfinished part, deleted when the part is saved."""


class Answered:
    """Saves responses by request, so that a resumed evaluation does not repeat requests.

    Args:
        file: File to read and to append to. None: save nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._writing = threading.Lock()
        self._saved = dict(_read(file)) if file is not None and file.is_file() else {}

    def find(self, asked: Mapping[str, Any]) -> Response | None:
        """Return the saved response to this request, or None."""
        return self._saved.get(_key_of_answered(asked))

    def add(self, asked: Mapping[str, Any], response: Response) -> None:
        """Save a response."""
        if self._file is None:
            return
        kept = [_key_of_answered(asked), response.text, response.num_tokens, response.finish_reason]
        with self._writing, errors_name(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="ascii") as file:
                # Start a new line first, because the last line may be incomplete.
                file.write("\n" + json.dumps(kept))


def _key_of_answered(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Path) -> Iterator[tuple[str, Response]]:
    """Yield the saved responses. Skip unreadable lines: the last line may be incomplete."""
    for line in file.read_text(encoding="ascii", errors="replace").split("\n"):
        try:
            key, text, num_tokens, reason = json.loads(line)
        except (ValueError, TypeError):
            continue
        yield key, Response(text, num_tokens, reason)


logger = logging.getLogger(__name__)

SLOWEST = 10.0
"""Lowest expected generation speed of one of many concurrent requests, in tokens/s. This speed sets
the default deadline. If the server does not stream, `max_tokens` tokens must be generated before
the deadline."""

_SHORTEST_DEADLINE = 600.0

_TRANSIENT = (408, 429, 500, 502, 503, 504)
_BAD_REQUEST = 400
_NOT_FOUND = 404
_REFUSES_A_FIELD = (400, 422)
_STREAM = re.compile(r"\bstream")

_READ = 10_000
"""Maximum number of bytes to read from an error reply."""

_NO_ROOM_SAYS = ("context length", "context size")
"""Phrases that vLLM, SGLang and llama.cpp use in their error messages when a prompt leaves no room
for a response."""


@dataclass(frozen=True, slots=True)
class Server:
    """Gets responses from an OpenAI-compatible server.

    Args:
        url: Base URL with `/v1`, which is added to a URL without a path.
        deadline: Seconds without data after which a request fails. None: the time for `max_tokens`
            tokens at `SLOWEST` tokens/s, but at least 600 s.
        retries: How often a request without data is resent.
        kept: Folder for the responses of unfinished parts.
    """

    url: str
    model: str
    sampling: Sampling
    at_once: int = 32
    deadline: float | None = None
    retries: int = 3
    kept: Path | None = None
    _known: set[str] = field(default_factory=set[str], repr=False, compare=False)
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
        answered = Answered(self.kept and self.kept / ANSWERED)
        drawn = self.sampling
        asked: list[Mapping[str, Any]] = [
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
        responses = side_by_side(
            lambda each: self._answer(each, answered), asked, at_once=self.at_once, done=heard
        )
        return [responses[i : i + samples] for i in range(0, len(responses), samples)]

    def _answer(self, asked: Mapping[str, Any], answered: Answered) -> Response:
        if saved := answered.find(asked):
            return saved
        tries, left = 1, self.retries
        while True:
            try:
                response = self._ask(asked)
                break
            except _MayPassError as error:
                left = min(left, 1) if error.late else left
                if not left:
                    raise ServerError(
                        f"{self.url} did not respond after {tries} tries: {error}. Finished "
                        "responses are saved: start the server, then rerun the same command"
                    ) from error
                time.sleep(2.0 ** (tries - 1))
                tries, left = tries + 1, left - 1
        answered.add(asked, response)
        return response

    def _ask(self, asked: Mapping[str, Any]) -> Response:
        """Send a request once, for a stream if the server supports it."""
        streamed = "no stream" not in self._known
        try:
            return self._send({**asked, **STREAMED} if streamed else asked)
        except NoCountError:
            self._warn_once("no stream", "streams without reporting the token count (usage)")
        except ReplyError as error:
            if not (streamed and error.code in _REFUSES_A_FIELD and _STREAM.search(error.text)):
                return self._refused(error)
            self._warn_once("no stream", f"does not stream: {error}")
        return self._ask(asked)

    def _send(self, body: Mapping[str, Any]) -> Response:
        key = os.environ.get("OPENAI_API_KEY")
        request = urllib.request.Request(
            f"{self.address}/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=self.silence) as answer:
                return read_answer(answer)
        except urllib.error.HTTPError as error:
            raise ReplyError(error.code, f"{error.reason}: {_text_of(error)}") from error
        except TimeoutError as error:
            raise ServerError(
                f"{self.url} sent nothing for {self.silence:g} s. Finished responses are saved: "
                "rerun the same command with a longer --deadline or a smaller --at-once"
            ) from error
        except BrokenOffError as error:
            raise _MayPassError(str(error), late=error.pieces > 0) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _MayPassError(f"{type(error).__name__}: {error}") from error

    def _refused(self, error: ReplyError) -> Response:
        """Return an empty response if the prompt leaves no room for one, or raise an error."""
        if error.code in _TRANSIENT:
            raise _MayPassError(str(error), late=error.late) from error
        if error.code == _BAD_REQUEST and any(said in error.text for said in _NO_ROOM_SAYS):
            self._warn_once(
                "no room",
                f"has no room for a response to a prompt, so the response is empty: {error}",
            )
            return NO_ROOM
        message = f"{self.url} refuses the request: {error}"
        if error.code == _NOT_FOUND and not self.address.endswith("/v1"):
            message += f". The URL must end with /v1: try --server {self.address}/v1"
        raise ServerError(message) from error

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._known:
            self._known.add(what)
            logger.warning("%s %s", self.url, message)


class _MayPassError(Exception):
    """Raised if a failed request may succeed if resent."""

    def __init__(self, reason: str, *, late: bool = False) -> None:
        super().__init__(reason)
        self.late = late


def _text_of(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(_READ).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
