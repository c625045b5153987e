"""docs/design.md is true of the code: its rooms, their order, and what it says is where."""

import ast
import io
import re
import sys
import tokenize
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest
from tests.environments import ROOT

from gdpo.advantages import gdpo
from gdpo.cli import main
from gdpo.diagnostics import diagnose

SOURCE = ROOT / "src" / "gdpo"
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")


def section(title):
    return DESIGN.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rooms():
    """In the order of the table; those of its first row are one."""
    cells = [
        line.split("|")[1] for line in section("The map").splitlines() if line.startswith("| `")
    ]
    return [re.findall(r"`([\w/]+?)(?:\.py|/)`", cell) for cell in cells]


def room_of(parts):
    """Return the room of a module or file: `lab/tasks` for gdpo.lab.tasks.rows."""
    first, *others = (part.removesuffix(".py") for part in parts)
    return f"lab/{others[0]}" if first == "lab" and others else first


@cache
def nodes_of(file):
    return list(ast.walk(ast.parse(file.read_text("utf-8"))))


def imported(file):
    """Yield the modules of gdpo that a file imports."""
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gdpo."):
            yield node.module.split(".")[1:]


def test_every_room_is_on_the_map():
    there = {
        room_of(path.relative_to(SOURCE).parts)
        for folder in (SOURCE, SOURCE / "lab")
        for path in folder.iterdir()
        if not path.name.startswith("__")
    }
    assert {name for row in rooms() for name in row} == there - {"lab", "py.typed", "_recipes"}


def test_the_map_names_every_module():
    """A reader finds the file of a change on the map."""
    for line in section("The map").splitlines():
        if line.startswith("| `") and (modules := line.split("|")[3].strip()):
            room = SOURCE / line.split("`")[1]
            there = {
                (part.parent.name if part.parent != room else "", part.stem)
                for part in room.rglob("*.py")
                if part.parent.name not in ("estimators", "_starter")
                if not part.stem.startswith("__") and part.parent.parent in (room, room.parent)
            }
            found, folder = set(), ""
            for name in re.findall(r"`(\w+/?)`", modules):
                folder = name[:-1] if name.endswith("/") else folder
                found |= set() if name.endswith("/") else {(folder, name)}
            if room != SOURCE / "lab/cli":  # "one per command"
                assert found == there, line
            assert found <= there


def test_a_room_imports_only_from_rooms_above_it():
    floor = {name: place for place, row in enumerate(rooms()) for name in row}
    wrong = [
        (str(file.relative_to(SOURCE)), name)
        for file in SOURCE.rglob("*.py")
        if (room := room_of(file.relative_to(SOURCE).parts)) in floor
        for name in map(room_of, imported(file))
        if floor[name] > floor[room]
    ]
    assert not wrong


def modules():
    """The files of the package by module name."""
    parts = {
        file: file.relative_to(SOURCE.parent).with_suffix("").parts for file in SOURCE.rglob("*.py")
    }
    return {
        ".".join(part for part in names if part != "__init__"): file
        for file, names in parts.items()
    }


def runs_imports_of(file, known):
    """Yield the modules that a file imports when it runs: at once, in a function or by name."""
    typing = {
        id(inner)
        for node in nodes_of(file)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def test_imports_point_one_way():
    """Imports within functions count: a reader follows them, too."""
    known = modules()
    graph = {
        name: set(runs_imports_of(file, known)) & set(known) - {name}
        for name, file in known.items()
    }
    assert "gdpo.lab.cli" in graph["gdpo.cli._app"]
    TopologicalSorter(graph).prepare()  # raises a CycleError with the circle


def test_the_core_imports_nothing_of_the_lab():
    core = [file for file in SOURCE.rglob("*.py") if SOURCE / "lab" not in file.parents]
    assert len(core) > 100
    assert not [file for file in core for module in imported(file) if module[0] == "lab"]


def test_a_room_imports_no_private_module_of_another():
    """What other rooms use stands in the room itself or in a module without an underscore."""
    wrong = [
        (str(file.relative_to(SOURCE)), module, name.name)
        for file in SOURCE.rglob("*.py")
        for node in nodes_of(file)
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("gdpo.")
        for name in node.names
        if room_of(module.split(".")[1:]) != room_of(file.relative_to(SOURCE).parts)
        if any(part.startswith("_") for part in (*module.split(".")[2:], name.name))
    ]
    assert not wrong


def defined(file):
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in nodes_of(SOURCE / file) if isinstance(node, kinds)}


def steps_of_the_ways():
    """The functions of every line of a way, and the files that it names for them."""
    files = []
    for line in section("Three data flows").splitlines():
        columns = re.split(r" {2,}", line.strip())
        if len(columns) < 2:
            continue
        if columns[1] != "the same":
            first, *others = re.findall(r"[\w/]+\.py", columns[1])
            files = [first, *(f"{first.rpartition('/')[0]}/{other}" for other in others)]
        yield columns[0].split(", "), files


def test_every_function_of_the_ways_is_where_its_line_says():
    steps = list(steps_of_the_ways())
    assert len(steps) > 20
    for names, files in steps:
        there = set().union(*map(defined, files))
        assert {part for name in names for part in name.split(".")} <= there, (names, files)


