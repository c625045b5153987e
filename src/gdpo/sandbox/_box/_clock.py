"""Limits the wall-clock time of a program, and extends it if a busy machine delays the program."""

import time
from collections.abc import Callable

_WINDOW = 0.5
"""Wall-clock seconds after which a late program is observed again."""
_AT_WORK = 0.25
"""Share of the processor time available to this process that a working program must use. A program
that uses less is waiting for something other than the processor."""
_SPIN = 0.05
"""Processor seconds that this process spends to measure the available processor time."""


def processor_share() -> float:
    """Measure the share of wall-clock time for which this process gets a processor."""
    clock, processor = time.monotonic(), time.process_time()
    while time.process_time() - processor < _SPIN:
        pass
    return (time.process_time() - processor) / (time.monotonic() - clock)


class Clock:
    """Limits a program's wall-clock time. It runs only inside `with`, while the program may run.

    A program has `wall` seconds. Afterwards it is observed for a window of half a second. If it was
    working in this window, it gets another window, and so on. A program is working if it used at
    least a quarter of the processor time that one process can get on this machine at this moment.
    So a program that sleeps ends after `wall` seconds and one window, and a program that the busy
    machine delays continues until it has used its processor time. After `longest` seconds, every
    program ends.

    Args:
        wall: Wall-clock seconds of the program.
        longest: Seconds from now after which no time is left, whether or not the program runs.
        computed: Function that returns the processor seconds that the program has used.
        share: Function that returns the share of wall-clock time for which a process gets a
            processor now.
        now: Function that returns the current time, in seconds.
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
        """Whether the time ran out before the program ended."""
        self._end = self.started + longest
        self._allowed = wall
        self._ran = 0.0
        self._window: tuple[float, float] | None = None
        """Wall-clock and processor seconds of the program when the current window began."""

    def __enter__(self) -> None:
        self._turn = self._now() - self._ran

    def __exit__(self, *_: object) -> None:
        self._ran = self._now() - self._turn

    def left(self) -> float:
        """Return the seconds left. Once the time has run out, the result stays at 0 or less."""
        if self.struck:
            return 0.0
        if self._now() - self._turn >= self._allowed:
            self._look()
        left = min(self._allowed - (self._now() - self._turn), self._end - self._now())
        self.struck = left <= 0
        return left

    def _look(self) -> None:
        """Give the program another window if it was working in the last one."""
        if self._window is not None:
            began, before = self._window
            took = self._now() - self._turn - began
            if self._computed() - before < _AT_WORK * self._share() * took:
                return
        ran = self._now() - self._turn
        self._window = ran, self._computed()
        self._allowed = ran + _WINDOW
