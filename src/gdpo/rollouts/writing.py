"""The rollouts of a run, batch after batch, into one file per step."""

import logging
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from gdpo.errors import ConfigError
from gdpo.rollouts.record import Declared, Rollout, rollout_file, write_rollouts

logger = logging.getLogger(__name__)

_PROBE = b"\0" * 4096  # a full disk still makes empty files


def set_aside(folder: Path, *, keep: Collection[Path] = ()) -> None:
    """Move what an earlier run left in a folder into `earlier-1`, or the next number that is free.

    So nothing is lost, and no run's record is mixed with another's. The files of evaluations, in
    the subfolder `eval`, go with those of training. Readers leave `earlier-…` out of the run.

    Args:
        folder: Where a run that begins is to be recorded.
        keep: Files that stay: the run's own.

    Raises:
        ConfigError: A file cannot be moved.
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
            f"{error}. Name another folder"
        ) from error


class StepWriter:
    """Writes what a step generates, each time the whole file: a step may have several batches.

    A step that cannot be written (the disk is full, say) does not end the run. It is logged, and
    so is which steps are missing once a later one is written. The files before them stay whole.

    Args:
        folder: Where the files are kept, see `rollout_file`.
        declared: Of the rewards, see `write_rollouts`.
    """

    def __init__(self, folder: Path, *, declared: Declared | None = None) -> None:
        self.folder = folder
        self._declared = declared
        self.file: Path | None = None
        """The one that was written last, or tried."""
        self._rollouts: list[Rollout] = []
        self._groups = 0
        self._lost: set[int] = set()

    def check_folder(self) -> None:
        """Make the folder, and see whether it can be written to: for before a run begins.

        Raises:
            ConfigError: It cannot.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                probe.write(_PROBE)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: cannot write rollouts: {error}. Name a writable folder on a disk "
                "with free space"
            ) from error

    def write(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write a batch; it joins those before it if they are of the same step.

        Args:
            step: Which file they go into.
            rollouts: Their groups are counted from 0, and renumbered if the file has some already.

        Raises:
            DataError: There are none, or the rewards of the step are not the same in all of them.
        """
        file = rollout_file(self.folder, step)
        if file != self.file:
            self.file, self._rollouts, self._groups = file, [], 0
        first = self._groups
        self._rollouts += [replace(r, group_id=first + r.group_id) for r in rollouts]
        self._groups = 1 + max((r.group_id for r in self._rollouts), default=-1)
        try:
            write_rollouts(file, self._rollouts, declared=self._declared)
        except OSError as error:
            self._lose(step, file, error)
        else:
            self._tell_lost(step, file)

    def _lose(self, step: int, file: Path, error: OSError) -> None:
        if not self._lost:
            logger.warning(
                "ROLLOUTS ARE BEING LOST: cannot write %s: %s. Free disk space. The run continues "
                "and tries again at every step; a message follows when a step was written",
                file,
                error,
            )
        self._lost.add(step)

    def _tell_lost(self, step: int, file: Path) -> None:
        if not self._lost:
            return
        lost = self._lost - {step}  # an earlier batch of this step is in the file now
        which = f", from {min(lost)} to {max(lost)}" if lost else ""
        logger.warning(
            "rollouts are recorded again, from %s on. Steps not recorded completely: %d%s",
            file,
            len(lost),
            which,
        )
        self._lost.clear()
