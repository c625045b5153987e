"""Runs the untrusted program in its own process.

A running program can rewrite this code, which therefore protects nothing. Protection comes from the
limits, the system call filter, the box, and the grader, which trusts no reply.
"""

import atexit
import gc
import json
import marshal
import os
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from ._confine import REPLIES, REQUESTS, confine
from ._frames import Closed, read_frame, write_frame
from ._values import Reader, TooMuch, Writer

_LONGEST_REQUEST = 1 << 28
_NO_MEMORY = b'["raise","MemoryError","MemoryError","memory"]'
_SHOWN = 500
_FILE = "<program>"

_Namespace = dict[str, Any]


def become_program(
    job: bytearray, limits: Mapping[str, Any], fds: list[int], seccomp: bytes
) -> NoReturn:
    """Confine this new process, run the program in it, and answer the grader's requests.

    `job` is the marshalled mapping `{"source": str, "setup": bytes | None}`. `limits` are those of
    `confine` and `answer`, the maximum size of a reply in bytes. With four `fds`, a whole program
    runs with its input and output. With two, the grader calls its functions.
    """
    content = marshal.loads(job)
    confine(limits, fds, seccomp)
    whole = len(fds) > 2
    module = types.ModuleType("__main__" if whole else "program")
    for name in ("__spec__", "__loader__", "__package__"):
        del module.__dict__[name]
    module.__file__ = _FILE
    sys.modules[module.__name__] = module
    sys.argv[:] = [_FILE]
    if whole:
        os._exit(_run_whole(module.__dict__, content))
    program = Program(module.__dict__, limits["answer"])
    failure = _load(module.__dict__, content)
    with suppress(Closed):
        _reply(["ok", [None, []], None] if failure is None else failure)
        while True:
            write_frame(REPLIES, program.answer(read_frame(REQUESTS, _LONGEST_REQUEST)))
    os._exit(0)


def _run_whole(namespace: _Namespace, content: dict[str, Any]) -> int:
    """Run a program as Python runs a script, and return its exit status."""
    failure = _load(namespace, content)
    if failure is None:
        try:
            # These steps of the interpreter's shutdown have no public API.
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
            # Flush before clearing the namespace, because a stream may need names of the program.
            _flush()
            # Files that the program left open are written when they are garbage-collected.
            namespace.clear()
            gc.collect()
            with suppress(BaseException):
                _flush()
        except BaseException as error:  # noqa: BLE001  a program may raise anything
            failure = _failure(error)
    if failure is not None:
        _reply(failure)
    return failure is not None


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _load(namespace: _Namespace, content: dict[str, Any]) -> list[Any] | None:
    """Run the trusted setup and the program. Return the program's failure, or None."""
    if content["setup"] is not None:
        # If the setup needs names of the program, the grader runs the setup later.
        with suppress(NameError):
            exec(marshal.loads(content["setup"]), namespace)
    try:
        # Python removes a byte order mark from the start of a file, but not from a string.
        source = content["source"].removeprefix("\ufeff")
        code = compile(source, _FILE, "exec", dont_inherit=True)
    except MemoryError as error:
        return _failure(error)
    except BaseException as error:  # noqa: BLE001  the compiler may raise anything on hostile text
        return [*_failure(error)[:3], "syntax"]
    try:
        exec(code, namespace)
    except SystemExit as error:
        whole = namespace["__name__"] == "__main__"
        return None if whole and not error.code else _failure(error)
    except BaseException as error:  # noqa: BLE001  a program may raise anything
        return _failure(error)
    return None


class Program:
    """Answers requests for values and calls of a loaded program.

    Args:
        longest: Maximum length of a reply, in bytes.
    """

    def __init__(self, namespace: _Namespace, longest: int) -> None:
        self._namespace = namespace
        self._longest = longest
        self._opaque: list[Any] = []
        self._classes: dict[str, type] = {}

    def answer(self, request: bytes) -> bytes:
        """Return the reply to one request, which may be an exception of the program."""
        try:
            return self._answer(*json.loads(request))
        except MemoryError:
            return _NO_MEMORY
        except BaseException as error:  # noqa: BLE001  a program may raise anything
            return json.dumps(_failure(error)).encode()

    def _answer(self, what: str, classes: list[str], message: Any) -> bytes:
        reader = Reader(
            {name: self._namespace.get(name, object) for name in classes}, self._opaque.__getitem__
        )
        request = reader.read(message)
        result = getattr(self, f"_do_{what}")(*request)
        reply: list[Any] = ["ok", self._writer(classes).write(result), None]
        if what == "call" and result is None:
            changed = self._writer(classes).write(request, reader.objects)
            if changed != message:
                reply[2] = changed
        return json.dumps(reply, separators=(",", ":")).encode()

    def _writer(self, classes: list[str]) -> Writer:
        return Writer(classes, self._number, self._longest)

    def _number(self, x: Any) -> int:
        for i, known in enumerate(self._opaque):
            if known is x:
                return i
        self._opaque.append(x)
        return len(self._opaque) - 1

    def _do_names(self, names: list[str]) -> dict[str, Any]:
        return {name: self._namespace[name] for name in names if name in self._namespace}

    def _do_evaluate(self, expression: str) -> Any:
        return eval(expression, self._namespace)

    def _do_call(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return function(*arguments, **named)

    def _do_get(self, thing: Any, name: str) -> Any:
        return getattr(thing, name)

    def _do_set(self, thing: Any, name: str, value: Any) -> None:
        setattr(thing, name, value)


def _reply(content: list[Any]) -> None:
    write_frame(REPLIES, json.dumps(content).encode())


def _failure(error: BaseException) -> list[Any]:
    """Return the nearest builtin type, the text and the bug of an exception, for the grader."""
    try:
        kinds = (k for k in type(error).__mro__ if k.__module__ == "builtins")
        words, line = str(error)[:_SHOWN], _line(error)
        text = f"{type(error).__name__}: {words}" if words else type(error).__name__
        described = f"line {line}: {text}" if line else text
        bugs = ((ImportError, "import"), (MemoryError, "memory"), (TooMuch, "output"))
        bug = next((bug for kind, bug in bugs if isinstance(error, kind)), "runtime")
        return ["raise", next(kinds, BaseException).__name__, described, bug]
    except BaseException:  # noqa: BLE001  an exception may be as hostile as any object
        return ["raise", "RuntimeError", "an exception that cannot be described", "runtime"]


def _line(error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == _FILE:
        return error.lineno
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == _FILE:
            line = step.tb_lineno
        step = step.tb_next
    return line
