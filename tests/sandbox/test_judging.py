"""Verdicts for each kind of tests, on correct, wrong and broken programs."""

import pytest
from tests.refusals import config_error
from tests.sandbox.conftest import GOOD, ONE
from tests.sandbox.needed import needs_sandbox

from gdpo.errors import ConfigError, DataError
from gdpo.lab.sandbox import Asserts, Calls, Check, Limits, Verdict

pytestmark = needs_sandbox


def test_each_statement_is_one_test(run):
    verdict = run(
        "def add(a, b): return a + b", Asserts(("assert add(1, 2) == 3", "assert add(1, 1) == 3"))
    )
    assert verdict.outcomes == ("passed", "failed")
    assert (verdict.bug, verdict.message) == (None, "test 2: wrong answer")
    assert (verdict.passed, verdict.total, verdict.pass_rate) == (1, 2, 0.5)
    assert verdict.no_bug
    assert not verdict.pass_all


def test_no_test_is_no_pass():
    nothing = Verdict((), None, "", 0.0)
    assert nothing.pass_rate == 0.0
    assert not nothing.pass_all


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "outcomes", "bug"),
    [
        ("def add(a, b) return", ("error", "error"), "syntax"),
        ("x = '\\0'\n\0", ("error", "error"), "syntax"),
        ("import numpy", ("error", "error"), "import"),
        ("def add(a, b):\n    import numpy", ("error", "error"), "import"),
        ("1 / 0", ("error", "error"), "runtime"),
        ("exit()", ("error", "error"), "runtime"),
        ("def sub(a, b): return a - b", ("error", "error"), "runtime"),
        ("def add(a, b): return 6 // (a - 1)", ("error", "passed"), "runtime"),
        ("def add(a, b): exit()", ("error", "error"), "runtime"),
        ("import os\ndef add(a, b): os._exit(0)", ("killed", "not run"), "killed"),
        ("import os\nos._exit(0)", ("killed", "not run"), "killed"),
        ("def add(a, b): return [0] * 10**9", ("memory", "memory"), "memory"),
        ("def add(a, b): return 'a' * 10**7", ("output", "not run"), "output"),
        (
            "import itertools\ndef add(a, b): return itertools.count()",
            ("output", "output"),
            "output",
        ),
        ("def add(a, b):\n    while True: pass", ("timeout", "not run"), "timeout"),
        ("import time\ntime.sleep(60)", ("timeout", "not run"), "timeout"),
        ("def add(a, b): return None", ("failed", "failed"), None),
    ],
)
def test_a_bug_has_a_name_and_costs_what_it_touches(run, source, outcomes, bug):
    tests = Asserts(("assert add(1, 2) == 3", "assert add(2, 4) == 6"))
    verdict = run(source, tests, Limits(cpu_seconds=1, wall_seconds=2))
    assert (verdict.outcomes, verdict.bug) == (outcomes, bug), verdict
    assert verdict.message


def test_a_message_names_the_line(run):
    verdict = run("def f():\n    pass\n    return 1 / 0\n", ONE)
    assert verdict.message == "line 3: ZeroDivisionError: division by zero"


CHECK = """
METADATA = {}

def near(a, b):
    return abs(a - b) < 1e-6

def check(candidate):
    assert True, "a remark"
    assert near(candidate(1), 1)
    for i in range(3):
        answer = candidate(i)
        assert near(answer, i)
    if candidate(5):
        assert candidate(5) == 5, "five"
"""


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        ("def f(x): return x", ["passed"] * 5),
        ("def f(x): return 1", ["passed", "failed", "passed", "failed", "failed"]),
        ("def f(x): return 1 // x", ["passed", "error", "passed", "failed"]),
        ("def f(x): return x if x < 2 else 1 // 0", ["passed"] * 3 + ["error", "error"]),
        ("def f(x): return 1 / 0", ["error"] * 5),
        ("def g(x): return x", ["error"] * 5),
        ("def f(x", ["error"] * 5),
    ],
)
def test_each_assert_of_a_check_is_one_test_whatever_becomes_of_the_others(run, source, outcomes):
    assert list(run(source, Check(CHECK, "f")).outcomes) == outcomes


