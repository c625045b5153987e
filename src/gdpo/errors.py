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
    """Base class of all errors that a user of gdpo can cause and fix."""


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
            + (f". {install_hint(extra)}" if extra else "")
        )


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise a ConfigError unless a value is an integer of at least `least`, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")


def install_hint(extra: str) -> str:
    """Return a sentence, without final period, that explains how to install an extra.

    Args:
        extra: Name of the extra in `pyproject.toml`, such as "train".

    Examples:
        >>> install_hint("train")
        "To install it, run this command in a clone of gdpo: pip install '.[train]'"
    """
    return f"To install it, run this command in a clone of gdpo: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra in a clone of gdpo."""
    return f"pip install '.[{extra}]'"


def rank() -> str:
    """Return the rank of this process in a distributed run."""
    return os.environ.get("RANK", "0")
