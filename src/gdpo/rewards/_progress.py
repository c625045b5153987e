"""Tells how far the scoring of a batch is, once it takes long."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

OnScored = Callable[[int, int], None]
"""Called with the number of completions scored and of all; the last time with both equal."""

PATIENCE_S = 2.0
"""Seconds that a batch may take before anything is shown."""

_SHOW_EVERY_S = 0.1
"""Seconds from one showing to the next: a quick reward is done thousands of times in less."""

_LOG_EVERY_S = 30.0


@dataclass(slots=True)
class Counter:
    """Counts what is done, and shows it once it takes long.

    Args:
        total: How much there is to do.
        on_progress: Called when there is something to show.
    """

    total: int
    on_progress: OnScored
    done: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)
    _showing: bool = False

    def advance(self) -> None:
        """One more is done."""
        self.done += 1
        if self.done < self.total and (now := time.monotonic()) > self._next:
            self._showing, self._next = True, now + _SHOW_EVERY_S
            self.on_progress(self.done, self.total)

    def finish(self) -> None:
        """All is done, or given up: what is shown goes away."""
        if self._showing:
            self.on_progress(self.total, self.total)
        self._showing = False


class Bar:
    """A bar on the terminal's standard error; a line in the log now and then where it is none."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = -_LOG_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        """Show it, or take it away when all is done."""
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_terminal:
            self._log(done, total)
            return
        self._bar = bar = self._bar or _started(console, total)
        bar.update(bar.task_ids[0], completed=done)
        if done >= total:
            bar.stop()
            self._bar = None

    def _log(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _LOG_EVERY_S:
            self._last = now
            logger.info("scored %d of %d completions", done, total)


def _started(console: Any, total: int) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task("", total=total)
    bar.start()
    return bar
