"""Draws sentences for an editor to mark, and counts words that the glossary replaces.

    python benchmarks/prose.py count
    python benchmarks/prose.py sample --seed 1 --each 50 > sentences.tsv

An editor who did not write the sentences marks each one: natural, unnatural, or unclear.
"""

import argparse
import ast
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
VERBS = ("", "analyze", "compare", "train", "check", "report", "evaluate", "launch")
VERBS += ("recipes", "init")
WORDS = ("told", "anew", "drown", "drowns", "drowned", "arm", "arms", "beside", "Left out")
_OPENINGS = ("Of", "Those", "Its", "As")
_SHORTEST = 4  # words: anything shorter is a label


def main() -> None:
    """Count, or print a sample as tab-separated rows: kind, place, sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("count", "sample"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=50, help="sentences of each kind")
    asked = parser.parse_args()
    if asked.what == "count":
        _count()
        return
    rng = np.random.default_rng(asked.seed)
    for kind, sentences in kinds().items():
        for place in sorted(rng.permutation(len(sentences))[: asked.each]):
            print(kind, *sentences[place], sep="\t")


def kinds() -> dict[str, list[tuple[str, str]]]:
    """Return the sentences of each kind of text, each with its place."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return {
        "README": list(_page(ROOT / "README.md")),
        "help": list(_help()),
        "analyze.md": list(_page(ROOT / "docs" / "how-to" / "analyze.md")),
        "other docs": [each for page in pages if page.stem != "analyze" for each in _page(page)],
        "docstrings": [each for path in _sources() for each in _docstrings(path)],
        "messages": [each for path in _sources() for each in _messages(path)],
    }


def _count() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in _sources())
    prose = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    for word in WORDS:
        in_sources, in_pages = (len(re.findall(rf"\b{word}\b", text)) for text in (sources, prose))
        print(f"{word}: {in_sources} in src, {in_pages} in README and docs")
    starts = [text.split()[0] for path in _sources() for _, text in _raw_docstrings(path)]
    print(f"docstrings that begin with {', '.join(_OPENINGS)}: {sum(map(starts.count, _OPENINGS))}")
    for page in pages[:1]:
        text = page.read_text(encoding="utf-8")
        print(f"README: {len(text.splitlines())} lines, {len(text.split())} words")
    print(f"docs: {len(prose.split())} words in {len(pages)} pages, README included")


def _sources() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


def _page(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the sentences of a page outside its blocks of code."""
    text = re.sub(r"```.*?```", "\n\n", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    place = path.relative_to(ROOT).as_posix()
    for part in re.split(r"\n\s*\n|\n(?=\s*[-*#|>]|\s*\d+\. )", text):
        for sentence in _sentences(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", part)):
            yield place, sentence


def _help() -> Iterator[tuple[str, str]]:
    from gdpo.cli._app import app

    for verb in VERBS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            app([verb, "--help"] if verb else ["--help"])
        text = re.sub(r"[│╭╮╰╯─]", " ", printed.getvalue())
        for part in re.split(r"\n\s*\n|\n(?=\s*\*?\s*--)", text):
            for sentence in _sentences(part):
                yield f"gdpo {verb} --help", sentence


def _raw_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of modules, classes, functions and fields, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                text = child.value.value
                if isinstance(text, str) and text.strip():
                    yield child.lineno, text


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for line, text in _raw_docstrings(path):
        for part in re.split(r"\n\s*\n|\n\s*(?=\w+: )", text):
            for sentence in _sentences(part):
                yield f"{path.relative_to(ROOT)}:{line}", sentence


def _messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts of errors that are raised, with `{…}` for what a format fills in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                text = _literal(argument)
                if len(text.split()) >= _SHORTEST:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", " ".join(text.split())


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (value.value if isinstance(value, ast.Constant) else "{…}" for value in node.values)
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal(node.left) + _literal(node.right)
    return ""


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph that have a few words and are no formula or table rule."""
    plain = " ".join(text.split()).strip("-*#|> ")
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", plain):
        if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= _SHORTEST:
            yield sentence


if __name__ == "__main__":
    main()
