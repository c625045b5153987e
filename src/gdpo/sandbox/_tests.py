"""What a program is tested with: trusted code and values that never reach the program's memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gdpo.errors import DataError


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
