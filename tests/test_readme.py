"""What the README shows is what comes out."""

import contextlib
import io
import re
from pathlib import Path

import gdpo

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_the_example_with_formulas_prints_what_stands_below_it():
    section = README.read_text(encoding="utf-8").partition("## As formulas")[2]
    code, output = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


def test_a_citation_names_the_current_version():
    assert f"Software, version {gdpo.__version__}," in README.read_text(encoding="utf-8")
    assert f"\nversion: {gdpo.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
