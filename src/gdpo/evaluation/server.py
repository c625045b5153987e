"""Responses of a server that speaks OpenAI's chat protocol: vLLM, SGLang, llama.cpp and others.

An answer is streamed where the server can: so a request may take as long as it takes while
something comes, and what ends it is silence. Part of an answer cannot be gone on with, so a request
is sent again only where nothing has come, or once where an answer broke off. After a silence it is
not sent again: the server may still be at work on it.
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
from gdpo.evaluation.responders import OnResponses, Response, Sampling, ignore
from gdpo.tasks import Problem

T = TypeVar("T")


R = TypeVar("R")


def side_by_side(
    work: Callable[[T], R], items: Sequence[T], *, at_once: int, done: Callable[[int], None]
) -> list[R]:
    """What the work gives for each item, in their order.

    Once one fails, none is begun any more, those in progress are waited for, and the error is
    raised. An interruption ends at once: its threads end with the process, or with what they do.

    Args:
        work: Called in threads.
        items: What it is called with.
        at_once: Threads.
        done: Called here with 1 whenever one is done.
    """
    jobs: list[Future[R]] = [Future() for _ in items]
    left = iter(list(zip(jobs, items, strict=True)))  # next() of it is atomic
    for _ in range(min(at_once, len(jobs))):
        threading.Thread(target=_work_off, args=(left, work, jobs), daemon=True).start()
    try:
        for _ in _ended(jobs):
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
            except BaseException as error:  # noqa: BLE001  it is raised where the result is wanted
                _cancel(jobs)
                job.set_exception(error)


def _ended(jobs: Iterable[Future[R]]) -> Iterator[R]:
    """The results as they come. One that was cancelled has none, and another one an error."""
    for job in as_completed(jobs):
        if not job.cancelled():
            yield job.result()


def _cancel(jobs: Iterable[Future[R]]) -> None:
    for job in jobs:
        job.cancel()


SHOWN = 300
"""Characters of a server's answer that a message shows."""


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""What asks for a stream, and for the number of tokens at its end."""


_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""What a line of a stream begins with. JSON begins with none of them."""


class ServerError(GdpoError):
    """A server did not answer, or not what was asked."""


class BrokenOffError(Exception):
    """A stream ended before its answer did.

    Args:
        why: What ended it.
        pieces: How much of the answer had come.
    """

    def __init__(self, why: object, pieces: int) -> None:
        super().__init__(f"the answer broke off after {pieces:,} pieces: {why}")
        self.pieces = pieces


class NoCountError(Exception):
    """A stream ended without the number of tokens."""


class ReplyError(Exception):
    """The server answers with an error, or a stream goes on with one.

    Args:
        code: The HTTP status, or what the stream has in its place; 500 where it has none.
        text: What the server says.
        late: After something of the answer had come.
    """

    def __init__(self, code: int, text: str, *, late: bool = False) -> None:
        super().__init__(f"{code} {text[:SHOWN]}")
        self.code = code
        self.text = text
        self.late = late


def read_answer(lines: Iterable[bytes]) -> Response:
    """The response in an answer, line by line as it comes in.

    Raises:
        ServerError: It is JSON, and no response.
        ValueError: It is neither a stream nor JSON.
        TimeoutError: The lines raise it.
        BrokenOffError: A stream ended too early.
        NoCountError: A stream is whole, but for `usage.completion_tokens`.
        ReplyError: A stream holds an error.
    """
    coming = (line for line in lines if line.strip())
    first = next(coming, b"")
    if not first.startswith(_FIELDS):
        return _of_json(json.loads(b"".join((first, *coming))))
    return _of_stream(chain([first], coming))


def _of_json(answer: Any) -> Response:
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] or ""
        tokens = int(answer["usage"]["completion_tokens"])
        return Response(str(text), tokens, _reason(choice.get("finish_reason")))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"the server's answer has no choices[0].message.content or no "
            f"usage.completion_tokens: {str(answer)[:SHOWN]}"
        ) from error


def _reason(given: Any) -> str:
    return "length" if given == "length" else "stop"


