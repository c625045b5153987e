"""Defines tests, limits and verdicts.

Tests are trusted code and values, and are never in a program's memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal, TypeAlias

from gdpo._text import describe
from gdpo.errors import ConfigError, DataError, RewardError

_FEWEST_FILES = 16
_TIMES_AS_LONG = 15
_LONGEST = 60.0

Outcome: TypeAlias = Literal[
    "passed", "failed", "error", "timeout", "memory", "output", "killed", "not run"
]
"""Outcome of one test.

"failed" means a wrong answer, and "error" means that the program raised an exception. "timeout",
"memory" and "output" mean that the program exceeded a limit. "killed" means that the program exited
on its own or was killed. "not run" means that the test was not reached.
"""

Bug: TypeAlias = Literal[
    "syntax", "import", "runtime", "timeout", "memory", "output", "killed", "forbidden"
]
"""Kind of a program's first error. A wrong answer is not a bug."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Stores the limits of one program, for all its tests combined.

    A program can start a few hundred threads but no processes, has no network, and can write only
    to `/tmp`.

    Args:
        cpu_seconds: CPU time, rounded up to whole seconds.
        wall_seconds: Wall-clock time of a program that sleeps or waits. One that is still computing
            may use up its `cpu_seconds`, within `longest_seconds`.
        memory_mb: Address space in MiB beyond the interpreter's own.
        file_mb: Size of a file in MiB. The size of `/tmp` in the sandbox limits all files together.
        open_files: Number of file descriptors, including the three standard streams and the
            sandbox's two pipes.
        output_kb: Size, in KiB, of one reply to a test, or of the output of one `Stdio` case. A
            larger expected value in the tests raises the limit.

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
        """Maximum wall-clock time of any program, in seconds.

        15 times `cpu_seconds`, but at most 60 and at least `wall_seconds`.
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
    """Stores tests as statements, one statement per test, as in MBPP.

    Args:
        statements: Python statements, usually one `assert` each. Names defined neither in the
            statements, nor in `setup`, nor in Python are the program's.
        setup: Trusted code that runs first, in the grader and in the program: imports, helper
            functions of the tests, and classes of objects that the tests pass to the program. A
            helper that only the program defines cannot be trusted.

    Raises:
        DataError: If `statements` is not a non-empty list of strings.
    """

    statements: Sequence[str]
    setup: str = ""

    def __post_init__(self) -> None:
        statements = _listed(self.statements, "Asserts.statements")
        for i, statement in enumerate(statements):
            _check_text(statement, f"Asserts.statements[{i}]")
        _check_text(self.setup, "Asserts.setup")
        object.__setattr__(self, "statements", statements)


@dataclass(frozen=True, slots=True)
class Check:
    """Stores tests as a `check(candidate)` function, as in HumanEval and LeetCode.

    Each assert is one test, also after a failed one. An assert that is not reached because the
    program failed counts as `not run`.

    Args:
        code: Python code that defines `check`.
        entry_point: Python expression for the candidate, with names from the program, such as `add`
            or `Solution().twoSum`.
        setup: Trusted code that runs first, as in `Asserts`.
    """

    code: str
    entry_point: str
    setup: str = ""

    def __post_init__(self) -> None:
        for name in ("code", "entry_point", "setup"):
            _check_text(getattr(self, name), f"Check.{name}")


@dataclass(frozen=True, slots=True)
class Calls:
    """Stores tests that call a function and compare its return value, as in APPS and TACO.

    A list equals a tuple with equal items, because JSON has no tuples.

    Args:
        function: Python expression for the function, with names from the program, such as `add` or
            `Solution().add`.
        cases: One pair per test, with the list of arguments and the expected value in JSON types.

    Raises:
        DataError: If the cases are not a non-empty list of such pairs.
    """

    function: str
    cases: Sequence[tuple[Sequence[Any], Any]]

    def __post_init__(self) -> None:
        _check_text(self.function, "Calls.function")
        cases = _pairs(self.cases, "Calls.cases")
        for i, (arguments, _) in enumerate(cases):
            if not isinstance(arguments, (list, tuple)):
                raise DataError(
                    f"Calls.cases[{i}]: the arguments must be a list, even if there is only one, "
                    f"got {describe(arguments)}"
                )
        object.__setattr__(self, "cases", tuple((tuple(given), value) for given, value in cases))


@dataclass(frozen=True, slots=True)
class Stdio:
    """Stores tests that run the whole program and compare its output, as in programming contests.

    Trailing whitespace and empty lines are ignored. If the texts still differ, they are compared
    token by token, and two numbers with a decimal point or an exponent may differ by 1e-6 (above 1,
    relative to the expected number). Each test runs the program in a new process.

    Args:
        cases: One pair per test, with the standard input and the expected standard output.

    Raises:
        DataError: If the cases are not a non-empty list of pairs of strings.
    """

    cases: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        cases = _pairs(self.cases, "Stdio.cases")
        for i, case in enumerate(cases):
            for k, text in enumerate(case):
                _check_text(text, f"Stdio.cases[{i}][{k}]")
        object.__setattr__(self, "cases", cases)


Tests: TypeAlias = Asserts | Check | Calls | Stdio
"""Union of the four kinds of tests."""


def _listed(given: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)):
        raise DataError(f"{place} must be a list with one entry per test, got {describe(given)}")
    if not given:
        raise DataError(f"{place} is empty. Add at least one test")
    return tuple(given)


def _pairs(given: Any, place: str) -> tuple[tuple[Any, Any], ...]:
    for i, case in enumerate(_listed(given, place)):
        if not isinstance(case, (list, tuple)) or len(case) != 2:
            raise DataError(
                f"{place}[{i}] must be a pair of input and expected output, got {describe(case)}"
            )
    return tuple((first, second) for first, second in given)


def _check_text(given: Any, place: str) -> None:
    if not isinstance(given, str):
        raise DataError(f"{place} must be a string, got {describe(given)}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Stores the outcome of every test of a program.

    Args:
        outcomes: One outcome per test, in order.
        bug: The program's first bug, or None. A wrong answer is not a bug.
        message: The first bug or wrong answer in at most 500 printable characters, or "". Do not
            trust this text: the program may have written it.
        seconds: The program's wall-clock time, in seconds.
        by_clock: Whether a wall-clock limit, not the CPU-time limit, stopped the program, so that
            the verdict may differ in a second run.
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
        """Share of the tests that passed, or 0.0 if there are no tests."""
        return self.passed / self.total if self.outcomes else 0.0

    @property
    def pass_all(self) -> bool:
        """True if there is at least one test and all tests passed."""
        return bool(self.outcomes) and self.passed == self.total

    @property
    def no_bug(self) -> bool:
        """True if the program compiled, ran without errors, and stayed within its limits."""
        return self.bug is None


class SandboxError(RewardError):
    """Raised if the sandbox itself fails, so that there is no verdict on the program."""
