"""Prepares the pages for the site: the README as its first page, links out of docs/, and formulas.

GitHub shows the same files as they are. Nothing on the site is fetched from another host: formulas
become MathML when the site is built.
"""

import logging
import os
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
REPOSITORY = os.environ.get("REPOSITORY", "").rstrip("/").removesuffix(".git")

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
    """Add the README as the page index.md, and the pictures of the estimators."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=_links(readme, ROOT)))
    for path, content in pictures().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links that leave docs/, and add what comes from docstrings."""
    source = page.file.src_uri
    if source == "index.md":
        return markdown
    markdown = _links(markdown, (ROOT / "docs" / source).parent)
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


def _links(markdown: str, folder: Path) -> str:
    """Point the links of a file in `folder` to pages of the site, or to files of the repository."""

    def link(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = (folder / path).resolve()
        if not target.exists():
            return match[0]
        anchor = f"#{anchor}" if anchor else ""
        if target == ROOT / "README.md":
            inside = posixpath.relpath("index.md", _inside(folder))
        elif target.is_relative_to(ROOT / "docs") and not target.is_dir():
            inside = posixpath.relpath(_inside(target), _inside(folder))
        elif REPOSITORY:
            kind = "tree" if target.is_dir() else "blob"
            inside = f"{REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
        else:
            return match[0] if match["image"] else f"{match['text']} (`{target.relative_to(ROOT)}`)"
        return f"{match['image']}[{match['text']}]({inside}{anchor})"

    return _LINK.sub(link, markdown)


def _inside(path: Path) -> str:
    """Return the path of a file or folder of docs/, as the site names it; the root is docs/."""
    return path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else "."