def test_what_a_program_keeps_from_being_reached_counts(run):
    code = "def check(c):\n    a = c(1)\n    assert a == 1\n    assert c(2) == 2\n    assert c(3)\n"
    verdict = run("def f(x): return 1 / 0", Check(code, "f"))
    assert verdict.outcomes == ("error", "not run", "not run")
    code = "def check(c):\n    for x, y in zip(c(), [1, 2]):\n        assert x == y\n"
    assert run("def f(): return []", Check(code, "f")).outcomes == ("failed",)


def test_after_the_programs_end_nothing_passes(run):
    code = "def check(c):\n    assert c(1) == 1\n    assert len([1]) == 1\n"
    verdict = run("import os\ndef f(x): os._exit(0)", Check(code, "f"))
    assert verdict.outcomes == ("killed", "not run")


def test_a_check_without_asserts_of_its_own_passes_by_ending(run):
    code = "def same(a, b):\n    assert a == b\n\ndef check(c):\n    same(c(1), 1)\n"
    assert run("def f(x): return x", Check(code, "f")).outcomes == ("passed",)
    assert run("def f(x): return 0", Check(code, "f")).outcomes == ("failed",)


@pytest.mark.slow
def test_a_loop_of_tests_that_never_ends_is_ended(run):
    code = (
        "import itertools\n"
        "def check(c):\n    for i in itertools.count():\n        assert c(i) == 0\n"
    )
    verdict = run("def f(x): return 1 / (x < 3)", Check(code, "f"), Limits(cpu_seconds=1))
    assert verdict.outcomes[-1] in ("not run", "timeout")  # on a busy machine


def test_the_entry_point_is_an_expression(run):
    source = "class Solution:\n    def twice(self, x): return 2 * x\n"
    check = Check("def check(c):\n    assert c(x=2) == 4\n", "Solution().twice")
    assert run(source, check).pass_all


NODES = """
class Node:
    def __init__(self, value, after=None):
        self.value, self.after = value, after

def chain(values):
    head = None
    for value in reversed(values):
        head = Node(value, head)
    return head

def values(node):
    found = []
    while node:
        found.append(node.value)
        node = node.after
    return found
"""


def test_objects_of_the_setups_classes_go_both_ways(run):
    source = """
def reverse(head):
    back = None
    while head:
        head.after, back, head = back, head, head.after
    return back
"""
    check = Check(
        "def check(c):\n    assert values(c(chain([1, 2, 3]))) == [3, 2, 1]\n", "reverse", NODES
    )
    assert run(source, check).pass_all
    assert run(NODES + source, check).pass_all


def test_objects_of_the_programs_classes_can_be_passed_back(run):
    source = """
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
class Colour:
    RED = object()
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
def total(pairs): return sum(p.a + p.b for p in pairs)
def paint(): return Colour.RED
"""
    tests = Asserts(
        (
            "assert total([Pair(1, 2), Pair(3, b=4)]) == 10",
            "assert paint() == Colour.RED",
            "s = Stack(); s.push(1); s.push([2]); assert (s.pop(), s.pop()) == ([2], 1)",
        )
    )
    assert run(source, tests).pass_all


def test_a_setup_may_build_on_the_program(run):
    source = """
class Node:
    def __init__(self, data): self.data, self.left = data, None
def depth(root): return depth(root.left) + 1 if root else 0
"""
    setup = "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)"
    assert run(source, Asserts(("assert depth(root) == 3",), setup)).pass_all
    verdict = run("def depth(root): return 3", Asserts(("assert depth(root) == 3",), setup))
    assert (verdict.outcomes, verdict.bug) == (("error",), "runtime")


