"""What became of a program under its tests."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gdpo.errors import RewardError

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
