"""What a program is run with, and what becomes of it: tests, limits, verdict.

The tests are trusted code and values, which never reach the program's memory.
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
"""What became of one test: passed; a wrong answer; the program raised; a limit was hit; the program
ended itself or was killed; or it never came to this test."""

Bug: TypeAlias = Literal[
    "syntax", "import", "runtime", "timeout", "memory", "output", "killed", "forbidden"
]
"""The first thing that went wrong in a program beside wrong answers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use over all its tests.

    It may start some hundred threads but no process, reach no network, and write to `/tmp` alone.

    Args:
        cpu_seconds: Processor time, in seconds; the kernel counts in whole ones, so the next whole
            second counts.
        wall_seconds: Time on the clock, in seconds, for a program that sleeps or waits. One that is
            still computing has its `cpu_seconds`, however long a busy machine takes for them, up to
            `longest_seconds`.
        memory_mb: Address space, in MiB, beside the interpreter's own.
        file_mb: The largest file, in MiB; all files together are bounded by the sandbox's `/tmp`.
        open_files: File descriptors, the three standard ones and the sandbox's two among them.
        output_kb: One answer to a test, or what one case of `Stdio` prints, in KiB. Where the tests
            write out longer values, answers may be as long as those.

    Raises:
        ConfigError: A limit is not a finite number above 0, or there are too few descriptors to
            start a program at all.
    """

    cpu_seconds: float = 4.0
    wall_seconds: float = 8.0
    memory_mb: int = 512
    file_mb: int = 8
    open_files: int = 64
    output_kb: int = 1024

    @property
    def longest_seconds(self) -> float:
        """Time on the clock after which every program ends, in seconds.

        It is 15 times `cpu_seconds`, but at most 60 seconds, and never less than `wall_seconds`.
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
                f"limit 'open_files' must be at least {_FEWEST_FILES}, got {self.open_files}: a "
                f"program holds some of them before it starts"
            )


@dataclass(frozen=True, slots=True)
class Asserts:
    """Statements, each of which is one test: MBPP's way.

    Args:
        statements: Python, most often one `assert` each. A name that neither they, nor `setup`, nor
            Python define is taken from the program.
        setup: Trusted code that runs on both sides before anything else: imports, helpers of the
            tests, and the classes of what is passed to the program. What only the program defines
            is as honest as the program.

    Raises:
        DataError: The statements are no list of texts.
    """

    statements: Sequence[str]
    setup: str = ""

    def __post_init__(self) -> None:
        statements = _listed(self.statements, "Asserts.statements")
        for i, statement in enumerate(statements):
            if not isinstance(statement, str):
                raise DataError(f"Asserts.statements[{i}] must be text, got {statement!r:.80}")
        object.__setattr__(self, "statements", statements)


@dataclass(frozen=True, slots=True)
class Check:
    """A function `check(candidate)` whose asserts are the tests: HumanEval's and LeetCode's way.

    Each assert that is reached is one test, whatever became of the others; one that is never
    reached because the program failed counts as not run.

    Args:
        code: Defines `check`.
        entry_point: An expression over the program's names that gives the candidate, such as `add`
            or `Solution().twoSum`.
        setup: Trusted code that runs on both sides before anything else: imports, helpers of the
            tests, and the classes of what is passed to the program. What only the program defines
            is as honest as the program.
    """

    code: str
    entry_point: str
    setup: str = ""


@dataclass(frozen=True, slots=True)
class Calls:
    """Arguments and the value that a function must return for them: APPS' and TACO's way.

    A list and a tuple of equal items are equal here, because the rows come from JSON.

    Args:
        function: An expression over the program's names, such as `add` or `Solution().add`.
        cases: Arguments and the expected value, one pair per test, in JSON's types.

    Raises:
        DataError: The cases are no list.
    """

    function: str
    cases: Sequence[tuple[Sequence[Any], Any]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", _listed(self.cases, "Calls.cases"))


@dataclass(frozen=True, slots=True)
class Stdio:
    """What a program reads and what it must print: the way of programming contests.

    Blanks at the end of a line and empty lines do not count. Where the texts still differ, they are
    compared token by token, and two numbers with a point or an exponent may differ by 1e-6.

    Args:
        cases: Standard input and the expected standard output, one pair per test. Each is a run of
            the whole program in a fresh process.

    Raises:
        DataError: The cases are no list.
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
    """What became of a program under its tests.

    Args:
        outcomes: One per test, in the tests' order.
        bug: The program's first bug, None if it had none. A wrong answer is none.
        message: The first thing that went wrong, in the program's words where it has some: at most
            500 printable characters, not to be trusted. Empty if all went well.
        seconds: Time on the clock from the program's start to its end.
        by_clock: Whether the clock ended it: a program that sleeps, or one on a machine so busy
            that another run may have another verdict. False where its processor time was used up.
    """

    outcomes: tuple[Outcome, ...]
    bug: Bug | None
    message: str
    seconds: float
    by_clock: bool = False

    @property
    def passed(self) -> int:
        """Number of tests passed."""
        return self.outcomes.count("passed")

    @property
    def total(self) -> int:
        """Number of tests."""
        return len(self.outcomes)

    @property
    def pass_rate(self) -> float:
        """Passed tests over all tests, in [0, 1]; 0.0 where there is no test."""
        return self.passed / self.total if self.outcomes else 0.0

    @property
    def pass_all(self) -> bool:
        """Whether there are tests and all passed."""
        return bool(self.outcomes) and self.passed == self.total

    @property
    def no_bug(self) -> bool:
        """Whether the program compiled, ran, and stayed within its limits."""
        return self.bug is None


class SandboxError(RewardError):
    """The sandbox itself failed: there is no verdict on the program."""
