"""Reads what a chat server answers: a stream of events, or one JSON object."""

import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gdpo.errors import GdpoError
from gdpo.evaluation._responders import Response

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


class ToldError(Exception):
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
        ToldError: A stream holds an error.
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


def _reason(told: Any) -> str:
    return "length" if told == "length" else "stop"


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
            raise _told(error, late=self.pieces > 0)
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


def _told(error: Any, *, late: bool) -> ToldError:
    code = error.get("code") if isinstance(error, dict) else None
    return ToldError(code if isinstance(code, int) else 500, json.dumps(error), late=late)
