r"""Rewards for programs: what a model wrote is run in a sandbox, against the tests of its row.

Three rewards look at the same run:

- **pass_rate** in [0, 1]: passed tests over all tests;
- **pass_all** in {0, 1}: every test passed;
- **no_bug** in {0, 1}: the program compiled, ran and stayed within its limits. A wrong answer is no
  bug, so a program that does nothing may have none: gate `no_bug` or weigh it, never reward it
  alone.

The reference holds the tests as data under `tests`, and what one program may use under `limits`
(optional, fields of `gdpo.sandbox.Limits`):

```
{"kind": "asserts", "statements": ["assert f(1) == 2"], "setup": "import math"}
{"kind": "check", "code": "def check(candidate): …", "entry_point": "f", "setup": "…"}
{"kind": "calls", "function": "f", "cases": [[[1], 2]]}      arguments, expected value
{"kind": "stdio", "cases": [["1\n", "2\n"]]}                   standard input, standard output
```

`setup` is optional. A reference without tests gets `None`: no reward here applies.

A program is run once for the three rewards, and not again when it comes back: this process keeps
the last 4,096 verdicts by a digest of program, tests and limits. Two programs that differ by a
space are two programs. A verdict that the clock gave, which another run might not repeat, is not
kept: it serves each of the three rewards once. Processes share nothing; a `Scorer` has all rewards
of one completion computed in the same one.

The paper has pass_rate and no_bug, and a length that counts only where pass_rate is 1 (its Eq. 8):
gate a length on pass_all. Its code for them is not published.

References:
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Section 4.3.
"""

import ast
import os
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import TypeAlias

from gdpo.rewards._code_tests import LONGEST, limits_from_reference, tests_from_reference
from gdpo.rewards.reward import Example, Reference, Reward
from gdpo.sandbox import Verdict
from gdpo.sandbox.backends import find_backend
from gdpo.sandbox.plan import parse_program
from gdpo.sandbox.sandbox import default_sandbox

__all__ = ["extract_code", "no_bug", "pass_all", "pass_rate"]

_MARGIN = 20.0
"""Seconds for what is not the program's: the sandbox's start, and the end of one that hangs."""

_KEPT = 4096
"""Verdicts that are remembered: a batch, because it is scored reward by reward."""

_SEARCHED = 100_000
"""Characters at the end of an answer in which its program is looked for."""

_TRIES = 8
"""Beginnings of an unfinished program that are parsed; each takes time linear in its length."""

_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_NO_STATEMENT = " \t\r\f#)]}"
"""What a line begins with that begins no statement."""

_PYTHON = ("python", "python3", "py")
_MARKS = ("```", "~~~")


def extract_code(completion: str) -> str:
    r"""The program in a completion, exactly as it is written there.

    It is the last block fenced as Python, else the last fenced block, else the whole text.

    A fence is a line that begins, after blanks, with three or more backticks or tildes; the word
    after them names the language (`python`, `python3` or `py`, in any case). A line of at least as
    many of the same marks, and nothing else, closes it; one that is never closed holds everything
    that follows, because a model may stop before it. A block of nothing but whitespace does not
    count. Lines of an indented block lose as much indentation as its fence has. Backticks within a
    line are no fence. What stands before the first `</think>` is no part of the answer, of which
    the last 100,000 characters are looked at.

    A block that is never closed, and is no Python because it ends within something, loses that
    unfinished end, from the line without indentation that begins it: a function that stands whole
    before tests that were cut is the program. Where nothing whole is defined before the end, an
    earlier block of Python is the program; where there is none, the block stays as it is.

    Args:
        completion: Any text; the time is linear in its length.

    Examples:
        >>> extract_code("So:\n```python\nprint(1)\n```\nwhich prints\n```\n1\n```")
        'print(1)'
    """
    _, closed, rest = completion.partition("</think>")
    answer = (rest if closed else completion)[-_SEARCHED:]
    blocks, cut = _blocks(answer.split("\n"))
    held = [block for block in blocks if any(line.strip() for line in block[1])]
    if cut and held and held[-1] is blocks[-1]:
        held[-1:] = _of_cut(*held[-1], alone=not any(name in _PYTHON for name, _ in held[:-1]))
    python = [lines for name, lines in held if name in _PYTHON]
    chosen = [*(lines for _, lines in held), *python][-1:]
    return "\n".join(chosen[0]) if chosen else answer


