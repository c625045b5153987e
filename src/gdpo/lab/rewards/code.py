r"""Rewards for code: run a model's program in the sandbox, against its row's tests.

All three rewards are computed from the same run:

- **pass_rate** in [0, 1]: share of the tests that passed.
- **pass_all** in {0, 1}: every test passed.
- **no_bug** in {0, 1}: the program compiled, ran and stayed within its limits. A wrong result is
  not a bug, so a program that does nothing can score 1. Gate `no_bug` or combine it with another
  reward: never use it alone.

The reference has the tests as data under `tests` and, optionally, the limits of one run under
`limits` (fields of `gdpo.lab.sandbox.Limits`):

```
{"kind": "asserts", "statements": ["assert f(1) == 2"], "setup": "import math"}
{"kind": "check", "code": "def check(candidate): …", "entry_point": "f", "setup": "…"}
{"kind": "calls", "function": "f", "cases": [[[1], 2]]}      arguments, expected value
{"kind": "stdio", "cases": [["1\n", "2\n"]]}                   standard input, standard output
```

`setup` is optional. Without tests, all three rewards return `None`.

Each process caches the last 4,096 verdicts by a digest of the program, tests and limits. A verdict
caused by a wall-clock limit may differ in another run, so each reward uses it only once. A `Scorer`
computes all code rewards of one completion in the same process.

The paper uses pass_rate, no_bug, and a length reward that counts only if pass_rate is 1 (Eq. 8):
gate it on pass_all. The paper's code for these rewards is not published.

References:
    Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, Section 4.3.
"""

import ast
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gdpo._naming import did_you_mean
from gdpo._text import describe
from gdpo.errors import ConfigError, DataError
from gdpo.lab.sandbox import Asserts, Calls, Check, Limits, Stdio, Tests, Verdict
from gdpo.lab.sandbox.backends import find_backend
from gdpo.lab.sandbox.plan import names_in, parse_program
from gdpo.lab.sandbox.sandbox import default_sandbox
from gdpo.rewards.reward import Example, Reference, Reward, examples_of
from gdpo.rewards.text import answer_part

__all__ = ["extract_code", "no_bug", "pass_all", "pass_rate"]

_MARGIN = 20.0
"""Number of seconds added to the program's time limit, to start the sandbox or to kill a hanging
one."""

_KEPT = 4096
"""Number of cached verdicts: enough for a batch whose rewards are scored one after another."""

_TRIES = 8
"""Maximum number of attempts to parse a shortened version of an unfinished program. Each attempt
takes linear time."""

_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_DEFINES = (*_DEFINITION, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Try)

_READS = re.compile(r"\b(?:input|open)\(|\bfileinput\b|\bstdin\b(?! =)")
_NAME = re.compile(r"\w+")

_NO_STATEMENT = " \t\r\f#)]}"
"""Characters that cannot start the first line of a statement."""

_PYTHON = ("python", "python3", "py")
_MARKS = ("```", "~~~")


LONGEST = 60.0
"""The largest `wall_seconds` that a reference may set, in seconds."""


_KINDS: dict[str, type[Tests]] = {
    "asserts": Asserts,
    "check": Check,
    "calls": Calls,
    "stdio": Stdio,
}


def tests_of(data: Any) -> Tests:
    """Return the tests under `tests`, or raise a DataError that names the key."""
    given = _object(data, "tests")
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(
            f"reference 'tests.kind' must be one of {', '.join(_KINDS)}, got {describe(kind)}"
        )
    return _built(_KINDS[kind], given, "tests")


def limits_of(reference: Reference) -> Limits:
    """Return the limits in a reference, with the defaults of `Limits`."""
    if reference.get("limits") is None:
        return Limits()
    limits = _built(Limits, _object(reference["limits"], "limits"), "limits")
    if limits.wall_seconds > LONGEST:
        raise DataError(
            f"reference 'limits.wall_seconds' must be at most {LONGEST:g} seconds, got "
            f"{limits.wall_seconds:g}. Use a smaller limit"
        )
    return limits


_Built = TypeVar("_Built", Asserts | Check | Calls | Stdio, Limits)


def _built(kind: type[_Built], given: Mapping[str, Any], place: str) -> _Built:
    known = {field.name: field for field in fields(kind)}
    for name, field in known.items():
        if field.default is MISSING and name not in given:
            raise DataError(
                f"reference {place!r} lacks the key {name!r}, which {place} of this kind need. Add "
                "the key"
            )
    for name in given:
        if name not in known:
            meant = did_you_mean(name, known)
            raise DataError(f"reference {place!r} has an unknown key {name!r}: {meant}")
    try:
        return kind(**given)
    except (ConfigError, DataError, TypeError) as error:
        raise DataError(f"reference {place!r}: {error}") from error