@dataclass(slots=True)
class _Coming:
    """What has come of an answer."""

    texts: list[str] = field(default_factory=list[str])
    pieces: int = 0
    tokens: int | None = None
    reason: Any = None

    def take(self, event: Any) -> None:
        """One event more."""
        if error := event.get("error"):
            raise _reply_error(error, late=self.pieces > 0)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            self.texts.append(delta.get("content") or "")
            # Thoughts, which some servers keep apart, are pieces as well.
            self.pieces += any(value for key, value in delta.items() if key != "role")
            self.reason = choice.get("finish_reason") or self.reason
        if usage := event.get("usage"):
            self.tokens = int(usage["completion_tokens"])


def _of_stream(lines: Iterable[bytes]) -> Response:
    coming = _Coming()
    try:
        ended = _took_all(lines, coming)
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        raise BrokenOffError(f"{type(error).__name__}: {error}", coming.pieces) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(
            f"the server's stream is none of chat.completion.chunk: {type(error).__name__}: {error}"
        ) from error
    if ended and coming.tokens is None:
        raise NoCountError
    if coming.tokens is None or not (ended or coming.reason):
        raise BrokenOffError("the connection was closed", coming.pieces)
    return Response("".join(coming.texts), coming.tokens, _reason(coming.reason))


def _took_all(lines: Iterable[bytes], coming: _Coming) -> bool:
    """Take in the events, and return whether their end was marked."""
    for line in lines:
        name, _, value = line.partition(b":")
        if name == b"data":
            if value.strip() == b"[DONE]":
                return True
            coming.take(json.loads(value))
    return False


def _reply_error(error: Any, *, late: bool) -> ReplyError:
    code = error.get("code") if isinstance(error, dict) else None
    return ReplyError(code if isinstance(code, int) else 500, json.dumps(error), late=late)


ANSWERED = ".answered.jsonl"
"""The file, beside the parts of a benchmark. It goes once the part is written."""


class Answered:
    """What was answered, by what was asked.

    Args:
        file: Where it is kept, and read from if it is there; None: nowhere.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._writing = threading.Lock()
        self._there = dict(_read(file)) if file is not None and file.is_file() else {}

    def find(self, asked: Mapping[str, Any]) -> Response | None:
        """The response to this request, if there is one."""
        return self._there.get(_key_of_answered(asked))

    def add(self, asked: Mapping[str, Any], response: Response) -> None:
        """Keep a response.

        Raises:
            OSError: It cannot be written.
        """
        if self._file is None:
            return
        kept = [_key_of_answered(asked), response.text, response.num_tokens, response.finish_reason]
        with self._writing, errors_name(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="ascii") as file:
                # The end of a line comes first: the one before may be cut off.
                file.write("\n" + json.dumps(kept))


def _key_of_answered(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Path) -> Iterator[tuple[str, Response]]:
    """What can be read: the last line may be cut off."""
    for line in file.read_text(encoding="ascii", errors="replace").split("\n"):
        try:
            key, text, num_tokens, reason = json.loads(line)
        except (ValueError, TypeError):
            continue
        yield key, Response(text, num_tokens, reason)


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
        self,
        problems: Sequence[Problem],
        seed: int,
        samples: int,
        on_responses: OnResponses = ignore,
    ) -> list[list[Response]]:
        """The responses to each problem, each asked for by itself.

        Raises:
            ServerError: One could not be had. Those that were in progress are there then, too.
        """
        answered = Answered(self.kept and self.kept / ANSWERED)
        asked = [self._request(problem, seed + i) for problem in problems for i in range(samples)]
        responses = side_by_side(
            lambda each: self._answer(each, answered),
            asked,
            at_once=self.at_once,
            done=on_responses,
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
        except ReplyError as error:
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
            raise ReplyError(error.code, f"{error.reason}: {_text_of(error)}") from error
        except TimeoutError as error:
            raise ServerError(
                f"{self.url} has sent nothing for {self.silence:g} s. What is done is kept: give "
                "the same command again, with a longer --deadline or fewer requests --at-once"
            ) from error
        except BrokenOffError as error:
            raise _MayPassError(str(error), late=error.pieces > 0) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _MayPassError(f"{type(error).__name__}: {error}") from error

    def _refused(self, error: ReplyError) -> Response:
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
