"""Finds training rows that are nearly identical to questions from a benchmark."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gdpo.errors import GdpoError
from gdpo.lab.evaluation.benchmarks import BENCHMARKS, GROUPS, Benchmark, problems
from gdpo.lab.recipes.data import Rows
from gdpo.lab.tasks import Problem, Task
from gdpo.lab.tasks.likeness import overlaps
from gdpo.lab.tasks.tool_calling.prompt import user_turns
from gdpo.lab.training.reward_checks import CheckResult, Level

_NAMED = 5
"""Maximum number of rows to list in a finding."""


def benchmarks_at_hand(task: Task) -> list[Benchmark]:
    """Return the benchmarks for a task whose rows come with a package: BFCL or HumanEval."""
    if task.name.startswith("tool_calling"):
        return [BENCHMARKS[name] for name in GROUPS["bfcl"]]
    here = [benchmark for benchmark in BENCHMARKS.values() if benchmark.file() is not None]
    return [benchmark for benchmark in here if benchmark.task().name == task.name]


def overlap_findings(
    task: Task, rows: Rows, benchmarks: Iterable[Benchmark] | None = None
) -> list[CheckResult]:
    """Compare training rows with test questions, and return the findings.

    Rows that overlap (`gdpo.lab.tasks.likeness.overlaps`) are reported as errors. The default is
    `benchmarks_at_hand`.
    """
    tests: list[Problem] = []
    places: list[str] = []
    findings: list[CheckResult] = []
    for benchmark in benchmarks_at_hand(task) if benchmarks is None else benchmarks:
        try:
            found = problems(benchmark, None)
        except GdpoError as error:
            level = Level.NOTE if benchmarks is None else Level.WRONG
            findings.append(CheckResult(level, f"overlap with benchmarks was not checked: {error}"))
            if benchmarks is None:  # these benchmarks all need the same package
                break
            continue
        tests += [_asked(test) for test in found]
        places += [f"question {number} of {benchmark.name}" for number in range(1, len(found) + 1)]
    return [*findings, _compared(rows, tests, places)] if tests else findings


def _compared(rows: Rows, tests: Sequence[Problem], places: Sequence[str]) -> CheckResult:
    like = overlaps(rows.problems, tests)
    given = [(rows.places[i], places[j]) for i, j in enumerate(like) if j is not None]
    names = list(dict.fromkeys(place.rpartition(" ")[2] for place in places))
    shown = ", ".join(names)
    if len(names) > _NAMED:
        shown = f"{', '.join(names[:2])} and {len(names) - 2} more benchmarks"
    asked = f"{len(tests):,} test questions of {shown}"
    if not given:
        return CheckResult(Level.FINE, f"overlap: 0 of {len(like):,} rows match one of the {asked}")
    named = "; ".join(f"{place} ({test})" for place, test in given[:_NAMED])
    more = f"; and {len(given) - _NAMED:,} more" if len(given) > _NAMED else ""
    return CheckResult(
        Level.WRONG,
        f"overlap: {len(given):,} of {len(like):,} rows nearly repeat one of the {asked}: "
        f"{named}{more}. Remove them from the training data",
    )


def _asked(test: Problem) -> Problem:
    """Return a problem with its user turns. For BFCL, extract the turns from ToolRL's prompt."""
    if test.asked:
        return test
    said = (m["content"] for m in test.prompt if m["role"] == "user")
    return replace(test, asked=tuple(turn for text in said for turn in user_turns(text)))