def _object(value: Any, place: str) -> dict[str, Any]:
    """Return a copy without the keys whose value is None, which Arrow adds."""
    if not isinstance(value, Mapping):
        raise DataError(f"reference {place!r} must be an object, got {describe(value)}")
    return {str(key): held for key, held in value.items() if held is not None}


def extract_code(completion: str, tests: Tests | None = None) -> str:
    r"""Return the program in a completion: a fenced block, and what it needs of other blocks.

    The block is the last one of the first kind that the completion has:

    1. Complete blocks. If the tests run the program with an input, a block is complete if it reads
       the input and does more than to define names. Otherwise, it is complete if it defines a
       function or class that the tests mention.
    2. Blocks that are marked as Python and are valid Python.
    3. Blocks that are marked as Python.
    4. Blocks that are valid Python.
    5. All blocks.

    Earlier blocks that define names which the program lacks are put before it, and later blocks
    that define only names which it has or uses are put after it, both without the code that they
    run. All other blocks are left out, such as examples, tests, outputs and drafts. Without a
    block, the program is the whole text.

    - A fence is a line that starts with at least three backticks or tildes, after optional
      whitespace. The word after the fence is the language (`python`, `python3` or `py` in any
      case).
    - A block ends at a line of only the same character, at least as many times as in the opening
      fence, or at the end of the text.
    - Blocks of only whitespace are ignored.
    - The indentation of a fence is removed from the lines of the block.
    - Text before the first `</think>` is ignored. Only the last 100,000 characters of the rest are
      searched.

    If the last block is never closed and is not valid Python, it is cut at the last unindented line
    at or before the error, so that a complete function before truncated tests is found. If no
    complete function or class remains, the block is unchanged.

    Args:
        completion: Any text. The running time is linear in its length.
        tests: The tests. None: no block is complete.

    Examples:
        >>> extract_code("So:\n```python\nprint(1)\n```\nwhich prints\n```\n1\n```")
        'print(1)'
        >>> extract_code("```py\nx = 2\nprint(x)\n```\nso\n```py\ndef f(): return x\n```")
        'x = 2\ndef f(): return x'
    """
    answer = answer_part(completion)
    blocks, truncated = _blocks(answer.split("\n"))
    if truncated and blocks[-1][0] in (*_PYTHON, ""):
        blocks[-1] = blocks[-1][0], _finished(blocks[-1][1])
    held = [block for block in blocks if any(line.strip() for line in block[1])]
    return _program(held, tests) if held else answer


_Block: TypeAlias = tuple[str, list[str]]
"""The language of a block, and its lines."""


class _ParsedBlock(NamedTuple):
    """Stores what a block contains, if it is valid Python."""

    definitions: str
    """The statements that define names, such as functions, imports and variables."""
    is_script: bool
    """Whether it reads the input, and its last statement does something other than to define."""
    functions: set[str]
    """The functions and classes at the top level."""
    own: set[str]
    """All names that are bound at the top level."""
    free: set[str]
    """The names that are used, and not bound at the top level."""


def _program(blocks: list[_Block], tests: Tests | None) -> str:
    parts = [_part("\n".join(lines)) for _, lines in blocks]
    tested = set(_NAME.findall(repr(tests))) & {n for part in parts for n in part.functions}

    def rank(k: int) -> tuple[bool, bool, bool, int]:
        part = parts[k]
        complete = part.is_script if isinstance(tests, Stdio) else bool(part.functions & tested)
        return complete, blocks[k][0] in _PYTHON, bool(part.own | part.free), k

    main = max(range(len(parts)), key=rank)
    code, known = ["\n".join(blocks[main][1])], parts[main].own | parts[main].free
    needed = (parts[main].free | tested) - parts[main].own
    for part in reversed(parts[:main]):
        if part.own & needed or "import *" in part.definitions:
            code.insert(0, part.definitions)
            needed = (needed | part.free) - part.own
    code += [p.definitions for p in parts[main + 1 :] if p.functions and p.own <= known]
    return "\n".join(code)


