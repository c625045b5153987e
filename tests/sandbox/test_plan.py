"""Compiling tests for the sandbox."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import get_args

import pytest
from tests.environments import ROOT
from tests.refusals import data_error

from gdpo.lab.sandbox import Asserts, Calls, Check, Limits, Stdio
from gdpo.lab.sandbox._terms import Bug
from gdpo.lab.sandbox.plan import plan


class Cyclic:
    """Garbage whose finalizer runs Python code, so that another thread may take over."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sum(range(2000))


def test_several_threads_may_bring_tests_at_a_time():
    """CPython before 3.12.2 sometimes fails if two threads parse."""

    def work(number):
        for i in range(20):
            for _ in range(30):
                Cyclic()
            statements = tuple(
                f"assert f({number}, {i}, {k}) == {k * '(1 + '}1{k * ')'}" for k in range(20)
            )
            plan(Asserts(statements))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


@pytest.mark.parametrize(
    ("listed", "tests"),
    [
        (Asserts(["assert f(1)"]), Asserts(("assert f(1)",))),
        (Calls("f", [[[1], 1]]), Calls("f", (((1,), 1),))),
        (Stdio([["1", "1"]]), Stdio((("1", "1"),))),
    ],
)
def test_tests_may_stand_in_lists(listed, tests):
    assert plan(listed)[2] == plan(tests)[2] == 1


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Asserts, ["assert f(1) == 1"], r"Asserts.statements .*'assert"),
        (Asserts, [()], "Asserts.statements is empty"),
        (Asserts, [["assert f(1)", ("assert f(2)",)]], r"Asserts.statements\[1\]"),
        (Check, ["def check(c): pass", None], "Check.entry_point must be a string, got nothing"),
        (Calls, ["f", "assert f(1) == 1"], r"Calls.cases .*'assert"),
        (Calls, ["f", ()], "Calls.cases is empty"),
        (Calls, ["f", ((1, 1),)], r"Calls.cases\[0\]: .* 1$"),
        (Calls, ["f", (("ab", 1),)], r"Calls.cases\[0\]: .*'ab'"),
        (Calls, ["f", ("ab",)], r"Calls.cases\[0\]"),
        (Stdio, ["assert f(1) == 1"], r"Stdio.cases .*'assert"),
        (Stdio, [()], "Stdio.cases is empty"),
        (Stdio, [(("a", 1),)], r"Stdio.cases\[0\]\[1\]"),
    ],
)
def test_what_is_no_list_of_tests_is_refused(kind, given, message):
    with data_error(message):
        kind(*given)


def test_the_reference_names_every_limit_with_its_default_and_every_bug():
    page = (ROOT / "docs" / "reference" / "sandbox.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE))
    assert {name: float(value) for name, value in documented.items()} == asdict(Limits())
    bugs = page.partition("| bug |")[2].partition("\n\n")[0]
    named = [name for row in bugs.splitlines()[2:] for name in re.findall(r"`(\w+)`", row[:50])]
    assert set(named) >= set(get_args(Bug))
