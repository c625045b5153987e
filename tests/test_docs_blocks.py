"""Every block of code in the README, the how-tos and the explanations runs as it is printed.

So does that of the reference of the diagnostics.
"""

import re
import runpy
import sys

import numpy as np
import pytest
import yaml
from tests.environments import ROOT
from tests.pages import blocks_of, extras_of, run_page, same

from gdpo.advantages import AdvantageRule

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "explanation").glob("*.md")),
    ROOT / "docs" / "reference" / "diagnostics.md",
    ROOT / "research" / "turns.md",
]
LANGUAGES = {"python", "bash", "text", "diff", "yaml", "json", "toml", "bibtex"}


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


def test_a_page_is_read_as_the_convention_says(tmp_path, saved, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = saved("page.md", PAGE)
    ran = [(got, wanted) for _, got, wanted in run_page(page, tmp_path)]
    sys.modules.pop("mine")
    assert ran == [("one\n", "one\n"), ("2\n", None)]


SECTIONS = """
The extra `'.[lab]'`.
## One
```bash
pip install '<clone or git URL>[math]'
```
## Two
```bash
true
```
## Three
The extra `'.[train]'`.
```bash
# needs a GPU
false
```
"""


def test_a_block_needs_the_extras_that_its_section_and_the_top_of_its_page_name():
    assert [extras_of(SECTIONS, block) for block in blocks_of(SECTIONS)] == [
        "lab,math",
        "lab",
        "train",
    ]


def test_only_the_blocks_with_the_given_extras_run_and_a_stand_in_runs_first(tmp_path, saved):
    saved("page.md", SECTIONS)
    ran = run_page(
        tmp_path / "page.md", tmp_path, "train", {"a GPU": "echo made; false() { :; }\n"}
    )
    assert [got for _, got, _ in ran] == ["made\n"]


def test_every_need_of_a_block_has_a_stand_in_or_a_reason_why_it_is_not_tried():
    script = runpy.run_path(str(ROOT / ".ci" / "try_commands"))
    assert script["needs"]() == {*script["STAND_INS"], *script["NOT_TRIED"]}


@pytest.mark.parametrize("code", ["false | cat", "no-such-command", "exit 3"])
def test_a_command_that_fails_fails_its_page(tmp_path, saved, code):
    page = saved("page.md", f"```bash\n{code}\ntrue\n```\n")
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
