"""Runs the calls of BFCL conversations against its tools, which live in memory: files, cars, trips.

BFCL hands the text of a call to `eval`. What gets there from here is written by us: a name out of
the documented tools of the row, and arguments that were JSON. Still a call may take for ever (a
power with a billion digits), so that all of it runs in a process that can be killed: this file, run
as a script, reads conversations and writes what the tools gave back.
"""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

Calls: TypeAlias = Sequence[tuple[str, Mapping[str, Any]]]
"""Names and arguments of the calls of one step."""

_START_S = 60.0
"""Seconds in which the process must have imported the tools."""

_EACH_S = 2.0
"""Seconds that one conversation may take. The longest of BFCL's own takes 0.05."""

_MEMORY = 2 << 30
_LONGEST = 50_000
"""Characters that are kept of what a tool gives back."""

_DIED = "Error during execution: the tool took too long"
_UNKNOWN = "unknown_tool_{}()"
"""A call that BFCL answers with an error."""

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
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # pyright: ignore

    utilities: Any = multi_turn_utils
    name = fresh_name()
    answers: list[list[str]] = []
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
    forget(name)
    return answers


def fresh_name() -> str:
    """A name of a model that BFCL has no tools of yet: it keeps them by name, in its globals."""
    return f"gdpo{next(_numbers)}x"


def forget(name: str) -> None:
    """Drop the tools that BFCL keeps of a name."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # pyright: ignore

    utilities: Any = multi_turn_utils
    kept = utilities.__dict__
    for key in [key for key in kept if key.startswith(f"{name}_")]:
        del kept[key]


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    talks = json.load(sys.stdin)
    told, sys.stdout = sys.stdout, sys.stderr  # tools may print
    json.dump([play(talk["entry"], talk["steps"]) for talk in talks], told)


if __name__ == "__main__":
    _main()
