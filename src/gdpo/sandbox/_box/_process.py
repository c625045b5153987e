"""A program as the grader sees it: somebody far away who is asked, and believed nothing.

What it answers becomes exact builtin values, objects of the tests' own classes, or stubs: never
anything whose methods are the program's.
"""

import builtins
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NoReturn

from ._clock import Clock
from ._frames import Closed, TooLate, TooLong, read_frame, write_frame
from ._reader import Reader, as_text
from ._writer import Writer

DEATH = struct.Struct("=i?dq")
"""What the server tells of a program's end: wait status, whether it had to be killed, processor
seconds, memory in KiB."""
COMPUTED = struct.Struct("=d")
"""What the server tells of a program that runs: processor seconds."""

_TOLD = {"memory": "memory", "output": "output"}
"""Outcomes of exceptions that are no ordinary ones, by the bug that the program tells."""

_BUGS_TOLD = ("syntax", "import", "runtime", "memory", "output")
_NEVER_RAISED = ("StopIteration", "StopAsyncIteration")
"""One of these would end a loop of the tests as if all had been seen."""

_PREDICATES = frozenset(
    name
    for kind in (bytes, str, int, float, complex, list, tuple, set, frozenset, dict)
    for name in dir(kind)
    if name.startswith("is") or name in ("startswith", "endswith")
)
_MUCH = 0.5
"""Of a limit: who is killed by the kernel and has used more of it is killed for that."""
_MOST = 1 << 20
_PER_ANSWER = 0.005
"""Processor seconds that an answer counts for: a program that answers thousands of short questions
mostly waits to be woken."""
_REPLY_OVERHEAD = 4096
_KIB = 1024


class Ended(BaseException):
    """The program is no more; no test's `except Exception` may hide that."""


class BadTests(BaseException):
    """The tests are wrong, whatever the program."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in a program."""

    outcome: str
    bug: str
    message: str


class Stub:
    """Something of the program's that does not travel: to be called, and to be passed back."""

    __slots__ = ("_number", "_process")

    def __init__(self, process: "Process", number: int) -> None:
        object.__setattr__(self, "_process", process)
        object.__setattr__(self, "_number", number)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Stub:
            return False
        return object.__getattribute__(self, "_number") == object.__getattribute__(other, "_number")

    def __hash__(self) -> int:
        return hash((Stub, object.__getattribute__(self, "_number")))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._process.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._process.is_judgement(name):
            raise AttributeError(name)
        return self._process.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._process.ask("set", self, name, value)


