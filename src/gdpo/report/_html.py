"""Renders the templates. Every text in them is made visible and escaped.

`jinja2` is imported when a page is rendered.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from gdpo.diagnostics import Finding
from gdpo.diagnostics.watch import Span
from gdpo.report._charts import ticks
from gdpo.report.colours import css
from gdpo.report.text import embedded, number, probability, short, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_WORD_ENDS = re.compile(r"(?<!\d)[_.:/-]+(?=[^_.:/-])|[_.:/-]+(?=[^_.:/\d-])")


def render(template: str, *, data: Any, **content: Any) -> str:
    """Return a page that loads nothing, and runs only the script of this package.

    Args:
        template: Its file in `templates/`.
        data: What the script reads, as JSON.
        content: The names that the template uses.
    """
    from markupsafe import Markup

    environment = _environment()
    ours = {"style": "page.css", "script": "page.js"}
    for name, file in ours.items():
        assert environment.loader is not None, "the templates are in the folder of this file"
        text = environment.loader.get_source(environment, file)[0].strip()
        text = text.replace("/* colours */", css())
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        content |= {name: Markup(text), f"{name}_hash": digest}
    # `embedded` leaves no character in the JSON that could end its element.
    return environment.get_template(template).render(content, data=Markup(embedded(data)))


def render_figure(**content: Any) -> str:
    """Return a chart as an SVG file.

    Args:
        content: The names that `templates/figure.svg` uses.
    """
    return _environment().get_template("figure.svg").render(content)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return value if isinstance(value, Markup) else visible(str(value))

    environment = Environment(
        loader=PackageLoader("gdpo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "unbroken": _unbroken}
    names: dict[str, Any] = environment.globals
    names.update(
        number=number, probability=probability, short=short, shortened=shortened, ticks=ticks
    )
    return environment


def shortened(text: str, limit: int = 60) -> str:
    """Return the start of a text, with `…` if some of it is left out.

    Args:
        text: A name, or a sentence that contains names.
        limit: Characters, 60 for a name.
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def finding_row(finding: Finding, when: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a row of the table of findings.

    Args:
        finding: The finding.
        when: For each run in which it held: a shape (see `bars`), and words (see `in_words`).
    """
    return {
        "severity": finding.severity.value,
        "kind": finding.kind.value.replace("_", " "),
        "rewards": [shortened(name) for name in finding.rewards],
        "when": [{"bars": shape, "words": words} for shape, words in when],
        "message": shortened(finding.message, 600),
        "remedy": shortened(finding.remedy, 600),
    }


def bars(spans: Sequence[Span], total: int) -> str:
    """Return spans of steps as bars in a picture that is 160 pixels wide."""
    scale = 160 / max(1, total)
    return "".join(
        f"M{(first - 1) * scale:.1f} 5H{max(last * scale, (first - 1) * scale + 1):.1f}"
        for first, last in spans
    )


def in_words(spans: Sequence[Span]) -> str:
    """Return the longest of some spans of steps in words, and the ends of all if there are more."""
    first, last = max(spans, key=lambda span: span[1] - span[0])
    words = f"steps {first} to {last}"
    if len(spans) == 1:
        return words
    return f"{words}, and on and off from {spans[0][0]} to {spans[-1][1]}"


def breakable(name: str) -> "Markup":
    """Return a name that may break where its words end, and never in a number.

    >>> breakable("match_format")
    Markup('match_<wbr>format')
    >>> breakable("is 0.98")
    Markup('is 0.98')
    """
    from markupsafe import Markup, escape

    return Markup(_WORD_ENDS.sub(r"\g<0><wbr>", str(escape(visible(name)))))


def _unbroken(text: str) -> "Markup":
    """Return a text that stays on one line."""
    from markupsafe import Markup, escape

    return escape(visible(text)).replace(" ", Markup("&nbsp;"))
