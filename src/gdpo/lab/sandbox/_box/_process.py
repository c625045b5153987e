"""Lets the grader communicate with a program, which runs in another process and is not trusted.

Replies become exact builtin values, objects of the tests' own classes, or stubs, but never objects
with methods from the program.
"""

import builtins
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, NoReturn

from ._frames import Closed, FrameTooLate, TooLong, read_frame, write_frame
from ._values import Reader, Writer, as_text

DEATH = struct.Struct("=i?dq")
"""Format of the server's report on a program that has exited: wait status, True if the server had
to kill the program, CPU time in seconds, and memory in KiB."""
COMPUTED = struct.Struct("=d")
"""Format of the server's report on a running program: CPU time in seconds."""

_OUTCOMES = {"memory": "memory", "output": "output"}
"""Maps each bug that the program reports to a test outcome. Other bugs have the outcome "error"."""

_BUGS = ("syntax", "import", "runtime", "memory", "output")
_NEVER_RAISED = ("StopIteration", "StopAsyncIteration")
"""Exceptions that are never raised in the tests, because such an exception would silently end a
loop."""

_PREDICATES = frozenset(
    name
    for kind in (bytes, str, int, float, complex, list, tuple, set, frozenset, dict)
    for name in dir(kind)
    if name.startswith("is") or name in ("startswith", "endswith")
)
_MUCH = 0.5
"""Share of a limit. If the kernel kills a program that has used more than this share, the limit
counts as the cause."""
_MOST = 1 << 20
_PER_ANSWER = 0.005
"""CPU time, in seconds, that is added for each reply, because a program that answers thousands of
short requests spends most of its time waiting to be scheduled."""
_REPLY_OVERHEAD = 4096
_KIB = 1024


class Ended(BaseException):
    """Raised if the program has exited. `except Exception` in a test cannot catch it."""


class BadTests(BaseException):
    """Raised if the tests are invalid, regardless of the program."""


@dataclass(frozen=True, slots=True)
class ProgramFailure:
    """Stores the outcome, the bug and the message of a program's failure."""

    outcome: str
    bug: str
    message: str


class Stub:
    """Represents an object that remains in the program. Tests can call it or pass it back."""

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


_WINDOW = 0.5
"""Length of the windows in which a late program is observed, in wall-clock seconds."""
_AT_WORK = 0.25
"""Minimum share of the available CPU time that a working program uses. A program that uses less is
waiting for something other than the CPU."""
_SPIN = 0.05
"""CPU time, in seconds, that this process uses to measure the available CPU time."""


def processor_share() -> float:
    """Measure the share of wall-clock time in which this process gets a CPU."""
    clock, processor = time.monotonic(), time.process_time()
    while time.process_time() - processor < _SPIN:
        pass
    return (time.process_time() - processor) / (time.monotonic() - clock)