def test_a_builtin_is_the_programs_only_where_nothing_else_is_tested(run):
    assert run("def sum(a, b): return 6", Asserts(("assert sum(10, 15) == 6",))).pass_all
    liar = "def f(x): return 0\ndef sum(x): return 0\ndef sorted(x): return []\n"
    assert not run(liar, Asserts(("assert f([1]) == sum([1])",))).pass_all


def test_modules_that_tests_use_are_not_the_programs(run):
    liar = """
import math
math.isclose = lambda *_: True
math.fabs = lambda x: 0.0
def f(x): return 0
"""
    tests = Asserts(("assert math.isclose(f(4), 2)", "assert math.fabs(f(4) - 2) < 1e-6"))
    assert run(liar, tests).outcomes == ("failed", "failed")


def test_helpers_of_the_setup_are_not_the_programs(run):
    liar = "def f(x): return 0\ndef near(a, b): return True\n"
    setup = "def near(a, b): return abs(a - b) < 1"
    assert not run(liar, Asserts(("assert near(f(1), 5)",), setup)).pass_all


@pytest.mark.parametrize(
    "test",
    [
        "assert f(0) == 5", "assert 5 == f(0)", "assert not f(0) != 5", "assert f(0) in (5, 6)",
        "assert f(0).startswith('a')", "assert f(0).equals(Five())", "assert f(0).isdigit()",
        "assert len(f(0)) == 5", "assert f(0) is True", "assert f(0) > 4",
        "assert abs(f(0) - 5) < 1",
        "assert all(x == 5 for x in map(f, [1, 2]))", "assert list(f(0)) == [5]",
        "assert f(0)[0] == 5",
        "assert isinstance(f(0), int)", "assert str(f(0)) == '5'", "assert hash(f(0)) == hash(5)",
        "assert {f(0): 1}[5] == 1", "assert sorted([f(0), 4]) == [4, 5]", "assert int(f(0)) == 5",
        "assert f(0).__class__ is int", "assert Five().equals(f(0))",
        "assert f(0).five == f(0).six == 5",
    ],
)  # fmt: skip
def test_an_object_that_agrees_to_everything_agrees_to_nothing(run, test):
    source = """
class Yes:
    __class__ = property(lambda self: int)
    def __getattr__(self, name): return Yes()
    def __call__(self, *args): return True
for name in ("eq ne lt gt le ge contains len iter getitem bool hash str int index abs sub rsub"
             " float instancecheck reduce").split():
    setattr(Yes, f"__{name}__", lambda self, *args: True)
def f(x): return Yes()
"""
    setup = "class Five:\n    def equals(self, other): return other.five == 5\n"
    verdict = run(source, Asserts((test, "assert f(0)"), setup))
    assert verdict.outcomes == ("failed", "passed"), verdict


def test_the_end_of_an_iteration_is_no_end_of_the_tests(run):
    source = "def f(x): raise StopIteration"
    tests = Asserts(("assert all(map(f, [1, 2]))", "assert list(map(f, [1])) == []"))
    assert run(source, tests).outcomes == ("error", "error")


def test_a_change_to_an_argument_is_seen_by_the_next_statement_and_not_by_the_same(run):
    check = "def check(c):\n    x = [3, 1]\n    c(x)\n    assert x == [1, 3]\n"
    assert run("def f(x): x.sort()", Check(check, "f")).pass_all
    liar = "def f(x):\n    x.clear()\n    return []\n"
    check = "def check(c):\n    x = [3, 1]\n    assert c(x) == sorted(x)\n"
    assert not run(liar, Check(check, "f")).pass_all
    check = "def check(c):\n    x = [3, 1]\n    r = c(x)\n    assert r == sorted(x)\n"
    assert not run(liar, Check(check, "f")).pass_all


