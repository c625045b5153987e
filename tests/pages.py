"""Reads a page of the docs, and executes its blocks of code. Needs only Python.

A page is one session in an empty folder, with `recipes` and `examples` beside it and no network.

- A `python` or `bash` block is executed, in order. Python blocks of a page share their names.
- A block whose first line is `# needs <what>` is not executed: it says what it needs.
- A block whose first line is `# <file name>` is written to that file.
- A `text` block right after an executed block is its output; `...` stands for anything.
- `make` and `pip install` are run by `.ci/run` itself, not here.
- A block needs the extras that its section names above it, or the page before its first section:
  `'.[lab]'` or `'<clone or git URL>[lab]'`. `.ci/try_commands` executes it with nothing else.
"""

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.environments import ROOT

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.M
)
_FILE = re.compile(r"# (?P<name>[\w.-]+\.(?:py|yaml|jsonl))\s*$")
_EXTRAS = re.compile(r"'(?:\.|<clone or git URL>)\[(?P<extras>[\w,]+)\]'")
_ELSEWHERE = re.compile(r"(make|pip install|\.venv/bin/pip install)\b")
_SECONDS = 900  # ends a command that hangs


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    end: int

    @property
    def first(self):
        return self.code.partition("\n")[0]

    @property
    def needs(self):
        """What is not there, according to the page."""
        return self.first.removeprefix("# needs ") if self.first.startswith("# needs ") else None

    @property
    def runs(self):
        return self.language in ("python", "bash") and self.needs is None

    @property
    def file(self):
        match = _FILE.match(self.first)
        return match and match["name"]


def blocks_of(page):
    found = []
    for match in _FENCE.finditer(page):
        lines = match["code"].splitlines(True)
        code = "".join(line.removeprefix(match["indent"]) for line in lines)
        begin, end = (page.count("\n", 0, place) + 1 for place in match.span())
        found.append(Block(match["language"], code, begin, end))
    return found


def outputs(blocks, page):
    """Each executed block with the `text` block that stands right after it."""
    lines = page.splitlines()
    return {
        block: after.code
        for block, after in pairwise(blocks)
        if block.runs and block.file is None and after.language == "text"
        if not any(line.strip() for line in lines[block.end : after.line - 1])
    }


def extras_of(text, block):
    """Return the extras that a page names for a block, sorted: `lab,math`."""
    first, *sections = "".join(text.splitlines(True)[: block.end]).split("\n## ")
    matches = _EXTRAS.finditer(first + "".join(sections[-1:]))
    named = {name for match in matches for name in match["extras"].split(",")}
    return ",".join(sorted(named - {"lab"} if "train" in named else named))


def run_page(page, folder, extras=None, stand_ins=()):
    """Execute a page in the folder: each block with what it printed and what it should print.

    `extras`: execute only the blocks that need exactly these. `stand_ins` has code by what a block
    needs: such a block is executed, too, after the code.
    """
    for name in ("recipes", "examples"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    text = page.read_text("utf-8")
    blocks = blocks_of(text)
    expected = outputs(blocks, text)
    names = {"__name__": "__main__"}
    for block in blocks:
        if block.needs in stand_ins:
            code = stand_ins[block.needs] + block.code.partition("\n")[2]
            block = block._replace(code=code)
        if block.file is not None and block.language in ("python", "yaml", "json"):
            (folder / block.file).write_text(block.code, encoding="utf-8")
        elif block.runs and extras in (None, extras_of(text, block)):
            run = _python if block.language == "python" else _bash
            yield block, run(block, folder, page, names), expected.get(block)


def _python(block, folder, page, names):
    printed = io.StringIO()
    code = compile("\n" * block.line + block.code, str(page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def _bash(block, folder, page, names):
    commands = block.code.replace("\\\n", " ").splitlines()
    kept = "\n".join(line for line in commands if not _ELSEWHERE.match(line.strip()))
    plain = {"HF_HUB_OFFLINE": "1", "COLUMNS": "100", "TTY_COMPATIBLE": "0", "NO_COLOR": "1"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", kept],
        cwd=folder,
        env={**os.environ, **plain, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, (
        f"{page}:{block.line} ends with {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def same(wanted, got):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(wanted, got, flags)
