"""Prepares the pages for the site: the README as its first page, what pages link to, and formulas.

GitHub shows the same files as they are. What a page links to outside docs/ becomes a page or a file
of the site. Nothing on the site is fetched from another host: formulas become MathML when the site
is built.
"""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from _estimators import PAGE, completed, pictures
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_LOG = logging.getLogger("mkdocs.plugins.site")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_SEARCHED_LAST = "---\nsearch:\n  boost: 0.5\n---\n"

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_NOTEBOOK_LINK = re.compile(
    r'(?P<attribute>href|src)="(?P<target>[^":#]+\.(?:md|py|png)(?:#[^"]*)?)"'
)
_NEXT_OUTPUT = re.compile(
    r'</pre>\s*</div>\s*</div>\s*<div class="jp-OutputArea-child">\s*'
    r'<div class="jp-OutputPrompt jp-OutputArea-prompt"></div>\s*'
    r'<div class="jp-RenderedText jp-OutputArea-output" data-mime-type="text/plain" tabindex="0">'
    r"\s*<pre>"
)
"""Between two writes of one command, which are one output."""
_MODULE = re.compile(r"^- `(gdpo(?:\.\w+)*)`", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, what the pages link to outside docs/, and the pictures of the estimators."""
    added: set[Path] = set()
    waiting = [ROOT / "README.md", *DOCS.rglob("*.md")]
    while waiting:
        target = waiting.pop()
        if target in added:
            continue
        added.add(target)
        if target.is_dir() or target.suffix == ".md":
            markdown = _folder(target) if target.is_dir() else target.read_text(encoding="utf-8")
            waiting += [
                linked for match in _LINK.finditer(markdown) if (linked := _linked(match, target))
            ]
            searched = "" if target == ROOT / "README.md" else _SEARCHED_LAST
            content: str | bytes = searched + _links(markdown, target)
        else:
            content = target.read_bytes()
        if not target.is_relative_to(DOCS):
            files.append(File.generated(config, _place(target), content=content))
    for path, content in pictures().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links that leave docs/, and add what comes from docstrings."""
    source = page.file.src_uri
    if page.file.generated_by:  # by on_files
        return markdown
    markdown = _links(markdown, DOCS / source)
    if source == PAGE:
        return completed(markdown)
    if source == "reference/api.md":
        modules = "\n\n".join(f"::: {name}" for name in _MODULE.findall(markdown))
        markdown += f"\n\n## Signatures\n\n{modules}\n"
    return markdown


def on_page_content(html: str, page: Any, files: Files, **_: Any) -> str:
    """Replace each formula by MathML, and the links of a tutorial by those of the site."""

    def mathml(match: re.Match[str]) -> str:
        latex = match["latex"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(latex, display="block" if match["tag"] == "div" else "inline")

    html = _FORMULA.sub(mathml, html)
    if not page.file.src_uri.endswith(".py"):
        return html

    def link(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), path))
        file = files.get_file_from_path(target)
        if file is None:
            _LOG.warning("%s links to %s, which is not there", page.file.src_uri, match["target"])
            return match[0]
        url = file.url_relative_to(page.file) + (f"#{anchor}" if anchor else "")
        return f'{match["attribute"]}="{url}"'

    return _NOTEBOOK_LINK.sub(link, _NEXT_OUTPUT.sub("", html))


def _links(markdown: str, page: Path) -> str:
    """Point the links of a page to the places of their targets on the site."""

    def link(match: re.Match[str]) -> str:
        target = _linked(match, page)
        if target is None:
            return match[0]
        anchor = match["target"].partition("#")[1:]
        place = posixpath.relpath(_place(target), posixpath.dirname(_place(page)))
        return f"{match['image']}[{match['text']}]({place}{''.join(anchor)})"

    return _LINK.sub(link, markdown)


def _linked(match: re.Match[str], page: Path) -> Path | None:
    """Return the file or folder of the repository that a page links to, or None."""
    path = match["target"].partition("#")[0]
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    target = ((page if page.is_dir() else page.parent) / path).resolve()
    if (target / "README.md").exists():
        target /= "README.md"
    return target if target.exists() else None


def _place(target: Path) -> str:
    """Return the path on the site of a file or folder of the repository."""
    if target == ROOT / "README.md":
        return "index.md"
    inside = target.relative_to(DOCS if target.is_relative_to(DOCS) else ROOT).as_posix()
    return (f"{inside}/index.md" if target.is_dir() else inside).lstrip(".")


def _folder(folder: Path) -> str:
    """Return a page with links to the files of a folder."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(("_", ".")))
    title = folder.relative_to(ROOT).as_posix()
    return "\n".join([f"# {title}", "", *(f"- [`{name}`]({name})" for name in names)])
