"""Whether rows that are trained on give away the questions of a benchmark."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gdpo.errors import GdpoError
from gdpo.evaluation.benchmarks import BENCHMARKS, GROUPS, Benchmark, problems
from gdpo.recipes.data import Rows
from gdpo.tasks import Problem, Task
from gdpo.tasks.likeness import overlaps
from gdpo.tasks.tool_calling.prompt import user_turns
from gdpo.training.preflight import Finding, Verdict

_NAMED = 5
"""Rows that a finding names, at most."""


def benchmarks_at_hand(task: Task) -> list[Benchmark]:
    """The benchmarks of a kind of task whose rows come with a package: BFCL, HumanEval.

    Args:
        task: What is trained.
    """
    if task.name.startswith("tool_calling"):
        return [BENCHMARKS[name] for name in GROUPS["bfcl"]]
    here = [benchmark for benchmark in BENCHMARKS.values() if benchmark.file() is not None]
    return [benchmark for benchmark in here if benchmark.task().name == task.name]


def overlap_findings(
    task: Task, rows: Rows, benchmarks: Iterable[Benchmark] | None = None
) -> list[Finding]:
    """Compare what is trained on with what is tested on.

    A row gives a test question away if one turn of its user, or all together, is nearly the same
    (`gdpo.tasks.overlaps`), whatever answer is wanted. Such rows are a mistake.

    Args:
        task: What is trained.
        rows: What it is trained on.
        benchmarks: Compare with these. None: with those at hand, as far as they are installed.
    """
    tests: list[Problem] = []
    places: list[str] = []
    findings: list[Finding] = []
    for benchmark in benchmarks_at_hand(task) if benchmarks is None else benchmarks:
        try:
            found = problems(benchmark, None)
        except GdpoError as error:
            verdict = Verdict.NOTE if benchmarks is None else Verdict.WRONG
            findings.append(Finding(verdict, f"overlap: not compared with tests: {error}"))
            if benchmarks is None:  # they come with one package
                break
            continue
        tests += [_asked(test) for test in found]
        places += [f"question {number} of {benchmark.name}" for number in range(1, len(found) + 1)]
    return [*findings, _compared(rows, tests, places)] if tests else findings


def _compared(rows: Rows, tests: Sequence[Problem], places: Sequence[str]) -> Finding:
    like = overlaps(rows.problems, tests)
    given = [(rows.places[i], places[j]) for i, j in enumerate(like) if j is not None]
    names = list(dict.fromkeys(place.rpartition(" ")[2] for place in places))
    asked = f"{len(tests):,} test questions of {_shortened(names)}"
    if not given:
        return Finding(Verdict.FINE, f"overlap: none of {len(like):,} rows asks one of the {asked}")
    named = "; ".join(f"{place} ({test})" for place, test in given[:_NAMED])
    more = f"; and {len(given) - _NAMED:,} more" if len(given) > _NAMED else ""
    return Finding(
        Verdict.WRONG,
        f"overlap: {len(given):,} of {len(like):,} rows nearly ask one of the {asked}: "
        f"{named}{more}. Take them out of the training data",
    )


def _shortened(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:2])} and {len(names) - 2} more benchmarks"


def _asked(test: Problem) -> Problem:
    """A benchmark's problem with what its user said: the prompts of BFCL are ToolRL's text."""
    if test.asked:
        return test
    said = (m["content"] for m in test.prompt if m["role"] == "user")
    return replace(test, asked=tuple(turn for text in said for turn in user_turns(text)))