def _part(text: str) -> _ParsedBlock:
    try:
        body = parse_program(text).body
        kept: list[ast.stmt] = [node for node in body if isinstance(node, _DEFINES)]
        definitions, code = (ast.unparse(ast.Module(nodes, [])) for nodes in (kept, body))
        return _ParsedBlock(
            definitions,
            body[-1:] != kept[-1:] and _READS.search(code) is not None,
            {node.name for node in kept if isinstance(node, _DEFINITION)},
            *names_in(code),
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _ParsedBlock("", False, set(), set(), set())


def _finished(lines: list[str]) -> list[str]:
    """Return the lines before the unfinished end, or all if these are valid Python.

    All lines are also returned if those before the end define no complete function or class.
    """
    kept = len(lines)
    for _ in range(_TRIES):
        try:
            tree = parse_program("\n".join(lines[:kept]))
        except SyntaxError as error:
            # No version that contains the line of the syntax error can be parsed.
            end = min(error.lineno or kept, kept)
            starts = (i for i in range(end - 1, -1, -1) if lines[i][:1].strip(_NO_STATEMENT))
            kept = next(starts, 0)
        except (ValueError, RecursionError, MemoryError):
            break
        else:
            defines = any(isinstance(node, _DEFINITION) for node in tree.body)
            return lines[:kept] if defines else lines
    return lines


def _blocks(lines: list[str]) -> tuple[list[_Block], bool]:
    blocks: list[_Block] = []
    fence, indent = "", 0
    for line in lines:
        bare = line.strip()
        if not fence:
            fence = _opening(bare)
            indent = len(line) - len(line.lstrip())
            if fence:
                words = bare[len(fence) :].split(maxsplit=1) or [""]
                blocks.append((words[0].strip("{}.").lower(), []))
        elif bare.startswith(fence) and not bare.strip(fence[0]):
            fence = ""
        else:
            # Remove whitespace up to the indentation of the fence, and nothing else.
            blocks[-1][1].append(line[:indent].lstrip(" \t") + line[indent:])
    return blocks, bool(fence)


def _opening(bare: str) -> str:
    """Return the fence that opens a block on this line, or an empty string."""
    if not bare.startswith(_MARKS):
        return ""
    marks = bare[: len(bare) - len(bare.lstrip(bare[0]))]
    return "" if marks[0] == "`" and "`" in bare[len(marks) :] else marks


def verdict_of(completion: str, reference: Reference, *, reader: str = "") -> Verdict | None:
    """Return the verdict on the program in a completion, or None without tests.

    A verdict caused by a wall-clock limit is returned only once to each `reader`, a reward.

    Raises:
        DataError: If the tests or limits in the reference are invalid.
        SandboxError: If no sandbox works on this machine, or the sandbox fails.
    """
    given = reference.get("tests")
    if given is None:
        return None
    tests = tests_of(given)
    source = extract_code(completion, tests)
    # Uses repr, because JSON would turn the keys 1 and "1" into the same key.
    job = repr((source, given, reference.get("limits"))).encode("utf-8", "surrogatepass")
    key = blake2b(job, digest_size=16).digest()
    verdict, readers = _recent.get(key, (None, dict[str, object]()))
    this = object()
    # `setdefault` gives a verdict of the clock to one of several threads with the same reward.
    if verdict is None or (readers.setdefault(reader, this) is not this and verdict.by_clock):
        verdict = default_sandbox().run(source, tests, limits_of(reference))
        _recent[key] = verdict, {reader: this}
        if len(_recent) > _KEPT:
            _recent.popitem(last=False)
    return verdict


_recent: OrderedDict[bytes, tuple[Verdict, dict[str, object]]] = OrderedDict()
"""The most recent verdicts by digest, each with the rewards that have read it."""


def _of_verdict(completion: str, reference: Reference, *, name: str) -> float | None:
    verdict = verdict_of(completion, reference, reader=name)
    return None if verdict is None else float(getattr(verdict, name))


def _sandbox_needed() -> str:
    return f"sandbox: {find_backend()} works on this machine"


def _reward(name: str, *examples: Example) -> Reward:
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
    *examples_of(
        _ADD,
        {
            _RIGHT: 1.0,
            _HALF: 0.5,
            _WRONG: 0.0,
            _LEAVES: 0.0,
            "I would rather not say.": 0.0,
        },
    ),
    *examples_of(
        _SUM,
        {
            _PRINTS: 1.0,
            "```python\nprint(3)\n```": 0.5,
        },
    ),
    Example(_RIGHT, _NO_TESTS, None),
)
"""Share of the tests that passed, in [0, 1]."""

pass_all = _reward(
    "pass_all",
    *examples_of(
        _ADD,
        {
            _RIGHT: 1.0,
            _HALF: 0.0,
            "": 0.0,
        },
    ),
    Example(_PRINTS, _SUM, 1.0),
    Example(_RIGHT, _NO_TESTS, None),
)
"""1 if every test passed, otherwise 0."""

no_bug = _reward(
    "no_bug",
    *examples_of(
        _ADD,
        {
            _RIGHT: 1.0,
            _WRONG: 1.0,  # a wrong result is not a bug
            _RAISES: 0.0,
            "```python\nimport no_such_module\n```": 0.0,
            "```python\ndef add(a, b)\n```": 0.0,
        },
    ),
    Example("```python\nwhile True: pass\n```", {**_ADD, "limits": {"cpu_seconds": 1}}, 0.0),
    Example("I would rather not say.", _SUM, 0.0),
    Example(_RIGHT, _NO_TESTS, None),
)
"""1 if there was no syntax, import or runtime error and no limit was exceeded, otherwise 0.

A wrong result does not count as a bug.
"""