_Block: TypeAlias = tuple[str, list[str]]
"""Language and lines."""


def _of_cut(language: str, lines: list[str], *, alone: bool) -> list[_Block]:
    """What a block that is never closed holds: nothing where a whole program stands before it."""
    finished = _finished(lines) if language in (*_PYTHON, "") else None
    if finished is not None:
        return [(language, finished)]
    return [(language, lines)] if alone else []


def _finished(lines: list[str]) -> list[str] | None:
    """The lines if they are Python, or else those before an unfinished end that define something.

    None where nothing is finished.
    """
    kept = len(lines)
    for _ in range(_TRIES):
        try:
            tree = parse_program("\n".join(lines[:kept]))
        except SyntaxError as error:
            # Nothing that holds the line of the mistake parses.
            kept = _statement_before(lines, min(error.lineno or kept, kept))
        except (ValueError, RecursionError, MemoryError):
            return None
        else:
            defines = any(isinstance(node, _DEFINITION) for node in tree.body)
            return lines[:kept] if defines or kept == len(lines) else None
    return None


def _statement_before(lines: list[str], end: int) -> int:
    """How many lines stand before the last of the first `end` lines that is not indented."""
    starts = (i for i in range(end - 1, -1, -1) if lines[i][:1].strip(_NO_STATEMENT))
    return next(starts, 0)


def _blocks(lines: list[str]) -> tuple[list[_Block], bool]:
    """Language and lines of every fenced block, and whether the last one is never closed."""
    blocks: list[_Block] = []
    fence, indent = "", 0
    for line in lines:
        bare = line.strip()
        if not fence:
            fence = _opening(bare)
            indent = len(line) - len(line.lstrip())
            if fence:
                blocks.append((_language(bare[len(fence) :]), []))
        elif bare.startswith(fence) and not bare.strip(fence[0]):
            fence = ""
        else:
            # The blanks in the width of the fence's indentation; anything else there stays.
            blocks[-1][1].append(line[:indent].lstrip(" \t") + line[indent:])
    return blocks, bool(fence)


def _opening(bare: str) -> str:
    """The marks that open a block on this line, or nothing."""
    if not bare.startswith(_MARKS):
        return ""
    marks = bare[: len(bare) - len(bare.lstrip(bare[0]))]
    return "" if marks[0] == "`" and "`" in bare[len(marks) :] else marks


def _language(info: str) -> str:
    return (info.split(maxsplit=1) or [""])[0].strip("{}.").lower()


def verdict_of(completion: str, reference: Reference, *, reader: str = "") -> Verdict | None:
    """What became of the program in a completion, None where the reference has no tests.

    Args:
        completion: What the model wrote.
        reference: With the tests, and limits if there are any.
        reader: Name of the reward that asks. A verdict that the clock gave is given to the same
            reader once, and then the program runs again.

    Raises:
        DataError: The reference is wrong.
        SandboxError: There is no sandbox here, or it failed.
    """
    tests = reference.get("tests")
    if tests is None:
        return None
    source = extract_code(completion)
    # repr, not JSON: there 1 and "1" are the same key.
    job = repr((source, tests, reference.get("limits"))).encode("utf-8", "surrogatepass")
    key = blake2b(job, digest_size=16).digest()
    verdict = _recent.get(key, reader)
    if verdict is None:
        converted = tests_from_reference(reference)
        assert converted is not None, "there are tests"
        verdict = default_sandbox().run(source, converted, limits_from_reference(reference))
        _recent.put(key, verdict, reader)
    return verdict


