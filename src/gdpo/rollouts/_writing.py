"""The rollouts of a run, batch after batch, into one file per step."""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gdpo.errors import ConfigError
from gdpo.rollouts._record import Declared, Rollout, rollout_file, write_rollouts

logger = logging.getLogger(__name__)

_PROBE = b"\0" * 4096  # a full disk still makes empty files


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
        self._file: Path | None = None
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
                f"{self.folder}: rollouts cannot be written there: {error}. Name a folder that can "
                "be written to and has space left"
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
        if file != self._file:
            self._file, self._rollouts, self._groups = file, [], 0
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
                "ROLLOUTS ARE BEING LOST: %s cannot be written: %s. The run goes on, and every "
                "later step is tried; until it is said here that one was written, none is",
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
            "%s was written again; steps not recorded, or in part: %d%s", file, len(lost), which
        )
        self._lost.clear()
