"""Excludes the scripts, which need environments with a framework."""

from pathlib import Path

collect_ignore = [
    str(path) for path in Path(__file__).parent.rglob("*.py") if not path.name.startswith("test_")
]
