"""A right program scores 1 in every shape in which it is written, in every kind of tests."""

from typing import NamedTuple

import pytest
from tests.sandbox.needed import needs_sandbox

from gdpo.lab.rewards.code import extract_code, pass_rate
from gdpo.lab.sandbox import Asserts


class Program(NamedTuple):
    imports: str
    helper: str
    main: str
    wrong: str
    """A first draft of the whole program."""
    usage: str
    tests: dict

    @property
    def whole(self):
        return "\n".join((self.imports, self.helper, self.main))


STDIO = {"kind": "stdio", "cases": [["4\n", "5\n"], ["9\n", "10\n"]]}
PROGRAMS = {
    "asserts": Program(
        "import math",
        "def g(x):\n    return math.floor(x)",
        "LIMIT = 1\n\ndef f(x):\n    '''Add one.\n\nf(1) is 2.'''\n    return g(x) + LIMIT",
        "def f(x):\n    return x",
        "print(f(3))",
        {"kind": "asserts", "statements": ["assert f(4) == 5", "assert f(9) == 10"]},
    ),
    "method": Program(
        "from typing import List",
        "def g(xs):\n    return sum(xs)",
        "class Solution:\n    def f(self, xs: List[int]) -> int:\n        return g(xs) + 1",
        "class Solution:\n    def f(self, xs: list):\n        return sum(xs)",
        "xs = [4]\nprint(Solution().f(xs))",
        {"kind": "calls", "function": "Solution().f", "cases": [[[[4]], 5], [[[4, 5]], 10]]},
    ),
    "check": Program(
        "from collections import deque",
        "def g(x):\n    return deque([x, 1])",
        "def f(x):\n    return sum(g(x))",
        "def g(x):\n    return [x]\n\ndef f(x):\n    return sum(g(x))",
        "x = f(3)\nprint(x)",
        {
            "kind": "check",
            "code": "def check(c):\n    assert c(x=4) == 5\n    assert c(9) == 10",
            "entry_point": "f",
        },
    ),
    "script": Program(
        "import sys; input = sys.stdin.readline",
        "def g(n):\n    return n + 1",
        "n = int(input())\nfor _ in range(1):\n    print(g(n))",
        "n = int(input())\nprint(n)",
        "n = 3\nprint(g(n))",
        STDIO,
    ),
    "main": Program(
        "import sys\nsys.setrecursionlimit(10**6)",
        "def g(n):\n    return n + 1",
        "def main():\n    print(g(int(sys.stdin.read())))\n\nif __name__:\n    main()",
        "def main():\n    print(int(input()))\n\nmain()",
        "print(g(3))",
        STDIO,
    ),
}


def block(code, language="python"):
    return f"So:\n```{language}\n{code}\n```\n"


# Each gives an answer, or what stands in its blocks.
SHAPES = {
    "one block": lambda p: [p.whole],
    "usage": lambda p: [p.whole, p.usage],
    "usage that fails": lambda p: [p.whole, p.usage + "\nassert f(1) == 7\nraise OSError"],
    "usage that reads": lambda p: [p.whole, "x = g([1])\nprint(x)", p.usage],
    "usage in Python only": lambda p: block(p.whole, "") + block(p.usage),
    "usage never closed": lambda p: block(p.whole) + f"```python\n{p.usage}\nprint(",
    "usage before": lambda p: [p.usage, p.whole],
    "asserts": lambda p: [p.whole, "assert g(1) == 2"],
    "unit tests": lambda p: [
        p.whole,
        "import unittest\n\nclass T(unittest.TestCase):\n    pass\n\nunittest.main()",
    ],
    "test function": lambda p: [
        p.whole,
        "def test():\n    assert g(1) == 7\n\nif __name__ == '__main__':\n    test()",
    ],
    "doctest": lambda p: [p.whole, ">>> f(1)\n2"],
    "output in Python": lambda p: [p.whole, "[1, 2, 3]"],
    "pseudo-code": lambda p: [p.whole, "def f(x):\n    for each x: add 1\n    print input()"],
    "fed main": lambda p: [p.whole, "import io\nsys.stdin = io.StringIO('4')\nmain()"],
    "draft": lambda p: block(p.wrong) + "Wait, no.\n" + block(p.whole),
    "draft with a usage": lambda p: [f"{p.wrong}\nprint(3)", p.whole],
    "imports apart": lambda p: [p.imports, f"{p.helper}\n{p.main}"],
    "star import apart": lambda p: [
        "from math import *\nprint(pi)",
        f"floor(pi)\n{p.whole}",
        p.usage,
    ],
    "draft of a helper": lambda p: [
        "import no_such\n\ndef g(x):\n    return x",
        f"{p.imports}\n{p.helper}",
        p.main,
    ],
    "helper apart": lambda p: [f"{p.imports}\n{p.helper}", p.main],
    "three parts, usage": lambda p: [p.imports, p.helper, p.main, p.usage],
    "helper with a usage": lambda p: [f"{p.imports}\n{p.helper}\nprint(g(1))", p.main],
    "draft, parts": lambda p: [p.wrong, f"{p.imports}\n{p.helper}", p.main],
    "thought": lambda p: f"<think>{block(p.wrong)}</think>{block(p.whole)}{block(p.usage)}",
    "thought of before": lambda p: f"{block(p.wrong)}</think>{block(p.whole)}",
}
FOR_FUNCTIONS = {
    "usage that waits": lambda p: [p.whole, "x = int(input())\nprint(f(x))"],
    "helper afterwards": lambda p: [f"{p.imports}\n{p.main}", p.helper],
    "helper corrected": lambda p: [f"{p.imports}\ndef g(x):\n    return 7\n{p.main}", p.helper],
}
FOR_PROGRAMS = {
    "call apart": lambda p: [
        p.whole.replace("\nif __name__:\n    main()", ""),
        "if __name__ == '__main__':\n    main()",
    ],
    "call apart, doctest": lambda p: [*FOR_PROGRAMS["call apart"](p), ">>> main()"],
    "print apart": lambda p: ["n = int(input())\nxs = [n]", "print(sum(xs) + 1)"],
}
ALL = [
    *((s, p) for s in SHAPES for p in PROGRAMS),
    *((s, p) for s in FOR_FUNCTIONS for p in ("asserts", "method", "check")),
    *((s, "main") for s in FOR_PROGRAMS),
]


def score_of(shape, program):
    wrote = {**SHAPES, **FOR_FUNCTIONS, **FOR_PROGRAMS}[shape](PROGRAMS[program])
    wrote = wrote if isinstance(wrote, str) else "".join(map(block, wrote))
    return pass_rate.function(wrote, {"tests": PROGRAMS[program].tests})


@needs_sandbox
@pytest.mark.parametrize(("shape", "program"), ALL)
def test_a_right_program_scores_1_in_every_shape(shape, program):
    assert score_of(shape, program) == 1


def test_all_functions_that_the_tests_use_belong_to_the_program():
    f, g, h = (f"def {name}(x):\n    return x" for name in "fgh")
    tests = Asserts(["assert f(1) == h(1)"])
    assert extract_code(block(f) + block(g) + block(h), tests) == f"{f}\n{h}"