def test_no_forged_reply_changes_what_is_compared_with(run):
    source = """
import json
dumps, loads, seen = json.dumps, json.loads, [None]

def read(request):
    global seen
    seen = loads(request)
    return loads(request)

def say(reply, **options):
    if reply[0] == "ok" and seen[0] == "call":
        root, heap = seen[2]
        reply[2] = [root, [["l", []] if tag == "l" else [tag, items] for tag, items in heap]]
    return dumps(reply, **options)

json.dumps, json.loads = say, read
def f(x): return []
def g(x): pass
"""
    check = (
        "def check(c):\n    x = [3, 1]\n    r = c(x)\n    assert x == [3, 1]\n    assert r == x\n"
    )
    assert run(source, Check(check, "f")).outcomes == ("passed", "failed")
    assert run(source, Check(check, "g")).outcomes == ("failed", "failed")


def test_tests_may_expect_an_exception(run):
    code = """
def check(c):
    try:
        c(-1)
        assert False
    except ValueError as error:
        assert "negative" in str(error)
"""
    source = "def f(x):\n    if x < 0: raise ValueError('negative')"
    verdict = run(source, Check(code, "f"))
    assert verdict.pass_all
    assert verdict.no_bug


def test_calls_take_lists_for_tuples(run):
    source = "def f(x): return (x, {'a': (1, 2)})"
    assert run(source, Calls("f", ((([1],), [[1], {"a": [1, 2]}]),))).pass_all
    assert run(source, Calls("f", ((([1],), [[1], {"a": [1, 3]}]),))).outcomes == ("failed",)


def test_verdicts_do_not_hang_on_chance(run):
    source = "import random\ndef f(): return [random.random(), list({'a', 'b', 'c', 'd', 'e'})]"
    tests = Calls("f", (((), None),))
    show = source + "\nraise ValueError(f())"
    assert run(show, tests).message == run(show, tests).message


def test_the_tests_random_numbers_are_unknown_to_the_program(run):
    source = "import random\nguess = random.random()\ndef f(): return guess"
    code = "import random\ndef check(c):\n    assert c() != random.random()\n"
    assert run(source, Check(code, "f")).pass_all


@pytest.mark.parametrize(
    ("tests", "error", "place"),
    [
        (Asserts(("assert f(1) ==", "assert")), DataError, r"Asserts.statements\[0\]"),
        (Asserts(("assert f(1)",), "import"), DataError, "Asserts.setup"),
        (Asserts(("assert f(1)",), "1 / 0"), DataError, "setup .*ZeroDivisionError"),
        (Asserts(("assert f(lambda: 1)",)), DataError, "function"),
        (Check("def check(c: pass", "f"), DataError, "Check.code"),
        (Check("def test(c): pass", "f"), DataError, "Check.code"),
        (Check("1 / 0\ndef check(c): pass", "f"), DataError, "ZeroDivisionError"),
        (Check("def check(c): pass", "f = 1"), ConfigError, "Check.entry_point"),
        (Calls("f(", (((), 1),)), ConfigError, "Calls.function"),
        (Calls("f", (((object(),), 1),)), DataError, "Calls.cases"),
    ],
)
def test_bad_tests_are_no_programs_fault(run, tests, error, place):
    with pytest.raises(error, match=place):
        run("def f(*x): return 1", tests)
    assert run(GOOD, ONE).pass_all


@pytest.mark.slow
@pytest.mark.parametrize("item", [1 << 60, [0], "\u00e9" * 9, 0.1 + 0.2, (1, 2)])
def test_an_answer_may_be_as_long_as_the_tests_expect_it(run, item):
    expected = [item] * 60_000
    source = f"def f(n): return [{item!r}] * n"
    assert run(source, Calls("f", (((60_000,), expected),))).pass_all
    assert run(source, Asserts((f"assert f(60_000) == {expected!r}",))).pass_all


@pytest.mark.parametrize("limit", ["cpu_seconds", "memory_mb", "open_files", "output_kb"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), None, "8"])
def test_a_limit_is_a_finite_number_above_0(limit, value):
    with config_error(limit):
        Limits(**{limit: value})
