"""docs/design.md is true of the code: its rooms, their order, and what it says is where."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gdpo"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def section(title):
    return DESIGN.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rooms():
    """In the order of the table; those of its first row are one."""
    cells = [
        line.split("|")[1] for line in section("The map").splitlines() if line.startswith("| `")
    ]
    return [re.findall(r"`(\w+)(?:\.py|/)`", cell) for cell in cells]


def imported(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gdpo."):
            yield node.module.split(".")[1]


def test_every_room_is_on_the_map():
    there = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("__")}
    assert {name for row in rooms() for name in row} == there - {"py", "_recipes"}


def test_a_room_imports_only_from_rooms_above_it():
    floor = {name: place for place, row in enumerate(rooms()) for name in row}
    wrong = [
        (str(file.relative_to(SOURCE)), name)
        for file in SOURCE.rglob("*.py")
        if (room := file.relative_to(SOURCE).parts[0].removesuffix(".py")) in floor
        for name in imported(file)
        if floor[name] > floor[room]
    ]
    assert not wrong


def test_what_the_ways_and_the_table_of_changes_name_is_there():
    ways = section("Three ways of data")
    steps = re.findall(r"^ *(\w[\w., ]*?) {2,}([\w/]+\.py)?(?:, (\w+\.py))?", ways, flags=re.M)
    assert len(steps) > 15
    for names, *files in steps:
        ...
    files = re.findall(r"`?((?:\w+/)+\w+\.py)`?", ways + section("Where to change what"))
    assert [
        file for file in set(files) if not (SOURCE / file).exists() and not (ROOT / file).exists()
    ] == []
