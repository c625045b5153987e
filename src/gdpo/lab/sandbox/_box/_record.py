"""Records the outcome of each test during the run.

The host rewrites the tests' code. Every assert is wrapped in `with record.one():`. Every loop body
and the whole function `check` are wrapped in `with record.block(n):`. Before every statement,
`record.settle()` is called. A failed test therefore does not stop the remaining tests.
"""

from types import TracebackType
from typing import Any

from ._process import BadTests, Failure, Process

_MOST = 100_000
"""Maximum number of tests in one job. The limit stops infinite loops, because a failed test does
not stop a loop.
"""


class TooManyTests(BaseException):
    """Raised if the tests do not finish."""


class Record:
    """Stores the outcome of each test so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._end_recorded = False
        self.missing: frozenset[str] = frozenset()
        """Names that the tests need but the program does not define."""
        self.outcomes: list[str] = []
        self.first: Failure | None = None
        """The program's first bug. None: no bug so far."""
        self.wrong: str = ""
        """Description of the first wrong answer. Empty: no wrong answer so far."""

    def settle(self) -> None:
        """Call `Process.settle`. The tests call this method before each statement."""
        self._process.settle()

    def one(self) -> "Guard":
        """Return a guard for one assert, which is one test."""
        return Guard(self, 1)

    def block(self, tests: int) -> "Guard":
        """Return a guard for a block of statements with the given number of asserts.

        If an error ends the block early, the remaining asserts are recorded as not run.
        """
        return Guard(self, tests, whole=False)

    def add(self, error: BaseException | None) -> None:
        """Record one more test. If there is no error, the test passed."""
        if len(self.outcomes) >= _MOST:
            raise TooManyTests
        self.outcomes.append(self._outcome(error))

    def add_case(self, failure: Failure | None, *, right: bool) -> None:
        """Record one run of a whole program."""
        if failure is not None:
            self.first = self.first or failure
            self.outcomes.append(failure.outcome)
        else:
            self.outcomes.append("passed" if right else self._wrong(""))

    def add_missed(self, tests: int) -> None:
        """Record tests that were never reached."""
        self.outcomes += ["not run"] * tests

    def _outcome(self, error: BaseException | None) -> str:
        failure = self._failure(error)
        if failure is not None:
            self.first = self.first or failure
            return failure.outcome
        if error is None and self._process.failure is None:
            return "passed"
        if self._process.failure is not None:
            return "not run"
        return self._wrong("" if isinstance(error, AssertionError) else type(error).__name__)

    def _wrong(self, kind: str) -> str:
        if not self.wrong:
            place = f"test {len(self.outcomes) + 1}: wrong answer"
            self.wrong = f"{place} (the test raised {kind})" if kind else place
        return "failed"

    def _failure(self, error: BaseException | None) -> Failure | None:
        """Return the program's failure in this test. None: the program did not fail."""
        process = self._process
        if process.failure is not None:
            recorded, self._end_recorded = self._end_recorded, True
            return None if recorded else process.failure
        if process.raised and (process.not_loaded or error is process.raised[0]):
            return process.raised[1]
        if isinstance(error, NameError) and error.name in self.missing:
            return Failure("error", "runtime", f"NameError: name {error.name!r} is not defined")
        return None


class Guard:
    """Catches and records errors in a test or between tests."""

    def __init__(self, record: Record, tests: int, *, whole: bool = True) -> None:
        self._record = record
        self._tests = tests
        self._whole = whole

    def __enter__(self) -> None:
        self._before = len(self._record.outcomes)

    def __exit__(
        self, kind: Any, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, (BadTests, TooManyTests)):
            return False
        if self._whole:
            self._record.add(error)
        elif error is not None:
            seen = len(self._record.outcomes) - self._before
            self._record.add(error)
            self._record.add_missed(self._tests - seen - 1)
        return True