class _Recent:
    """The last verdicts, by digest; the oldest one goes first."""

    def __init__(self) -> None:
        self._verdicts: dict[bytes, tuple[Verdict, set[str]]] = {}
        self._lock = Lock()

    def get(self, key: bytes, reader: str) -> Verdict | None:
        with self._lock:
            verdict, readers = self._verdicts.get(key, (None, set[str]()))
            if verdict is None or (verdict.by_clock and reader in readers):
                return None
            readers.add(reader)
            return verdict

    def put(self, key: bytes, verdict: Verdict, reader: str) -> None:
        with self._lock:
            self._verdicts[key] = verdict, {reader}
            if len(self._verdicts) > _KEPT:
                del self._verdicts[next(iter(self._verdicts))]


_recent = _Recent()
# A process that is forked while another thread holds the lock would wait for it forever.
os.register_at_fork(after_in_child=_recent.__init__)


def _of_verdict(completion: str, reference: Reference, *, name: str) -> float | None:
    verdict = verdict_of(completion, reference, reader=name)
    return None if verdict is None else float(getattr(verdict, name))


def _sandbox_needed() -> str:
    return f"sandbox: {find_backend()} works here"


def _reward(name: str, *examples: Example) -> Reward:
    """In [0, 1]: what the verdict on a program has under this name."""
    return Reward(
        name=name,
        function=partial(_of_verdict, name=name),
        low=0.0,
        high=1.0,
        examples=examples,
        deadline=LONGEST + _MARGIN,
        needs=_sandbox_needed,
    )


_ADD: Reference = {
    "tests": {"kind": "asserts", "statements": ["assert add(1, 2) == 3", "assert add(1, -1) == 0"]}
}
_SUM: Reference = {"tests": {"kind": "stdio", "cases": [["1 2\n", "3\n"], ["4 5\n", "9\n"]]}}
_NO_TESTS: Reference = {"tests": None}

_RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
_HALF = "```python\ndef add(a, b):\n    return 3\n```"
_WRONG = "```python\ndef add(a, b):\n    return None\n```"
_RAISES = "```python\ndef add(a, b):\n    raise ValueError\n```"
_LEAVES = "```python\nimport os\nos._exit(0)\n```"
_PRINTS = "```python\nprint(sum(map(int, input().split())))\n```"

pass_rate = _reward(
    "pass_rate",
    Example(_RIGHT, _ADD, 1.0),
    Example(_HALF, _ADD, 0.5),
    Example(_WRONG, _ADD, 0.0),
    Example(_PRINTS, _SUM, 1.0),
    Example("```python\nprint(3)\n```", _SUM, 0.5),
    Example(_LEAVES, _ADD, 0.0),
    Example("I would rather not say.", _ADD, 0.0),
    Example(_RIGHT, _NO_TESTS, None),
)
"""Passed tests over all tests."""

pass_all = _reward(
    "pass_all",
    Example(_RIGHT, _ADD, 1.0),
    Example(_PRINTS, _SUM, 1.0),
    Example(_HALF, _ADD, 0.0),
    Example("", _ADD, 0.0),
    Example(_RIGHT, _NO_TESTS, None),
)
"""Binary: every test passed."""

no_bug = _reward(
    "no_bug",
    Example(_RIGHT, _ADD, 1.0),
    Example(_WRONG, _ADD, 1.0),  # a wrong answer is no bug
    Example(_RAISES, _ADD, 0.0),
    Example("```python\nimport no_such_module\n```", _ADD, 0.0),
    Example("```python\ndef add(a, b)\n```", _ADD, 0.0),
    Example("```python\nwhile True: pass\n```", {**_ADD, "limits": {"cpu_seconds": 1}}, 0.0),
    Example("I would rather not say.", _SUM, 0.0),
    Example(_RIGHT, _NO_TESTS, None),
)
"""Binary: no syntax, import or run-time error, no limit hit. A wrong answer is no bug."""
