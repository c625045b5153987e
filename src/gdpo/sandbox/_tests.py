"""What a program is tested with: trusted code and values that never reach the program's memory."""

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Asserts:
    """Statements, each of which is one test: MBPP's way.

    Args:
        statements: Python, most often one `assert` each. A name that neither they, nor `setup`, nor
            Python define is taken from the program.
        setup: Trusted code that runs on both sides before anything else: imports, helpers of the
            tests, and the classes of what is passed to the program. What only the program defines
            is as honest as the program.
    """

    statements: tuple[str, ...]
    setup: str = ""


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
    """

    function: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]


@dataclass(frozen=True, slots=True)
class Stdio:
    """What a program reads and what it must print: the way of programming contests.

    Blanks at the end of a line and empty lines do not count. Where the texts still differ, they are
    compared token by token, and two numbers with a point or an exponent may differ by 1e-6.

    Args:
        cases: Standard input and the expected standard output, one pair per test. Each is a run of
            the whole program in a fresh process.
    """

    cases: tuple[tuple[str, str], ...]


Tests: TypeAlias = Asserts | Check | Calls | Stdio
"""Any of the four kinds of tests."""
