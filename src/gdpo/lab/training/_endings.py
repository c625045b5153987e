"""Stops a training run early: saves the last finished step and explains the error."""

import logging
import shutil
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from gdpo._files import is_full
from gdpo.errors import DataError, GdpoError
from gdpo.lab.runs.checkpoints import Checkpoint, has_no_room, is_complete, megabytes
from gdpo.lab.runs.directory import RunDirectory
from gdpo.lab.runs.resume import resume_command
from gdpo.lab.training._loop import Loop

if TYPE_CHECKING:
    from gdpo.integrations.trl.resumable import ResumableTrainer

logger = logging.getLogger(__name__)

_PEER_ERRORS = ("gloo", "Connection closed by peer", "Connection reset", "NCCL")
"""Texts in the errors that a process raises when another process of the run has exited."""


def stopped(loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None) -> None:
    """Save the last finished step after a stop request."""
    try:
        loop.save_finished_step(trainer)
    except KeyboardInterrupt as error:
        raise stopped_again(loop, trainer) from error
    except Exception as error:  # noqa: BLE001 (raised again with an explanation)
        _raise_in_words(loop, trainer, start, error)


def failed(
    loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None, error: Exception
) -> None:
    """Save the last finished step, and raise the error that stopped the training run.

    Raises:
        GdpoError: If the cause is known. The message explains the cause.
        Exception: If the cause is not known. The original error is raised.
    """
    may_save = trainer.finished is not None
    try:
        loop.save_finished_step(trainer)
    except Exception:  # report the error that ended the training instead
        logger.warning("the last finished step could not be saved", exc_info=True)
    if may_save and loop.stop.requested:  # these errors come from processes that end one by one
        return
    _raise_in_words(loop, trainer, start, error)


def _raise_in_words(
    loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None, error: Exception
) -> None:
    run = loop.run
    # torch and safetensors report a full disk in errors of other types.
    no_room = has_no_room(run.path, loop.checkpoint_bytes)
    no_room = _remove_half_written(loop, trainer) and no_room
    if is_full(error) or no_room:
        raise disk_full(run, loop.checkpoint_bytes) from error
    if start is not None and isinstance(error, UnpicklingError):
        raise DataError(
            f"{start.path} cannot be loaded: a file in it contains objects that run code when they "
            "are loaded, which gdpo never writes. No code was run, and nothing was trained. Move "
            "this folder away; --resume then uses the previous checkpoint"
        ) from error
    if loop.job.batches.processes > 1 and any(sign in str(error) for sign in _PEER_ERRORS):
        raise GdpoError(f"another process of this run has exited. {safe_step(run)}") from error
    logger.error(
        "the training run stopped with an error. Correct the cause first. %s", safe_step(run)
    )
    raise error


def disk_full(run: RunDirectory, checkpoint: int = 0) -> GdpoError:
    """Return the error for a full disk. The message states the last saved step."""
    takes = f", and a checkpoint needs about {megabytes(checkpoint)}" if checkpoint else ""
    return GdpoError(
        f"the disk that contains {run.path} is full{takes}. Free some space. {safe_step(run)}"
    )


def _remove_half_written(loop: Loop, trainer: "ResumableTrainer") -> bool:
    """Remove incomplete checkpoints, and return whether any checkpoint was removed."""
    if not trainer.args.should_save:
        return False
    begun = [f for f in loop.run.checkpoints.glob("checkpoint-*") if not is_complete(f)]
    for folder in begun:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(begun)


def safe_step(run: RunDirectory) -> str:
    """Return a text that states the last saved step and the command to resume."""
    last = run.last_checkpoint()
    nothing = "No step has been saved yet, so a resumed run starts at step 1"
    what = f"Step {last.step:,} is saved" if last else nothing
    return f"{what}. Resume with: {resume_command(run)}"


def stopped_again(loop: Loop, trainer: "ResumableTrainer") -> KeyboardInterrupt:
    """Remove incomplete checkpoints, and return the exception for a second Ctrl-C."""
    _remove_half_written(loop, trainer)
    return KeyboardInterrupt(f"stopped without saving. {safe_step(loop.run)}")
