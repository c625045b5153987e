"""Shows scoring progress if a batch takes longer than two seconds."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

OnScored = Callable[[int, int], None]
"""Callback that receives the number of finished scores and the total. In the last call, the two are
equal."""

PATIENCE_S = 2.0
"""Number of seconds before progress is first shown."""

_SHOW_EVERY_S = 0.1
"""Minimum number of seconds between updates. A fast reward runs thousands of times in this
interval."""

_LOG_EVERY_S = 30.0


@dataclass(slots=True)
class Counter:
    """Counts finished scores, and reports progress if the batch takes long.

    Args:
        on_progress: Callback for each update.
    """

    total: int
    on_progress: OnScored
    done: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)
    _showing: bool = False

    def advance(self) -> None:
        self.done += 1
        if self.done < self.total and (now := time.monotonic()) > self._next:
            self._showing, self._next = True, now + _SHOW_EVERY_S
            self.on_progress(self.done, self.total)

    def finish(self) -> None:
        if self._showing:
            self.on_progress(self.total, self.total)
        self._showing = False


class Bar:
    """Draws a progress bar on standard error, or logs lines if standard error is not a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = -_LOG_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        if not console.is_terminal:
            self._log(done, total)
            return
        if self._bar is None:
            count, rest = MofNCompleteColumn(), TimeRemainingColumn()
            columns = (TextColumn("scoring"), BarColumn(), count, rest)
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self._bar.stop()
            self._bar = None

    def _log(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _LOG_EVERY_S:
            self._last = now
            logger.info("scored %d of %d completions", done, total)