def test_every_file_of_the_table_of_changes_is_there():
    header, _, *rows = section("Where to change what").strip().splitlines()
    assert header == "| to add or change | file |"
    assert len(rows) >= 10
    for line in rows:
        folder = ""
        for file in re.findall(r"`((?:[\w/]+/)?\w+\.py)`", line):
            folder = file.rpartition("/")[0] or folder
            assert (SOURCE / folder / Path(file).name).exists(), (line, file)
        for place in re.findall(r"`((?:docs|tests)/[^`]+)`", line):
            assert (ROOT / place).exists(), place


def test_an_estimator_is_a_file_of_at_most_60_lines():
    files = sorted((SOURCE / "advantages" / "estimators").glob("[!_]*.py"))
    long = {file.name for file in files if len(file.read_text("utf-8").splitlines()) > 60}
    assert not long


def entered(call):
    """The functions of the package that a call enters, by file. A reader follows each of them.

    A second call counts: the first also fills caches. Comprehensions are no functions to a reader.
    """
    found = set()

    def enter(frame, event, argument):
        code = frame.f_code
        named = not code.co_name.startswith("<")
        if event == "call" and named and code.co_filename.startswith(str(SOURCE)):
            found.add((Path(code.co_filename).relative_to(SOURCE), code.co_qualname))

    call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def without_annotation_checks(function):
    return getattr(function, "__wrapped__", function)


def test_one_call_of_gdpo_enters_at_most_12_functions():
    rewards, estimator = np.random.default_rng(0).random((4, 8, 2)), without_annotation_checks(gdpo)
    found = entered(lambda: estimator(rewards, [1.0, 1.0]))
    assert "finish" in {name for _, name in found}
    assert len(found) <= 12, sorted(found)


def test_one_call_of_diagnose_enters_at_most_48_functions_of_9_modules():
    rewards = np.random.default_rng(0).random((4, 8, 2))
    function = without_annotation_checks(diagnose)
    found = entered(lambda: function(rewards, [1.0, 1.0], ["a", "b"]))
    assert "influence_of" in {name for _, name in found}
    assert len(found) <= 48, sorted(found)
    assert len({file for file, _ in found}) <= 9


def command(*arguments):
    """Return a call of the command line that must succeed."""

    def call():
        with pytest.raises(SystemExit, match="0"):
            main([str(argument) for argument in arguments])

    return call


def test_analyze_enters_at_most_389_functions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = entered(command("analyze", "--example"))
    assert "contents" in {name for _, name in page}
    assert len(page) <= 389
    assert len(entered(command("analyze", "--example", "--output", "none"))) <= 306


@pytest.mark.slow
def test_check_of_a_recipe_enters_at_most_197_functions(tmp_path, monkeypatch):
    command("init", tmp_path / "project")()
    monkeypatch.chdir(tmp_path / "project")
    found = entered(command("check", "recipe.yaml"))
    assert "prepare" in {name for _, name in found}
    assert len(found) <= 197


LIBRARIES = {"rollouts/readers/sources.py", "lab/training/_loop.py"}
"""Read messages of csv, pyarrow and torch, whose errors have no fields."""


def sentences_read(file):
    """Yield the lines on which code looks into the text of an error that it caught."""
    caught = {node.name for node in nodes_of(file) if isinstance(node, ast.ExceptHandler)}

    def is_sentence(node):
        of_str = isinstance(node, ast.Call) and ast.unparse(node.func) == "str"
        return of_str and ast.unparse(node.args[0]) in caught

    for node in nodes_of(file):
        if isinstance(node, ast.Compare) and any(map(is_sentence, node.comparators)):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr != "split" and is_sentence(node.value):
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            yield from (each.lineno for each in node.args if is_sentence(each))


def test_no_decision_reads_the_sentence_of_an_error():
    """Errors that decide something have fields."""
    found = {
        str(file.relative_to(SOURCE)): lines
        for file in SOURCE.rglob("*.py")
        if (lines := list(sentences_read(file)))
    }
    assert set(found) == LIBRARIES, found


COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}


def tokens_of(files):
    """Return the number of tokens of code: no docstrings, no comments."""
    count = 0
    for file in files:
        text = file.read_text("utf-8")
        alone = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
        strings = {
            (node.lineno, node.col_offset)
            for node in alone
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        found = tokenize.generate_tokens(io.StringIO(text).readline)
        count += sum(each.type in COUNTED and each.start not in strings for each in found)
    return count


def test_the_package_does_not_grow():
    """These numbers only fall: new code is paid for by deleting other code."""
    lab = set((SOURCE / "lab").rglob("*.py"))
    core = set(SOURCE.rglob("*.py")) - lab
    functions = sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for file in core | lab
        for node in nodes_of(file)
    )
    budget = {
        "core": 208_371,
        "lab": 113_553,
        "tests": 418_707,
        "benchmarks": 96_965,
        "files": 264,
        "functions": 2_663,
    }
    found = {
        "core": tokens_of(core),
        "lab": tokens_of(lab),
        "tests": tokens_of((ROOT / "tests").rglob("*.py")),
        "benchmarks": tokens_of((ROOT / "benchmarks").rglob("*.py")),
        "files": len(core | lab),
        "functions": functions,
    }
    assert {name: n for name, n in found.items() if n > budget[name]} == {}


def test_the_site_does_not_grow():
    """This number may only fall: a page pays for new words by deleting others."""
    words = " ".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")).split()
    assert len(words) - words.count("|") <= 26_806
