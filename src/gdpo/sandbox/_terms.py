"""Defines tests, limits and verdicts.

Tests are trusted code and values. They never reach the memory of a program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal, TypeAlias

from gdpo.errors import ConfigError, DataError, RewardError

_FEWEST_FILES = 16
_TIMES_AS_LONG = 15
_LONGEST = 60.0

Outcome: TypeAlias = Literal[
    "passed", "failed", "error", "timeout", "memory", "output", "killed", "not run"
]
"""Outcome of one test: passed; a wrong answer; the program raised an error; the program exceeded a
limit (time, memory or output); the program ended itself or was killed; or the test was not reached.
"""

Bug: TypeAlias = Literal[
    "syntax", "import", "runtime", "timeout", "memory", "output", "killed", "forbidden"
]
"""The first thing that went wrong in a program, other than a wrong answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program, over all its tests.

    In addition, a program may start some hundred threads but no process, cannot reach the network,
    and can write only to `/tmp`.

    Args:
        cpu_seconds: Processor time, in seconds. The kernel counts whole seconds, so the value is
            rounded up.
        wall_seconds: Wall-clock time, in seconds, for a program that sleeps or waits. A program
            that is still computing may use its `cpu_seconds`, however long that takes on a busy
            machine, up to `longest_seconds`.
        memory_mb: Address space in addition to the interpreter's own, in MiB.
        file_mb: Size of one file, in MiB. The size of the sandbox's `/tmp` limits all files
            together.
        open_files: Number of file descriptors, including the three standard streams and the
            sandbox's two pipes.
        output_kb: Size of one answer to a test, or of the output of one case of `Stdio`, in KiB. If
            the tests contain longer expected values, answers may be as long as those.

    Raises:
        ConfigError: If a limit is not a finite number above 0, or `open_files` is too small to
            start a program.
    """

    cpu_seconds: float = 4.0
    wall_seconds: float = 8.0
    memory_mb: int = 512
    file_mb: int = 8
    open_files: int = 64
    output_kb: int = 1024

    @property
    def longest_seconds(self) -> float:
        """Wall-clock time after which every program ends, in seconds.

        It is 15 times `cpu_seconds`, at most 60 seconds, and at least `wall_seconds`.
        """
        return max(self.wall_seconds, min(_TIMES_AS_LONG * self.cpu_seconds, _LONGEST))

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, (int, float)) or not (isfinite(value) and value > 0):
                raise ConfigError(
                    f"limit {field.name!r} must be a finite number above 0, got {value!r}"
                )
        if self.open_files < _FEWEST_FILES:
            raise ConfigError(
                f"limit 'open_files' must be at least {_FEWEST_FILES}, got {self.open_files}. "
                f"Python itself opens some files before the program starts"
            )


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests that are statements, one test each, as in MBPP.

    Args:
        statements: Python statements, usually one `assert` each. Names that neither the statements,
            `setup` nor Python define are taken from the program.
        setup: Trusted code that runs first, in the grader and in the program: imports, helpers of
            the tests, and classes of objects that the tests pass to the program. A helper that only
            the program defines cannot be trusted.

    Raises:
        DataError: If the statements are not a list of texts.
    """

    statements: Sequence[str]
    setup: str = ""

    def __post_init__(self) -> None:
        statements = _listed(self.statements, "Asserts.statements")
        for i, statement in enumerate(statements):
            if not isinstance(statement, str):
                raise DataError(f"Asserts.statements[{i}] must be a string, got {statement!r:.80}")
        object.__setattr__(self, "statements", statements)


@dataclass(frozen=True, slots=True)
class Check:
    """Tests that are the asserts of a function `check(candidate)`, as in HumanEval and LeetCode.

    Each assert that is reached is one test, even if earlier asserts failed. An assert that is not
    reached because the program failed counts as `not run`.

    Args:
        code: Python code that defines `check`.
        entry_point: A Python expression over the program's names that evaluates to the candidate,
            such as `add` or `Solution().twoSum`.
        setup: Trusted code that runs first, in the grader and in the program: imports, helpers of
            the tests, and classes of objects that the tests pass to the program. A helper that only
            the program defines cannot be trusted.
    """

    code: str
    entry_point: str
    setup: str = ""


@dataclass(frozen=True, slots=True)
class Calls:
    """Tests that call a function and compare its return value, as in APPS and TACO.

    A list equals a tuple with equal items, because the rows come from JSON.

    Args:
        function: A Python expression over the program's names, such as `add` or `Solution().add`.
        cases: One pair per test: the list of arguments and the expected value, in JSON types.

    Raises:
        DataError: If the cases are not a list.
    """

    function: str
    cases: Sequence[tuple[Sequence[Any], Any]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", _listed(self.cases, "Calls.cases"))


@dataclass(frozen=True, slots=True)
class Stdio:
    """Tests that compare a whole program's output for an input, as in programming contests.

    Blanks at the end of a line and empty lines are ignored. If the texts still differ, they are
    compared token by token, and two numbers with a point or an exponent may differ by 1e-6.

    Args:
        cases: One pair per test: standard input and the expected standard output. Each test runs
            the whole program in a new process.

    Raises:
        DataError: If the cases are not a list.
    """

    cases: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", _listed(self.cases, "Stdio.cases"))


Tests: TypeAlias = Asserts | Check | Calls | Stdio
"""Any of the four kinds of tests."""


def _listed(given: Any, place: str) -> tuple[Any, ...]:
    if isinstance(given, (list, tuple)):
        return tuple(given)
    raise DataError(f"{place} must be a list with one entry per test, got {given!r:.80}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Stores the outcome of every test of a program.

    Args:
        outcomes: One outcome per test, in order.
        bug: The program's first bug. None: it had no bug. A wrong answer is not a bug.
        message: The first thing that went wrong, in at most 500 printable characters; empty if
            nothing did. The program may have written it, so do not trust it.
        seconds: Wall-clock time of the program, in seconds.
        by_clock: Whether a wall-clock limit ended the program. Another run may then have another
            verdict. False if the program used up its processor time.
    """

    outcomes: tuple[Outcome, ...]
    bug: Bug | None
    message: str
    seconds: float
    by_clock: bool = False

    @property
    def passed(self) -> int:
        """Number of passed tests."""
        return self.outcomes.count("passed")

    @property
    def total(self) -> int:
        """Number of tests."""
        return len(self.outcomes)

    @property
    def pass_rate(self) -> float:
        """Passed tests divided by all tests, in [0, 1]; 0.0 without tests."""
        return self.passed / self.total if self.outcomes else 0.0

    @property
    def pass_all(self) -> bool:
        """Whether there is at least one test and all tests passed."""
        return bool(self.outcomes) and self.passed == self.total

    @property
    def no_bug(self) -> bool:
        """Whether the program compiled, ran, and stayed within its limits."""
        return self.bug is None


class SandboxError(RewardError):
    """The sandbox itself failed, so there is no verdict on the program."""