class Clock:
    """Limits a program's wall-clock time. The clock runs only inside `with`.

    After `wall` seconds, the program is observed in windows of half a second, and may continue as
    long as it uses a quarter of the CPU time that a process can currently get. A sleeping program
    is stopped after one window, and one on a busy machine can use up its CPU time.

    Args:
        longest: Seconds from now after which the program is stopped in any case.
        computed: Returns the program's CPU time, in seconds.
        share: Returns the share of the time in which a process currently gets a CPU.
    """

    def __init__(
        self,
        wall: float,
        longest: float,
        *,
        computed: Callable[[], float],
        share: Callable[[], float] = processor_share,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._computed, self._share, self._now = computed, share, now
        self.started = now()
        self.struck = False
        """True if the time ran out before the program finished."""
        self._end = self.started + longest
        self._allowed = wall
        self._ran = 0.0
        self._window: tuple[float, float] | None = None
        """The program's wall-clock and CPU time at the start of the current window, in seconds."""

    def __enter__(self) -> None:
        self._turn = self._now() - self._ran

    def __exit__(self, *_: object) -> None:
        self._ran = self._now() - self._turn

    def left(self) -> float:
        """Return the remaining seconds, which stay at 0 or less once time has run out."""
        if self.struck:
            return 0.0
        if self._now() - self._turn >= self._allowed:
            self._look()
        left = min(self._allowed - (self._now() - self._turn), self._end - self._now())
        self.struck = left <= 0
        return left

    def _look(self) -> None:
        """Allow the program one more window if it was working in the last window."""
        if self._window is not None:
            began, before = self._window
            took = self._now() - self._turn - began
            if self._computed() - before < _AT_WORK * self._share() * took:
                return
        ran = self._now() - self._turn
        self._window = ran, self._computed()
        self._allowed = ran + _WINDOW


class Process:
    """Communicates with the program's process.

    Args:
        limits: Mapping with `wall`, `longest` and `cpu` in seconds, and `own` and `answer` in
            bytes.
    """

    def __init__(self, control: socket.socket, limits: Mapping[str, Any]) -> None:
        self._control = control
        self.limits = limits
        self._pipes: tuple[int, ...] = ()
        self._changes: list[tuple[list[Any], Any]] = []
        self._answers = 0
        self.clock = Clock(limits["wall"], limits["longest"], computed=self._computed)
        self.cpu = 0.0
        """Total CPU time of the program's processes that have exited, in seconds."""
        self.classes: dict[str, type] = {}
        self.failure: ProgramFailure | None = None
        """Reason why the program exited. None: the program has not exited."""
        self.not_loaded: BaseException | None = None
        """Exception from loading the program. Every later request raises this exception again."""
        self.raised: tuple[BaseException, ProgramFailure] | None = None
        """Last exception that the program reported, as raised in the grader, and the failure that
        the exception describes."""

    def spawn(self, *streams: int) -> None:
        """Start a process for the program. A whole program has an input and output stream."""
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
        """Wait until the program's top-level code has run."""
        try:
            with self.clock:
                reply = self._receive(self.limits["answer"])
            self._understand(reply)
        except Exception as error:  # noqa: BLE001  kept, and raised again by later requests
            self.not_loaded = error
        except Ended:
            pass

    def ask(self, what: str, *request: Any) -> Any:
        """Send a request to the program, and return its result or raise its exception.

        Raises:
            Ended: If the program has exited or exits during this request.
            BadTests: If a value in the tests cannot be sent.
            Exception: The program's exception, converted to a builtin type.
        """
        if self.failure is not None:
            raise Ended
        if self.not_loaded is not None:
            raise self.not_loaded.with_traceback(None)
        writer = Writer(self.classes, self._number, _MOST)
        message = writer.write(request)
        data = json.dumps([what, list(self.classes), message], separators=(",", ":")).encode()
        with self.clock:
            try:
                write_frame(self._requests, data, self.clock.left)
            except Closed:
                self._ended()
            except FrameTooLate:
                self.end(TIMEOUT)
            reply = self._receive(self.limits["answer"] + len(data))
        result, changed = self._understand(reply)
        if changed is not None:
            self._changes.append((writer.objects, changed))
        return result

    def settle(self) -> None:
        """Apply the changes that functions without a return value made to their arguments.

        Of a function that returns a value, only this value is tested. Changes are applied only
        between statements, or the program could manipulate an expected value that the test computes
        from the same arguments.
        """
        changes, self._changes = self._changes if self.failure is None else [], []
        for known, changed in changes:
            self._believe_nothing(changed, known)

    def end(self, failure: ProgramFailure) -> NoReturn:
        """Kill the program, store the reason, and raise Ended."""
        self.reap(b"K")
        self.failure = failure
        raise Ended

    def is_judgement(self, name: str) -> bool:
        """Return True if tests could use an attribute such as `startswith` to check a value.

        Objects from the program must not provide attributes of builtin values or of the tests' own
        classes, or `assert f(x).startswith("a")` would trust a method from the program.
        """
        own = any(name in vars(base) for cls in self.classes.values() for base in cls.__mro__)
        return own or name in _PREDICATES

    def reap(self, order: bytes) -> tuple[int, bool, int]:
        """Kill the program's process (b"K"), or first wait briefly for its exit (b"W").

        Returns:
            The wait status, True if the process was killed, and the process's memory in KiB.
        """
        # Ending a large program may take long, so the alarm that detects a hung grader is paused.
        alarm, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self._control.send(order)
        status, killed, cpu, memory = DEATH.unpack(self._control.recv(DEATH.size))
        signal.setitimer(signal.ITIMER_REAL, alarm)
        self._answers += 1
        self.cpu += cpu
        self.close()
        return status, killed, memory

    def close(self) -> None:
        for fd in self._pipes:
            os.close(fd)
        self._pipes = ()

    def cause(self, status: int, memory: int) -> ProgramFailure:
        """Return the reason why a process exited on its own or was killed by the kernel."""
        if not os.WIFSIGNALED(status):
            return ProgramFailure("killed", "killed", f"exited with status {status >> 8}")
        number = os.WTERMSIG(status)
        late = number == signal.SIGKILL and self.cpu > _MUCH * self.limits["cpu"]
        if late or number == signal.SIGXCPU:
            return TIMEOUT
        if number == signal.SIGKILL and memory * _KIB > _MUCH * self.limits["own"]:
            return ProgramFailure("memory", "memory", "killed because it used too much memory")
        bug = "forbidden" if number == signal.SIGSYS else "killed"
        return ProgramFailure("killed", bug, f"killed by signal {number}")

    def _computed(self) -> float:
        """Return the CPU time of all the program's processes, in seconds."""
        self._control.send(b"T")
        (running,) = COMPUTED.unpack(self._control.recv(COMPUTED.size))
        return self.cpu + running + _PER_ANSWER * self._answers

    def _receive(self, longest: int) -> bytes:
        try:
            reply = read_frame(self.replies, longest + _REPLY_OVERHEAD, self.clock.left)
        except Closed:
            self._ended()
        except FrameTooLate:
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
        try:
            verb, *parts = json.loads(reply)
            self.raised = reported_exception(verb, parts)
            message, changed = (None, None) if self.raised else parts
        except Exception:  # noqa: BLE001  the program caused it, whatever it is
            self.end(FOUL)
        if self.raised:
            raise self.raised[0]
        result = self._believe_nothing(message)
        return result, None if result is not None else changed

    def _believe_nothing(self, message: Any, known: list[Any] | tuple[()] = ()) -> Any:
        try:
            return Reader(self.classes, lambda number: Stub(self, number)).read(message, known)
        except Exception:  # noqa: BLE001  the program caused it, whatever it is
            self.end(FOUL)

    def _number(self, x: Any) -> int:
        if type(x) is Stub:
            return object.__getattribute__(x, "_number")
        raise BadTests(
            f"the tests pass a {type(x).__name__} to the program. Allowed: builtin values, objects "
            f"of classes that the setup defines, and objects that came from the program"
        )


TOO_LONG = ProgramFailure("output", "output", "an answer is longer than allowed")
TIMEOUT = ProgramFailure("timeout", "timeout", "ran out of time")
FOUL = ProgramFailure("killed", "killed", "tampered with the channel to its tests")


def reported_exception(verb: Any, parts: list[Any]) -> tuple[BaseException, ProgramFailure] | None:
    """Return the exception that a reply reports, as a builtin exception. None: no exception."""
    if verb == "raise":
        return _exception(*map(as_text, parts))
    if verb != "ok":
        raise ValueError("not a reply")
    return None


def _exception(kind: str, words: str, bug: str) -> tuple[BaseException, ProgramFailure]:
    bug = bug if bug in _BUGS else "runtime"
    cls = getattr(builtins, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)) or kind in _NEVER_RAISED:
        cls = RuntimeError
    try:
        error = cls(words)
    except TypeError:
        # Some exceptions need more arguments than a message.
        error = RuntimeError(words)
    return error, ProgramFailure(_OUTCOMES.get(bug, "error"), bug, words)
