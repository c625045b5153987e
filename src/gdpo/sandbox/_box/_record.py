"""Records the outcome of each test while the tests run.

The host has rewritten the tests' code: every assert is wrapped in `with record.one():`, and every
loop body and all of `check` in `with record.block(n):`. `record.settle()` precedes every statement.
A failed test therefore does not stop the others.
"""

from types import TracebackType
from typing import Any

from ._process import BadTests, Failure, Process

_MOST = 100_000
"""Maximum number of tests in one job. It ends an infinite loop whose failures are caught."""


class TooManyTests(BaseException):
    """The tests do not end."""


class Record:
    """Stores the outcome of each test so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._end_recorded = False
        self.missing: frozenset[str] = frozenset()
        """Names that the tests need from the program and that it does not define."""
        self.outcomes: list[str] = []
        self.first: Failure | None = None
        """The program's first bug."""
        self.wrong: str = ""
        """The first wrong answer."""

    def settle(self) -> None:
        """Call `Process.settle`. The tests call this before each statement."""
        self._process.settle()

    def one(self) -> "Guard":
        """Return a guard for one assert, which is one test."""
        return Guard(self, 1)

    def block(self, tests: int) -> "Guard":
        """Return a guard for statements with this many asserts.

        If they end early, the remaining asserts are recorded as not run.
        """
        return Guard(self, tests, whole=False)

    def add(self, error: BaseException | None) -> None:
        """Record one more test. It passed if there is no error."""
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
        """Return the program's failure in this test; None if the program did not fail."""
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
    """Catches errors in a test or between tests, and records them."""

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
