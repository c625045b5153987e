"""Renders the HTML templates. Hidden characters are made visible and all text is escaped."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from gdpo._files import to_json
from gdpo._text import visible
from gdpo.diagnostics.diagnosis import percent
from gdpo.diagnostics.watch import Span
from gdpo.report.charts import ticks
from gdpo.report.colours import css
from gdpo.report.text import NAMES, as_number, number, probability, shortened

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""Matches characters that could end a script element or that are not valid text."""

_WORD_ENDS = re.compile(r"(?<=[^\W\d])[_.:/-]+(?=[^_.:/-])|(?<=\d)[_.:/-]+(?=[^_.:/\d-])")

_IN_BACKTICKS = re.compile("`([^`]+)`")
_OPTION = re.compile("--(?:[a-z-]|<wbr>)+")


def render(template: str, *, data: Any, package: str = "gdpo.report", **content: Any) -> str:
    """Return a page that loads no external files and runs only this package's script.

    Args:
        template: File name in `templates/`.
        data: Data for the script, serializable as JSON.
        package: Package with the folder `templates/`. Its templates may use those of `gdpo.report`.
        content: The template's variables.
    """
    from markupsafe import Markup

    environment = _environment(package)
    # `embedded` escapes every character that could end the script element.
    return environment.get_template(template).render(content, data=Markup(embedded(data)))


@cache
def _environment(package: str) -> "Environment":
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return value if isinstance(value, Markup) else visible(str(value))

    ours = PackageLoader("gdpo.report")
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), ours]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "coded": _coded}
    names: dict[str, Any] = environment.globals
    names.update(
        NAMES=NAMES,
        bars=bars,
        in_words=in_words,
        number=number,
        probability=probability,
        as_number=as_number,
        percent=percent,
        shortened=shortened,
        ticks=ticks,
    )
    for name, file in (("style", "page.css"), ("script", "page.js")):
        text = ours.get_source(environment, file)[0].strip().replace("/* colours */", css())
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        names |= {name: Markup(text), f"{name}_hash": digest}
    return environment


def embedded(data: Any) -> str:
    r"""Return JSON that is safe inside an HTML script element.

    >>> print(embedded({"text": "</script>"}))
    {"text": "\u003c/script\u003e"}
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", to_json(data))


def bars(spans: Sequence[Span], total: int) -> str:
    """Return an SVG path that draws spans of steps as bars in an image 160 pixels wide."""
    scale = 160 / max(1, total)
    return "".join(
        f"M{(first - 1) * scale:.1f} 5H{max(last * scale, (first - 1) * scale + 1):.1f}"
        for first, last in spans
    )


def in_words(spans: Sequence[Span]) -> str:
    """Return a phrase with the longest span of steps and the range of all spans."""
    first, last = max(spans, key=lambda span: span[1] - span[0])
    words = f"steps {first} to {last}"
    if len(spans) == 1:
        return words
    return f"{words}, and intermittently from {spans[0][0]} to {spans[-1][1]}"


def breakable(name: str) -> "Markup":
    """Return a name that can wrap between its words, but never inside a number or an option.

    >>> breakable("match_format")
    Markup('match_<wbr>format')
    >>> breakable("is -0.98 with --weights")
    Markup('is -0.98 with --weights')
    """
    from markupsafe import Markup, escape

    return Markup(_WORD_ENDS.sub(r"\g<0><wbr>", str(escape(visible(name)))))


def _coded(text: str) -> "Markup":
    """Return a sentence that can wrap, with its names in backticks as code, and its options whole.

    >>> _coded("add --weights to `a_b`")
    Markup('add <kbd>--weights</kbd> to <code>a_<wbr>b</code>')
    """
    from markupsafe import Markup

    sentence = _OPTION.sub(r"<kbd>\g<0></kbd>", str(breakable(text)))
    return Markup(_IN_BACKTICKS.sub(r"<code>\1</code>", sentence))
