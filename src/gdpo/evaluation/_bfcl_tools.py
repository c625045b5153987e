"""Runs the calls of BFCL conversations against its tools, which live in memory: files, cars, trips.

BFCL hands the text of a call to `eval`. What gets there from here is written by us: a name out of
the documented tools of the row, and arguments that were JSON. Still a call may take for ever (a
power with a billion digits), so that all of it runs in a process that can be killed: this file, run
as a script, reads conversations and writes what the tools gave back.
"""

import copy
import importlib
import json
import multiprocessing
import re
import resource
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

Calls: TypeAlias = Sequence[tuple[str, Mapping[str, Any]]]
"""Names and arguments of the calls of one step."""

_START_S = 60.0
"""Seconds in which the process must have imported the tools."""

_CPU_S = 2
"""Seconds on the processor that one conversation may take. The longest of BFCL's own takes 0.05."""

_EACH_S = 20.0
"""Seconds on the clock, on a machine that does much else beside it."""

_MEMORY = 2 << 30
_LONGEST = 50_000
"""Characters that are kept of what a tool gives back."""

_DIED = "Error during execution: the tool took too long"
_UNKNOWN = "unknown_tool_{}()"
"""A call that BFCL answers with an error."""

_SHARED = ("CREDIT_CARD_EXTENSION", "BOOKING_RECORD_EXTENSION")

_NAME = re.compile(r"[a-zA-Z_]\w*", re.ASCII)
_numbers = count()


def written(calls: Calls, known: Sequence[str]) -> list[str]:
    """Calls as the text that BFCL evaluates; one of an unknown tool becomes a certain error.

    Args:
        calls: As a model wrote them.
        known: Names of the tools of the row.
    """
    return [
        f"{name}(**{dict(arguments)!r})"
        if name in known and _NAME.fullmatch(name)
        else _UNKNOWN.format(i)
        for i, (name, arguments) in enumerate(calls)
    ]


def run_tools(talks: Sequence[Mapping[str, Any]]) -> list[list[list[str]]]:
    """What the tools gave back: by conversation, step and call.

    Args:
        talks: Each with `entry`, a row of BFCL, and `steps`, the calls of each step as `written`.
    """
    answers = _in_process(talks)
    if answers is not None:
        return answers
    if len(talks) > 1:  # one of them hangs, or took the process down: each by itself
        return [run_tools([talk])[0] for talk in talks]
    return [[[_DIED] * len(step) for step in talks[0]["steps"]]]


def _in_process(talks: Sequence[Mapping[str, Any]]) -> list[list[list[str]]] | None:
    try:
        ended = subprocess.run(
            [sys.executable, "-P", __file__],  # the file alone: nothing else of gdpo is loaded
            input=json.dumps(list(talks)).encode(),
            capture_output=True,
            timeout=_START_S + _EACH_S * len(talks),
            check=True,
        )
        return json.loads(ended.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None


def play(entry: Mapping[str, Any], steps: Sequence[Sequence[str]]) -> list[list[str]]:
    """The answers to the calls of each step, from the row's first state on. In this process."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    utilities: Any = multi_turn_utils
    answers: list[list[str]] = []
    with fresh_tools() as name:
        for step in steps:
            results, _ = utilities.execute_multi_turn_func_call(
                list(step),
                entry["initial_config"],
                entry["involved_classes"],
                name,
                entry["id"],
                long_context="long_context" in entry["id"],
            )
            answers.append([str(result)[:_LONGEST] for result in results])
    return answers


@contextmanager
def fresh_tools() -> Generator[str]:
    """A name of a model that BFCL has no tools of yet; afterwards all is as it was.

    BFCL keeps tools by the model's name in its globals, and the travel agency hands one and the
    same set of long credit cards and bookings to all of its instances.
    """
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import (
        travel_booking,
    )

    shared: Any = travel_booking
    records = [getattr(shared, name) for name in _SHARED]
    before = copy.deepcopy(records)
    name = f"gdpo{next(_numbers)}x"
    try:
        yield name
    finally:
        utilities: Any = multi_turn_utils
        kept = utilities.__dict__
        for key in [key for key in kept if key.startswith(f"{name}_")]:
            del kept[key]
        for record, was in zip(records, before, strict=True):
            record.clear()
            record.update(was)


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    talks = json.load(sys.stdin)
    told, sys.stdout = sys.stdout, sys.stderr  # tools may print
    importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")  # for all
    json.dump([_apart(talk) for talk in talks], told)


def _apart(talk: Mapping[str, Any]) -> list[list[str]]:
    """`play` in a fork of its own, which is killed when its time is over.

    What the tools keep outside of their instances (some do) is gone with it.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_play_and_tell, args=(talk, there))
    child.start()
    there.close()
    try:
        answers = here.recv() if here.poll(_EACH_S) else None
    except EOFError:  # it died
        answers = None
    child.kill()
    child.join()
    return answers or [[_DIED] * len(step) for step in talk["steps"]]


def _play_and_tell(talk: Mapping[str, Any], told: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    told.send(play(talk["entry"], talk["steps"]))


if __name__ == "__main__":
    _main()
