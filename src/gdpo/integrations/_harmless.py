"""Calls code that only observes training, so that its errors cannot end the training run."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from gdpo._naming import last_line
from gdpo.errors import DataError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Harmless:
    """Calls functions and catches their exceptions.

    A `DataError` comes from the data of one batch, which is left out, and the first such error is
    logged. Any other exception switches all functions off. `consequence` says in the warning what
    training will lack.
    """

    def __init__(self, consequence: str) -> None:
        self.on = True
        self._consequence = consequence
        self._has_left_out = False

    def __call__(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result | None:
        """Return the result of the function. None: it raised an exception, or all are off."""
        return self.attempt(function, *args, **kwargs) if self.on else None

    def attempt(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result | None:
        try:
            return function(*args, **kwargs)
        except DataError as error:
            if self.on and not self._has_left_out:
                logger.warning(
                    "gdpo leaves a batch out of its metrics, and training continues: %s. Later "
                    "batches like this one are left out without a message",
                    error,
                )
            self._has_left_out = True
        except (Exception, SystemExit) as error:  # noqa: BLE001 (nothing may end a training)
            if self.on:
                kind, place = type(error).__name__, last_line(error)
                logger.warning("%s: %s: %s (%s)", self._consequence, kind, error, place)
            self.on = False
        return None
