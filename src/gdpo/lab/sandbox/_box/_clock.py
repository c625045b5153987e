"""Limits the wall-clock time of a program, with more time for programs on a busy machine."""

import time
from collections.abc import Callable

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

    A program has `wall` seconds. After that time, the program is observed in windows of half a
    second, and may continue as long as it is working. A program is working if it uses at least a
    quarter of the CPU time that a process can currently get on this machine. A sleeping program is
    therefore stopped after `wall` seconds and one window, and a program on a busy machine can
    continue until it reaches its CPU-time limit. Every program is stopped after `longest` seconds.

    Args:
        longest: Time from now, in seconds, after which the program is stopped in any case.
        computed: Function that returns the CPU time that the program has used, in seconds.
        share: Function that returns the share of wall-clock time in which a process currently gets
            a CPU.
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
        """Return the remaining seconds. Once time has run out, the result stays at 0 or less."""
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
