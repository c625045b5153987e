"""Every block of code in the README, the how-tos and the explanations runs as it is printed.

A page is one session in an empty folder, with `recipes` and `examples` beside it and no network.

- A `python` or `bash` block is executed, in order. Python blocks of a page share their names.
- A block whose first line is `# needs <what>` is not executed: it says what it needs.
- A block whose first line is `# <file name>` is written to that file.
- A `text` block right after an executed block is its output; `...` stands for anything.
- `make` and `pip install` are run by `.ci/run` itself, not here.
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

import numpy as np
import pytest
import yaml

from gdpo.advantages import AdvantageRule

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "explanation").glob("*.md")),
    ROOT / "research" / "turns.md",
]
LANGUAGES = {"python", "bash", "text", "diff", "yaml", "json", "toml", "bibtex"}
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.M
)
_FILE = re.compile(r"# (?P<name>[\w.-]+\.(?:py|yaml|jsonl))\s*$")
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
    def runs(self):
        return self.language in ("python", "bash") and not self.first.startswith("# needs ")

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


def run_page(page, folder):
    """Execute a page in the folder: each block with what it printed and what it should print."""
    for name in ("recipes", "examples"):
        (folder / name).symlink_to(ROOT / name)
    text = page.read_text("utf-8")
    blocks = blocks_of(text)
    expected = outputs(blocks, text)
    names = {"__name__": "__main__"}
    for block in blocks:
        if block.file is not None and block.language in ("python", "yaml", "json"):
            (folder / block.file).write_text(block.code, encoding="utf-8")
        elif block.runs and block.language == "python":
            printed = io.StringIO()
            code = compile("\n" * block.line + block.code, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            yield block, printed.getvalue(), expected.get(block)
        elif block.runs:
            yield block, _bash(block, folder, page), expected.get(block)


def _bash(block, folder, page):
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_has_a_language(page):
    wrong = [
        f"{page.name}:{block.line}"
        for block in blocks_of(page.read_text("utf-8"))
        if block.language not in LANGUAGES
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    try:
        for block, got, wanted in run_page(page, tmp_path):
            assert wanted is None or same(wanted, got), (
                f"{page}:{block.line} prints something else:\n{got}"
            )
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


PAGE = """
```bash
echo one
```

```text
one
```

```python
# needs a GPU
raise RuntimeError
```

```python
# mine.py
value = 2
```

```python
from mine import value
print(value)
```
Words between.

```text
not compared
```
"""


def test_a_page_is_read_as_the_convention_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    ran = [(got, wanted) for _, got, wanted in run_page(page, tmp_path)]
    sys.modules.pop("mine")
    assert ran == [("one\n", "one\n"), ("2\n", None)]


@pytest.mark.parametrize("code", ["false | cat", "no-such-command", "exit 3"])
def test_a_command_that_fails_fails_its_page(tmp_path, code):
    page = tmp_path / "page.md"
    page.write_text(f"```bash\n{code}\ntrue\n```\n")
    with pytest.raises(AssertionError, match="ends with"):
        list(run_page(page, tmp_path))


def test_every_setting_of_a_paper_is_accepted():
    page = (ROOT / "docs" / "explanation" / "which_paper.md").read_text("utf-8")
    settings = re.findall(r"`(advantage: [^`]+)`", page)
    for setting in settings:
        read = yaml.safe_load("{" + setting + "}")
        options = read.pop("advantage_options", None)
        rule = AdvantageRule(
            *read.values(), ["correct", "format"], options, low=[0, 0], high=[1, 1]
        )
        assert np.all(np.isfinite(rule(np.eye(2)[None], [1.0, 1.0]))), setting
    assert len(settings) > 15
