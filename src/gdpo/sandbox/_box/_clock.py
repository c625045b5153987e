"""How long a program may take on the clock: longer where a busy machine keeps it waiting."""

import time
from collections.abc import Callable

_WINDOW = 0.5
"""Seconds on the clock after which a program that is late is looked at again."""
_AT_WORK = 0.25
"""Of the processor time that this process gets at the same time: a program that gets less waits for
something else than the processor."""
_SPIN = 0.05
"""Processor seconds in which this process finds out what it gets."""


def processor_share() -> float:
    """Return the share of the clock's time for which this process gets a processor, by trial."""
    clock, processor = time.monotonic(), time.process_time()
    while time.process_time() - processor < _SPIN:
        pass
    return (time.process_time() - processor) / (time.monotonic() - clock)


class Clock:
    """The time that a program has. It runs only inside a `with`: while the program has the word.

    A program has `wall` seconds. When they are over, it is observed for a window; where it was at
    work in it, it gets another one, and so on. At work means that it computed at least a quarter of
    what a process can compute on this machine at this moment. So a program that sleeps ends at
    `wall` and a window, and one that the machine keeps from computing does not; what it computes is
    limited by its processor time. After `longest` seconds, everything ends.

    Args:
        wall: Seconds of the program's own.
        longest: Seconds from now after which there is no more time, whoever has the word.
        computed: Returns the processor seconds that the program has used.
        share: Returns the share of the clock's time for which a process gets a processor now.
        now: Returns the time on the clock, in seconds.
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
        """Whether the time was over before the program was."""
        self._end = self.started + longest
        self._allowed = wall
        self._ran = 0.0
        self._window: tuple[float, float] | None = None
        """The program's time on the clock and its processor time when the window began."""

    def __enter__(self) -> None:
        self._turn = self._now() - self._ran

    def __exit__(self, *_: object) -> None:
        self._ran = self._now() - self._turn

    def left(self) -> float:
        """Return how many seconds are left; 0 or less once the time is over, and from then on."""
        if self.struck:
            return 0.0
        if self._now() - self._turn >= self._allowed:
            self._look()
        left = min(self._allowed - (self._now() - self._turn), self._end - self._now())
        self.struck = left <= 0
        return left

    def _look(self) -> None:
        """Give the program another window if it was at work in the last one."""
        if self._window is not None:
            began, before = self._window
            took = self._now() - self._turn - began
            if self._computed() - before < _AT_WORK * self._share() * took:
                return
        ran = self._now() - self._turn
        self._window = ran, self._computed()
        self._allowed = ran + _WINDOW
