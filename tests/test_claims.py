"""research/claims.md carries every figure of the README, and names things that exist."""

import ast
import re

import pytest
from tests.environments import ROOT

README = (ROOT / "README.md").read_text("utf-8")
CLAIMS = (ROOT / "research" / "claims.md").read_text("utf-8")
_FIGURE = re.compile(r"(?<![A-Za-z]-)(?<![\w.])\d[\d,]*(?:\.\d+)*")


def figures(text):
    """The numbers of a page in its prose: blocks of code, inline code and targets of links do not
    count, and neither does an arXiv number."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    prose = re.sub(r"arXiv \d{4}\.\d{5}", "", prose)
    return {number.rstrip(",.") for number in _FIGURE.findall(prose)}


def rows():
    """Claim, unit, command, file and commit of each row of the tables."""
    for line in CLAIMS.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and not set(cells[0]) <= set("-: "):
            yield cells
    assert CLAIMS


def claimed():
    return set().union(*(figures(claim) for claim, *_ in rows()))


def test_every_figure_of_the_readme_is_in_a_claim():
    assert figures(README) - claimed() == set()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It takes 3.5 s, in 1,000 of 2,000 runs (50 %).", {"3.5", "1,000", "2,000", "50"}),
        ("`--seeds 7` and [page 8](x9.md)\n```\n10\n```\narXiv 2601.05242", {"8"}),
        ("Qwen2.5, p95 and Apache-2.0 are names; version 1.16.0 is a figure", {"1.16.0"}),
    ],
)
def test_a_figure_is_a_number_in_prose(text, numbers):
    assert figures(text) == numbers


def test_every_claim_names_files_that_exist_and_a_commit():
    header, *claims = rows()
    assert header == ["Claim", "Unit of replication", "Command", "File", "Commit"]
    assert len(claims) > 20
    assert all("one warm start" in unit for _, unit, *_ in claims if "seed" in unit)
    for claim, unit, command, file, commit in claims:
        if claim == "Claim":
            continue
        paths = re.findall(r"\]\(([^)#]+)", file)
        assert paths, claim
        for path in paths:
            assert (ROOT / "research" / path).exists(), (claim, path)
        assert re.fullmatch(r"`[0-9a-f]{7,40}`|every change", commit), (claim, commit)
        assert command.startswith("`"), claim
        assert unit, claim


def test_every_command_of_a_claim_names_a_script_that_exists():
    for claim, _, command, *_ in rows():
        for module in re.findall(r"python -m ([\w.]+)", command):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), claim
        for script in re.findall(r"(?:python|pytest) ((?:[\w-]+/)+[\w.-]*)", command):
            assert (ROOT / script).exists(), (claim, script)
        for target in re.findall(r"`make ([a-z-]+)", command):
            assert f"\n{target}:" in (ROOT / "Makefile").read_text("utf-8"), claim


_COUNTED = re.compile(r"[0-9]+ of [0-9]+ (seeds|runs|warm starts)")


def strings(code):
    """The string constants of a module. Line breaks are spaces."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())


def test_no_result_is_stored_in_the_program():
    found = [
        (file.relative_to(ROOT), match[0])
        for file in sorted((ROOT / "src").rglob("*.py"))
        if re.search(r"[0-9]\W+of\W+[0-9]", code := file.read_text("utf-8"))
        for text in strings(code)
        for match in _COUNTED.finditer(text)
    ]
    assert found == [], "a program prints what it measured in this run; results belong in research/"


def test_a_stored_result_is_found_in_a_string_over_two_lines():
    code = (
        'REASON = (\n    "In 6 of 6 "\n    "seeds it did")\ndef f():\n    """3 of 9\n    runs."""'
    )
    assert [bool(_COUNTED.search(text)) for text in strings(code)] == [True, True]
