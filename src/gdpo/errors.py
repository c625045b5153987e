"""Defines the errors that a user of gdpo can cause and fix, and the exit codes of the command line.

```
GdpoError
├── ConfigError(ValueError)         a recipe, an option or an argument is wrong
├── DataError(ValueError)           a file, a row or an array of rewards is wrong
├── RewardError(RuntimeError)       a reward function broke its contract
│   └── SandboxError                the sandbox failed, not the program in it (gdpo.lab.sandbox)
└── MissingExtraError(ImportError)  a package from one of gdpo's extras is not installed
```

Messages say what is wrong, where, what is allowed and what to do. The command line prints them
without a traceback. Any other exception is a bug in gdpo or a library.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gdpo._text import NO_REMEDY, Remedy, remedied

FAILED = 1
"""A check failed, a finding met `gdpo analyze --fail-on`, or a training run failed."""

MISTAKE = 2
"""The command line, a recipe or a file is invalid. A message on stderr explains the error."""

CRASHED = 70
"""A failure of gdpo or of the machine. The traceback or the reason is on stderr.

Python's default exit code for a crash is 1, which scripts could not distinguish from FAILED.
"""

CLOSED = 141
"""The reader of the output closed the pipe. Shells report this code for SIGPIPE."""

INTERRUPTED = 130
"""The user pressed Ctrl-C. Shells report this code for SIGINT."""

STOPPED = "stopped. Rerun the same command; add --resume if training had started"
"""What is printed with INTERRUPTED."""


class GdpoError(Exception):
    """Base class of all errors that a user of gdpo can cause and fix.

    Args:
        what: What is wrong, where, and what is allowed.
        remedy: What to do, and what to set. The message names arguments of Python, and the command
            line prints options instead.
    """

    what, remedy = "", NO_REMEDY  # of a subclass that does not call `__init__`

    def __init__(self, what: str = "", remedy: Remedy = NO_REMEDY) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(remedied(what, remedy))


class ConfigError(GdpoError, ValueError):
    """Raised if a recipe, an option or an argument is wrong."""


class DataError(GdpoError, ValueError):
    """Raised if a file, a row or an array of rewards is wrong."""


class RewardError(GdpoError, RuntimeError):
    """Raised if a reward function raises an exception or returns an invalid value.

    Valid: a number in the declared range, or `None` if the reward does not apply.
    """


class MissingExtraError(GdpoError, ImportError):
    """Raised if a package from one of gdpo's extras is not installed.

    Args:
        package: Name of the package.
        extra: Name of the extra that installs it. None: `package` also explains how to install it.
        purpose: Why the package is needed, such as "to draw".
    """

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        super().__init__(
            f"{package} is needed {purpose}, but it is not installed"
            + (
                f". To install it, run this command in a clone of gdpo: {install_command(extra)}"
                if extra
                else ""
            )
        )


def spelled(error: BaseException) -> str:
    """Return the type and the text of an exception.

    >>> spelled(ValueError("no digits"))
    'ValueError: no digits'
    """
    return f"{type(error).__name__}: {error}"


@contextmanager
def boundary(
    kind: type[GdpoError],
    words: Callable[[BaseException], str] = spelled,
    *,
    passed: type[BaseException] = KeyboardInterrupt,
) -> Generator[None]:
    """Run code of a user in the `with` block: what it raises becomes an error of gdpo.

    The exception of the user's code stays its cause.

    Args:
        kind: The error that is raised, such as a `RewardError`.
        words: Returns its message, which says what ran, and where.
        passed: What is raised as it is.

    Examples:
        >>> try:
        ...     with boundary(RewardError):
        ...         {}["gold"]
        ... except RewardError as error:
        ...     print(error, "-", repr(error.__cause__))
        KeyError: 'gold' - KeyError('gold')
    """
    try:
        yield
    except passed:
        raise
    except (Exception, SystemExit) as error:
        raise kind(words(error)) from error


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise a ConfigError unless a value is an integer of at least `least`, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of `pyproject.toml` in a clone of gdpo.

    >>> install_command("train")
    "pip install '.[train]'"
    """
    return f"pip install '.[{extra}]'"


def rank() -> str:
    """Return the rank of this process in a distributed run."""
    return os.environ.get("RANK", "0")
