"""Writes the rollouts of a run, batch by batch, to one file per step."""

import logging
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from gdpo.errors import ConfigError
from gdpo.rollouts.record import Declared, Rollout, rollout_file, write_rollouts

logger = logging.getLogger(__name__)

_PROBE = b"\0" * 4096  # an empty file can be created even on a full disk


def set_aside(folder: Path, *, keep: Collection[Path] = ()) -> None:
    """Move the record of an earlier run to the subfolder `earlier-1`, or to the next free number.

    Evaluation files in the subfolder `eval` are moved too, but not the files `keep` of the new run.
    A file that cannot be moved raises a ConfigError.
    """
    found = (*folder.glob("step_*.parquet"), *folder.glob("eval/step_*.parquet"))
    files = sorted(file for file in found if file not in keep)
    if not files:
        return
    names = (folder / f"earlier-{number}" for number in count(1))
    earlier = next(name for name in names if not name.exists())
    try:
        for file in files:
            moved = earlier / file.relative_to(folder)
            moved.parent.mkdir(parents=True, exist_ok=True)
            file.rename(moved)
    except OSError as error:
        raise ConfigError(
            f"{folder} contains rollouts of an earlier run, which cannot be moved to {earlier}: "
            f"{error}. Choose another folder"
        ) from error


class StepWriter:
    """Writes the rollouts of each step to one file. A step may have several batches.

    If a step cannot be written (for example on a full disk), a warning is logged and the run
    continues. When a later step is written, the number of lost steps is logged. `declared` are the
    ranges and gates of the rewards (see `write_rollouts`).
    """

    def __init__(self, folder: Path, *, declared: Declared | None = None) -> None:
        self.folder = folder
        self._declared = declared
        self.file: Path | None = None
        """File of the most recent step, even if the file could not be written."""
        self._rollouts: list[Rollout] = []
        self._lost: set[int] = set()

    def check_folder(self) -> None:
        """Create the folder, and raise a ConfigError if it is not writable."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                probe.write(_PROBE)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: cannot write rollouts: {error}. Choose a writable folder on a "
                "disk with free space"
            ) from error

    def write(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write a batch, whose groups are numbered from 0, and keep earlier batches of the step.

        The errors are those of `write_rollouts`.
        """
        file = rollout_file(self.folder, step)
        if file != self.file:
            self.file, self._rollouts = file, []
        first = 1 + max((r.group_id for r in self._rollouts), default=-1)
        self._rollouts += [replace(r, group_id=first + r.group_id) for r in rollouts]
        try:
            write_rollouts(file, self._rollouts, declared=self._declared)
        except OSError as error:
            if not self._lost:
                logger.warning(
                    "ROLLOUTS ARE BEING LOST: cannot write %s: %s. Free disk space. The run "
                    "continues and tries again at every step; a message is logged once a step has "
                    "been written",
                    file,
                    error,
                )
            self._lost.add(step)
            return
        if self._lost:
            lost = self._lost - {step}  # this file now includes the earlier batches of its step
            which = f", from {min(lost)} to {max(lost)}" if lost else ""
            logger.warning(
                "rollouts are recorded again, from %s on. Steps not recorded completely: %d%s",
                file,
                len(lost),
                which,
            )
            self._lost.clear()