class Process:
    """The program's process, and the channel to it.

    Args:
        control: Where the server takes orders.
        limits: `wall`, `longest` and `cpu` in seconds, `own` and `answer` in bytes.
    """

    def __init__(self, control: socket.socket, limits: Mapping[str, Any]) -> None:
        self._control = control
        self.limits = limits
        self._pipes: tuple[int, ...] = ()
        self._changes: list[tuple[list[Any], Any]] = []
        self._answers = 0
        self.clock = Clock(limits["wall"], limits["longest"], computed=self._computed)
        self.cpu = 0.0
        """Processor seconds of those of its processes that are no more."""
        self.classes: dict[str, type] = {}
        self.failure: Failure | None = None
        """Why it is no more."""
        self.not_loaded: BaseException | None = None
        """What it raised before any test: whoever asks it gets this."""
        self.raised: tuple[BaseException, Failure] | None = None
        """The last exception that came from it, as it was raised here."""

    def spawn(self, *streams: int) -> None:
        """Start a process; `streams` are a whole program's input and output."""
        theirs_in, self._requests = os.pipe()
        self.replies, theirs_out = os.pipe()
        self._pipes = (self._requests, self.replies)
        os.set_blocking(self._requests, False)
        cpu = max(1, ceil(self.limits["cpu"] - self.cpu))
        fds = [theirs_in, theirs_out, *streams]
        socket.send_fds(self._control, [b"S%d" % cpu], fds)
        for fd in fds:
            os.close(fd)

    def load(self) -> None:
        """Wait until the program's own code has run."""
        try:
            with self.clock:
                reply = self._receive(self.limits["answer"])
            self._understand(reply)
        except Exception as error:  # noqa: BLE001  it is kept for whoever asks the program
            self.not_loaded = error
        except Ended:
            pass

    def ask(self, what: str, *request: Any) -> Any:
        """Have the program do something, and give the result or raise what it raised.

        Raises:
            Ended: The program is no more, or this was its end.
            BadTests: A value of the tests cannot travel.
            Exception: What the program raised, as a builtin exception.
        """
        if self.failure is not None:
            raise Ended
        if self.not_loaded is not None:
            raise self.not_loaded.with_traceback(None)
        writer = Writer(self.classes, self._number, _MOST)
        message = writer.write(request)
        data = json.dumps([what, list(self.classes), message], separators=(",", ":")).encode()
        with self.clock:
            self._send(data)
            reply = self._receive(self.limits["answer"] + len(data))
        result, changed = self._understand(reply)
        if changed is not None:
            self._changes.append((writer.objects, changed))
        return result

    def settle(self) -> None:
        """Show the tests what functions that return nothing did to their arguments.

        Others work by what they return. And not at once: where what is expected is computed from
        the arguments, the program would set what it is compared with.
        """
        changes, self._changes = self._changes if self.failure is None else [], []
        for known, changed in changes:
            self._believe_nothing(changed, known)

    def end(self, failure: Failure) -> NoReturn:
        """Kill the program for a reason."""
        self.reap(b"K")
        self.failure = failure
        raise Ended

    def is_judgement(self, name: str) -> bool:
        """Whether tests that use this attribute want it of a builtin value or of their own class.

        The program's objects have none of these: `assert f(x).startswith("a")` would believe one.
        """
        own = any(name in vars(base) for cls in self.classes.values() for base in cls.__mro__)
        return own or name in _PREDICATES

    def reap(self, order: bytes) -> tuple[int, bool, int]:
        """Have the program's process killed (b"K"), or end by itself if it soon does (b"W").

        Returns:
            Its wait status, whether it had to be killed, and its memory in KiB.
        """
        # To end a large program may take long, and is no reason to take this process for hung.
        alarm, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self._control.send(order)
        status, killed, cpu, memory = DEATH.unpack(self._control.recv(DEATH.size))
        signal.setitimer(signal.ITIMER_REAL, alarm)
        self._answers += 1
        self.cpu += cpu
        self.close()
        return status, killed, memory

    def close(self) -> None:
        """Close the channel to a process, if there is one."""
        for fd in self._pipes:
            os.close(fd)
        self._pipes = ()

    def cause(self, status: int, memory: int) -> Failure:
        """Why a process ended that was not asked to."""
        if not os.WIFSIGNALED(status):
            return Failure("killed", "killed", f"ended itself: status {status >> 8}")
        number = os.WTERMSIG(status)
        late = number == signal.SIGKILL and self.cpu > _MUCH * self.limits["cpu"]
        if late or number == signal.SIGXCPU:
            return TIMEOUT
        if number == signal.SIGKILL and memory * _KIB > _MUCH * self.limits["own"]:
            return Failure("memory", "memory", "killed for its memory")
        bug = "forbidden" if number == signal.SIGSYS else "killed"
        return Failure("killed", bug, f"killed by signal {number}")

    def _computed(self) -> float:
        """Return the processor seconds of all its processes."""
        self._control.send(b"T")
        (running,) = COMPUTED.unpack(self._control.recv(COMPUTED.size))
        return self.cpu + running + _PER_ANSWER * self._answers

    def _send(self, request: bytes) -> None:
        try:
            write_frame(self._requests, request, self.clock.left)
        except Closed:
            self._ended()
        except TooLate:
            self.end(TIMEOUT)

    def _receive(self, longest: int) -> bytes:
        try:
            reply = read_frame(self.replies, longest + _REPLY_OVERHEAD, self.clock.left)
        except Closed:
            self._ended()
        except TooLate:
            self.end(TIMEOUT)
        except TooLong:
            self.end(TOO_LONG)
        self._answers += 1
        return reply

    def _ended(self) -> NoReturn:
        status, killed, memory = self.reap(b"W")
        self.failure = FOUL if killed else self.cause(status, memory)
        raise Ended

    def _understand(self, reply: bytes) -> tuple[Any, Any]:
        """The result of a reply, and what became of the arguments."""
        try:
            verb, *parts = json.loads(reply)
            self.raised = told_exception(verb, parts)
            message, changed = (None, None) if self.raised else parts
        except Exception:  # noqa: BLE001  whatever it is, the program made it
            self.end(FOUL)
        if self.raised:
            raise self.raised[0]
        result = self._believe_nothing(message)
        return result, None if result is not None else changed

    def _believe_nothing(self, message: Any, known: list[Any] | tuple[()] = ()) -> Any:
        try:
            return Reader(self.classes, lambda number: Stub(self, number)).read(message, known)
        except Exception:  # noqa: BLE001  whatever it is, the program made it
            self.end(FOUL)

    def _number(self, x: Any) -> int:
        if type(x) is Stub:
            return object.__getattribute__(x, "_number")
        raise BadTests(
            f"the tests pass a {type(x).__name__} to the program; allowed: builtin values, objects "
            f"of classes that the setup defines, and what the program gave"
        )


TOO_LONG = Failure("output", "output", "an answer is longer than allowed")
TIMEOUT = Failure("timeout", "timeout", "ran out of time")
FOUL = Failure("killed", "killed", "tampered with the channel to its tests")


def told_exception(verb: Any, parts: list[Any]) -> tuple[BaseException, Failure] | None:
    """What a reply says that the program raised, as a builtin exception; None if it says nothing.

    Raises:
        Exception: It is no reply.
    """
    if verb == "raise":
        return _exception(*map(as_text, parts))
    if verb != "ok":
        raise ValueError("no reply")
    return None


def _exception(kind: str, words: str, bug: str) -> tuple[BaseException, Failure]:
    bug = bug if bug in _BUGS_TOLD else "runtime"
    cls = getattr(builtins, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)) or kind in _NEVER_RAISED:
        cls = RuntimeError
    try:
        error = cls(words)
    except TypeError:
        # A few want more than words.
        error = RuntimeError(words)
    return error, Failure(_TOLD.get(bug, "error"), bug, words)
