"""Makes consoles that safely show names, exceptions, and text from users and models in full.

Hidden characters, such as escape sequences, are shown as codes, and `:fire:` is no emoji. Tables
wrap long cells instead of cutting them.
"""

from collections.abc import Iterator

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    Group,
    RenderableType,
    RenderHook,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gdpo._text import visible

_TEXT, _TABLES = 80, 1000
"""Maximum widths of text and of tables if the output is not a terminal."""


def terminal(*, stderr: bool = False) -> Console:
    """Return a console for untrusted text."""
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _TABLES
    console.push_render_hook(_Hook())
    return console


def say(console: Console, *lines: str | Text) -> None:
    """Print lines that may contain text from users. The terminal wraps them."""
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


class Shown:
    """Renders an object with visible characters, and with tables that lose no text."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the segments of the object."""
        shown = self._renderable
        if isinstance(shown, Group):
            for each in shown.renderables:
                yield from console.render(Shown(each), options)
            return
        if isinstance(shown, Table):
            for column in shown.columns:
                column.overflow, column.no_wrap = "fold", False
            options = _fitted(shown, console, options)
        elif not console.is_terminal:
            options = options.update(width=min(options.max_width, _TEXT))
        for text, style, control in console.render(shown, options):
            yield Segment(text if control else visible(text), style, control)


def _fitted(table: Table, console: Console, options: ConsoleOptions) -> ConsoleOptions:
    # A column with a minimum width makes rich's table wider than the width that it was given.
    for width in range(options.max_width, options.max_width // 2, -1):
        tried = options.update(width=width)
        lines = Segment.split_lines(console.render(table, tried))
        if max(map(Segment.get_line_length, lines), default=0) <= options.max_width:
            return tried
    return options


class _Hook(RenderHook):
    """Wraps everything that a console prints in `Shown`."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Shown(each) for each in renderables]
