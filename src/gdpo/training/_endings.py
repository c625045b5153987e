"""How a training ends before its last step: saved as far as it is, and told in words."""

import logging
import shutil
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from gdpo._files import is_full
from gdpo.errors import DataError, GdpoError
from gdpo.runs.checkpoints import Checkpoint, has_no_room, is_complete, megabytes
from gdpo.runs.directory import RunDirectory
from gdpo.runs.resume import resume_command
from gdpo.training._loop import Loop

if TYPE_CHECKING:
    from gdpo.integrations.trl.resumable import ResumableTrainer

logger = logging.getLogger(__name__)

_OF_PEERS = ("gloo", "Connection closed by peer", "Connection reset", "NCCL")
"""What the errors say that a process gets when another one of the same training has ended."""


def stopped(loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None) -> None:
    """Save what the last finished step left, of a training that was asked to stop."""
    try:
        loop.save_finished_step(trainer)
    except KeyboardInterrupt as error:
        raise stopped_again(loop, trainer) from error
    except Exception as error:  # noqa: BLE001 (raised again in words)
        _raise_in_words(loop, trainer, start, error)


def failed(
    loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None, error: Exception
) -> None:
    """Save what the last finished step left, and raise what ended the training.

    Raises:
        GdpoError: In words, where it is known what it means.
        Exception: The error itself elsewhere.
    """
    may_save = trainer.finished is not None
    try:
        loop.save_finished_step(trainer)
    except Exception:  # what ended the training is what is told
        logger.warning("what the last finished step left could not be saved", exc_info=True)
    if may_save and loop.stop.requested:  # errors of processes that end one by one mean nothing
        return
    _raise_in_words(loop, trainer, start, error)


def _raise_in_words(
    loop: Loop, trainer: "ResumableTrainer", start: Checkpoint | None, error: Exception
) -> None:
    run = loop.run
    # torch and safetensors hide a full disk in texts of their own.
    no_room = has_no_room(run.path, loop.checkpoint_bytes)
    no_room = _remove_half_written(loop, trainer) and no_room
    if is_full(error) or no_room:
        raise disk_full(run, loop.checkpoint_bytes) from error
    if start is not None and isinstance(error, UnpicklingError):
        raise DataError(
            f"{start.path} cannot be loaded: a file in it holds objects that would run code, "
            "and no checkpoint of gdpo's does. None was run, and nothing was trained. Move the "
            "folder away, and --resume goes on from the checkpoint before it"
        ) from error
    if loop.job.batches.processes > 1 and any(sign in str(error) for sign in _OF_PEERS):
        raise GdpoError(f"another process of this training has ended. {safe_step(run)}") from error
    logger.error("the training ended with an error. %s", safe_step(run))
    raise error


def disk_full(run: RunDirectory, checkpoint: int = 0) -> GdpoError:
    """Return what a full disk raises: it names the step that is safe."""
    takes = f"; a checkpoint takes about {megabytes(checkpoint)}" if checkpoint else ""
    return GdpoError(f"the disk of {run.path} is full{takes}. Make room. {safe_step(run)}")


def _remove_half_written(loop: Loop, trainer: "ResumableTrainer") -> bool:
    """Remove checkpoints that were begun and not completed; whether there were any."""
    if not trainer.args.should_save:
        return False
    begun = [f for f in loop.run.checkpoints.glob("checkpoint-*") if not is_complete(f)]
    for folder in begun:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(begun)


def safe_step(run: RunDirectory) -> str:
    """Say which step a run goes on from, and how."""
    last = run.last_checkpoint()
    what = f"Step {last.step:,} is safe" if last else "No step was saved yet"
    return f"{what}. Continue with: {resume_command(run)}"


def stopped_again(loop: Loop, trainer: "ResumableTrainer") -> KeyboardInterrupt:
    """Return what a second Ctrl-C raises, and remove what is half written."""
    _remove_half_written(loop, trainer)
    return KeyboardInterrupt(f"stopped without saving. {safe_step(loop.run)}")
