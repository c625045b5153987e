"""What can go wrong for a user of gdpo.

```
GdpoError
├── ConfigError(ValueError)         a recipe, an option or an argument is wrong
├── DataError(ValueError)           a file, a row or an array of rewards is wrong
├── RewardError(RuntimeError)       a reward function broke its contract
│   └── SandboxError                the sandbox failed, not the program (gdpo.sandbox)
└── MissingExtraError(ImportError)  a package of one of gdpo's extras is not installed
```

Every message says what is wrong, where, what is allowed and what to do. The command line prints
these without a traceback; anything else that is raised is a defect of gdpo or of a library.
"""


class GdpoError(Exception):
    """Base of all errors that a user of gdpo can cause and mend."""


class ConfigError(GdpoError, ValueError):
    """A recipe, an option or an argument is wrong."""


class DataError(GdpoError, ValueError):
    """A file, a row or an array of rewards is wrong."""


class RewardError(GdpoError, RuntimeError):
    """A reward function broke its contract: it raised, or returned what is no reward."""


class MissingExtraError(GdpoError, ImportError):
    """A package of one of gdpo's extras is not installed.

    Args:
        package: The package that could not be imported.
        extra: The extra of gdpo that brings it; None: none does, and `package` says how it is had.
        purpose: What it is needed for, as the end of a sentence.
    """

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        how = f"pip install '.[{extra}]', in a clone of gdpo"
        super().__init__(
            f"{package} is needed {purpose}, and it is not installed"
            + (f". Install it with: {how}" if extra else "")
        )
