"""What a console shows of names and texts that are not ours."""

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gdpo._terminal import Shown, terminal


@pytest.fixture
def shows(capsys, monkeypatch):
    """Returns what a terminal of this width, or a pipe (no width), gets."""

    def printed(renderable, width=None, **options):
        console = terminal()
        if width is not None:
            monkeypatch.setattr(console, "_force_terminal", True)
            console.width = width
        console.print(renderable, **options)
        return capsys.readouterr().out

    return printed


def table(*cells, least=None):
    made = Table(title="a title")
    for number in range(len(cells)):
        made.add_column(f"heading {number}", no_wrap=True, min_width=None if number else least)
    made.add_row(*cells)
    return made


CELLS = ("never", "64 000", "a_name_of_a_reward_with_many_words", "never", "1.234 [1.1, 1.3]", "–")


def test_a_pipe_gets_tables_that_are_as_wide_as_their_content(shows):
    out = shows(Group(Text("word " * 40), table(*CELLS)))
    assert all(f" {cell} " in out for cell in CELLS)
    assert max(map(len, out.split("a title")[0].splitlines())) <= 80


@pytest.mark.parametrize(("width", "least"), [(40, None), (60, None), (80, None), (80, 25)])
def test_a_narrow_terminal_loses_no_character_of_a_table(shows, width, least):
    out = shows(table(*CELLS, least=least), width)
    assert "…" not in out
    rows = [line.split("│")[1:-1] for line in out.splitlines() if "│" in line]
    for cell, *parts in zip(CELLS, *rows, strict=True):
        assert "".join(map(str.strip, parts)).replace(" ", "") == cell.replace(" ", "")


def test_hidden_characters_are_codes_and_names_no_emoji_or_markup(shows):
    for shown in ("\x1b[31m :fire:", table("\x1b[31m :fire:"), Text("\x1b[31m :fire:")):
        out = shows(shown, markup=False)
        assert "⟨U+001B⟩[31m :fire:" in out
        assert "\x1b" not in out


def test_a_display_that_is_updated_shows_the_same(shows):
    assert "⟨U+001B⟩[31m" in shows(Shown(table("\x1b[31m")))
