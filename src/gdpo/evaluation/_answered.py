"""Responses of the part in progress, kept as they come in: what is interrupted asks for the rest.

A response is found again by what was asked: model, messages, sampling and seed. So conversations
are gone through again, too, without asking for a message twice.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdpo._files import errors_name
from gdpo.evaluation._responders import Response

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
        return self._there.get(_key(asked))

    def add(self, asked: Mapping[str, Any], response: Response) -> None:
        """Keep a response.

        Raises:
            OSError: It cannot be written.
        """
        if self._file is None:
            return
        kept = [_key(asked), response.text, response.num_tokens, response.finish_reason]
        with self._writing, errors_name(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="ascii") as file:
                # The end of a line comes first: the one before may be cut off.
                file.write("\n" + json.dumps(kept))


def _key(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Path) -> Iterator[tuple[str, Response]]:
    """What can be read: the last line may be cut off."""
    for line in file.read_text(encoding="ascii", errors="replace").split("\n"):
        try:
            key, text, num_tokens, reason = json.loads(line)
        except (ValueError, TypeError):
            continue
        yield key, Response(text, num_tokens, reason)
