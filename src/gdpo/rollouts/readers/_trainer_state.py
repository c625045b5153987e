"""What TRL's log of a run says of its files: which columns are rewards, and which are extras."""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

_NAME = "trainer_state.json"
_LOGGED = re.compile(r"(?:eval_)?rewards/(.+)/mean")
_LARGEST = 32 * 2**20
"""Bytes of a log that is read, which takes thirty times as much memory; of ten thousand steps it
has less."""


def logged_rewards(file: Path) -> tuple[str, ...]:
    """The rewards of the run that a file of completions is of, as its newest log names them.

    TRL logs `rewards/<name>/mean` of each reward and nothing of other columns, in the
    `trainer_state.json` of every checkpoint. Empty: there is none, or it cannot be read.
    """
    run = file.parent.parent if file.parent.name == "completions" else file.parent
    logs = [run / _NAME, *run.glob(f"checkpoint-*/{_NAME}")]
    try:
        times = {log: log.stat().st_mtime_ns for log in logs if log.is_file()}
    except OSError:  # a checkpoint that is being rotated away
        return ()
    newest = max(times, key=times.__getitem__, default=None)
    return () if newest is None else _names(newest, times[newest])


@lru_cache(maxsize=16)
def _names(log: Path, _changed: int) -> tuple[str, ...]:
    try:
        if log.stat().st_size > _LARGEST:
            return ()
        state: Any = json.loads(log.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ()
    history = state.get("log_history") if isinstance(state, dict) else None
    steps = cast("list[Any]", history) if isinstance(history, list) else []
    keys = (str(key) for step in steps if isinstance(step, dict) for key in step)
    return tuple(dict.fromkeys(match[1] for key in keys if (match := _LOGGED.fullmatch(key))))
