"""Builds dist/gdpo.pyz: the core with the Python packages that it needs, without numpy and pyarrow.

The file runs with any Python 3.11+ that has numpy. Compiled parts of packages are left out. This
script itself needs only Python, and installs nothing into its environment.
"""

import compileall
import importlib.util
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipapp
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTSIDE = {"numpy", "pyarrow"}
"""Dependencies that are compiled, so that they must be installed where the file runs."""
MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("gdpo.pyz needs Python 3.11 or newer")
try:
    import numpy
except ImportError:
    sys.exit("gdpo.pyz needs numpy: run %s -m pip install numpy" % sys.executable)
from gdpo.cli import main
from gdpo.rollouts.arrow import HAS_PYARROW

if not HAS_PYARROW and sys.argv[1:] in ([], ["-h"], ["--help"]):
    print("Without pyarrow, gdpo.pyz cannot read parquet files (TRL's, gdpo's) and --example")

main()
"""
LAB = """\
from gdpo.errors import MissingExtraError

raise MissingExtraError("the package gdpo", "lab", "for tasks, recipes and trainings")
"""
AT_START = (
    "align|cells|color|console|default_styles|emoji|highlighter|jupyter|segment|style|table|text"
)
LATE = re.compile(f"/(integrations|testing)/|/rich/(?!({AT_START})[.]py)")
"""Files that no start of a command imports."""
LEFT_OUT = shutil.ignore_patterns("lab", "__pycache__", "*.pyc")


def unneeded(path: Path) -> bool:
    """Return whether a file that pip installed is compiled, a script, a lexer or a note of pip."""
    compiled = path.suffix in (".so", ".pyd", ".dylib", ".c", ".pyi")
    of_pip = path.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    lexer = "pygments/lexers" in path.as_posix() and path.name not in ("__init__.py", "_mapping.py")
    return compiled or of_pip or lexer or path.parent.name == "bin"


with tempfile.TemporaryDirectory() as temporary:
    folder, python = Path(temporary) / "file", sys.executable
    if importlib.util.find_spec("pip") is None:  # as in environments of uv
        venv.create(Path(temporary) / "venv", with_pip=True)
        python = Path(temporary) / "venv" / "bin" / "python"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    inside = [each for each in wanted if re.match(r"[\w.-]+", each)[0] not in OUTSIDE]
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    pip += ["--no-warn-conflicts", "--no-compile", "--target", folder]
    constraints = ["-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, *constraints, *inside], check=True)
    for path in filter(unneeded, [each for each in folder.rglob("*") if each.is_file()]):
        path.unlink()
    shutil.copytree(ROOT / "src" / "gdpo", folder / "gdpo", ignore=LEFT_OUT)
    shutil.copy(ROOT / "LICENSE", folder / "gdpo")
    (folder / "gdpo" / "lab.py").write_text(LAB)
    (folder / "__main__.py").write_text(MAIN)
    # With these, the Python that builds the file starts it faster. Others read the sources.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for package in ("attr", "cyclopts", "gdpo", "jinja2", "rich"):
        # The docstrings of gdpo and cyclopts are the help.
        options = {"optimize": 0 if package in ("cyclopts", "gdpo") else 2}
        options |= {"legacy": True, "quiet": 2, "rx": LATE}
        compileall.compile_dir(folder / package, invalidation_mode=unchecked, **options)
    target = ROOT / "dist" / "gdpo.pyz"
    target.parent.mkdir(exist_ok=True)
    zipapp.create_archive(folder, target, interpreter="/usr/bin/env python3", compressed=True)
