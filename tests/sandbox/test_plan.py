"""Compiling tests for the sandbox."""

import re
import threading
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from gdpo.errors import DataError
from gdpo.lab.sandbox import Asserts, Calls, Limits, Stdio
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
    failed = []

    def work(number):
        for i in range(20):
            for _ in range(30):
                Cyclic()
            statements = tuple(
                f"assert f({number}, {i}, {k}) == {k * '(1 + '}1{k * ')'}" for k in range(20)
            )
            try:
                plan(Asserts(statements))
            except SystemError as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


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
    ("make", "message"),
    [
        (Asserts, r"Asserts.statements .*'assert"),
        (partial(Calls, "f"), r"Calls.cases .*'assert"),
        (Stdio, r"Stdio.cases .*'assert"),
    ],
)
def test_one_text_is_no_list_of_tests(make, message):
    with pytest.raises(DataError, match=message):
        make("assert f(1) == 1")


def test_a_statement_is_text():
    with pytest.raises(DataError, match=r"Asserts.statements\[1\]"):
        Asserts(["assert f(1)", ("assert f(2)",)])


def test_the_reference_names_every_limit_with_its_default_and_every_bug():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sandbox.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", page, re.MULTILINE))
    assert {name: float(value) for name, value in documented.items()} == asdict(Limits())
    bugs = page.partition("| bug |")[2].partition("\n\n")[0]
    named = [name for row in bugs.splitlines()[2:] for name in re.findall(r"`(\w+)`", row[:50])]
    assert set(named) >= set(get_args(Bug))
